"""A scheduler as a program: the kernel's loops and those of some modules, until told to stop.

Called by: `holdfast scheduler run`. A program that serves something else makes a scheduler by `scheduler_for` and starts it
beside everything else.
"""

from __future__ import annotations

import asyncio
import importlib
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from holdfast import catalog
from holdfast.apps.options import grace_of
from holdfast.crashpoints import arm_from_settings
from holdfast.errors import UsageError
from holdfast.schedule.kernel import kernel_loops
from holdfast.schedule.registry import Loop, registered
from holdfast.schedule.scheduler import Scheduler, SchedulerOptions
from holdfast.settings import Settings
from holdfast.worker.kinds import cleaners


def schedule(url: str, settings: Settings, modules: Sequence[str]) -> None:
    """Run the loops until told to stop: SIGTERM and SIGINT let running passes come to their end."""
    arm_from_settings(settings.crash_at)
    import_modules(modules)
    asyncio.run(_schedule(url, settings))


async def _schedule(url: str, settings: Settings) -> None:
    scheduler = scheduler_for(url, settings)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, scheduler.ask_to_stop)
    await scheduler.run()


def scheduler_for(url: str, settings: Settings) -> Scheduler:
    """A scheduler of everything that this process knows, as the settings say. Inside an event loop."""
    retention = timedelta(days=settings.retention_days) if settings.retention_days else None
    own = kernel_loops(retention=retention, run_retention=timedelta(days=settings.loop_history_days), cleaners=cleaners)
    options = SchedulerOptions(
        look=timedelta(seconds=settings.scheduler_look_seconds),
        grace=grace_of(settings),
        name=settings.hostname,
    )
    every = [*own, *catalog.loops(settings), *registered().values()]
    return Scheduler(url, with_intervals(every, settings.intervals), options)


def with_intervals(loops: Iterable[Loop], intervals: Mapping[str, timedelta]) -> list[Loop]:
    """The loops, with the intervals that were set from outside."""
    return [replace(loop, every=intervals[loop.name], cron=None) if loop.name in intervals else loop for loop in loops]


def import_modules(modules: Sequence[str]) -> None:
    """Import the modules whose reconcilers are to run."""
    sys.path.insert(0, str(Path.cwd()))  # a script is looked for beside itself; people keep their modules where they are
    for module in modules:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            raise UsageError(f"cannot import {module}: {error}; is it installed, or in PYTHONPATH?") from None
