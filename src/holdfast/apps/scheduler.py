"""A scheduler as a program: the kernel's loops and those of some modules, until told to stop.

Called by: `holdfast scheduler run`. A program that serves something else makes a scheduler by `scheduler_for` and starts it
beside everything else.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import TimeoutError as TookTooLong
from dataclasses import replace
from datetime import timedelta

from prometheus_client import generate_latest

from holdfast import catalog
from holdfast.crashpoints import arm_from_settings
from holdfast.distribution import VERSION
from holdfast.schedule.kernel import kernel_loops
from holdfast.schedule.registry import Loop, registered
from holdfast.schedule.scheduler import Scheduler, SchedulerOptions
from holdfast.settings import Settings
from holdfast.telemetry.metrics import REGISTRY
from holdfast.worker.kinds import cleaners
from holdfast.worker.modules import import_modules
from holdfast.worker.probe import Facts, Probe

LOOP_TIMEOUT = 5.0  # seconds: a scheduler whose event loop does not run for longer is unhealthy
POLL_TIMEOUT = 30.0  # seconds without an answer of the database, until it is not ready


def schedule(url: str, settings: Settings, modules: Sequence[str], *, http: str | None = None) -> None:
    """Run the loops until told to stop: SIGTERM and SIGINT let running passes come to their end."""
    arm_from_settings(settings.crash_at)
    import_modules(modules)
    asyncio.run(_schedule(url, settings, http))


async def _schedule(url: str, settings: Settings, http: str | None) -> None:
    scheduler = scheduler_for(url, settings)
    probe = None if http is None else Probe(http, SchedulerCheckup(scheduler))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, scheduler.ask_to_stop)
    try:
        await scheduler.run()
    finally:
        if probe is not None:
            probe.close()


class SchedulerCheckup:
    """The answers of a scheduler's probe, for calls from other threads."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler, self._loop = scheduler, asyncio.get_running_loop()

    def health(self) -> Facts:
        """A scheduler whose event loop does not run begins no pass; nothing else is a reason to restart it."""
        facts = {"status": "ok", "version": VERSION}
        try:
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self._loop).result(LOOP_TIMEOUT)
        except TookTooLong:
            return {**facts, "problem": f"the event loop has not run for {LOOP_TIMEOUT:g} s"}
        return facts

    def ready(self) -> Facts:
        """Whether it can read the rows of its loops."""
        facts = {"loops": len(self._scheduler.loops), "version": VERSION}
        polled = self._scheduler.polled_at
        if polled is None:
            return {**facts, "problem": "the loops have not been read from the database yet"}
        silent = time.monotonic() - polled
        if silent > POLL_TIMEOUT:
            return {**facts, "problem": f"the database has not answered for {silent:.0f} s"}
        return facts

    def metrics(self) -> bytes:
        """The metrics of this process."""
        return generate_latest(REGISTRY)


def scheduler_for(url: str, settings: Settings) -> Scheduler:
    """A scheduler of everything that this process knows, as the settings say. Inside an event loop."""
    retention = timedelta(days=settings.retention_days) if settings.retention_days else None
    own = kernel_loops(retention=retention, run_retention=timedelta(days=settings.loop_history_days), cleaners=cleaners)
    options = SchedulerOptions(
        look=timedelta(seconds=settings.scheduler_look_seconds),
        grace=timedelta(seconds=settings.grace),
        name=settings.hostname,
    )
    every = [*own, *catalog.loops(settings), *registered().values()]
    return Scheduler(url, with_intervals(every, settings.intervals), options)


def with_intervals(loops: Iterable[Loop], intervals: Mapping[str, timedelta]) -> list[Loop]:
    """The loops, with the intervals that were set from outside."""
    return [replace(loop, every=intervals[loop.name], cron=None) if loop.name in intervals else loop for loop in loops]
