"""A worker as a program: the kinds of some modules, until told to stop. Called by: `holdfast worker run`, the demo."""

from __future__ import annotations

import asyncio
import importlib
import signal
from collections.abc import Sequence

from holdfast.errors import UsageError
from holdfast.worker.crashpoints import arm_from_settings
from holdfast.worker.loop import Worker
from holdfast.worker.options import WorkerOptions


def work(
    url: str, modules: Sequence[str], options: WorkerOptions, *, until_empty: bool = False, crash_at: str | None = None
) -> None:
    """Import the modules and run every kind that they register."""
    for module in modules:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            raise UsageError(f"cannot import {module}: {error}; is it installed, or in PYTHONPATH?") from None
    arm_from_settings(crash_at)
    asyncio.run(_work(url, options, until_empty=until_empty))


async def _work(url: str, options: WorkerOptions, *, until_empty: bool) -> None:
    """SIGTERM and SIGINT let the worker finish what it has."""
    worker = Worker(url, options=options)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, worker.stop)
    await worker.run(until_empty=until_empty)
