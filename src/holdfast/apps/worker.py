"""A worker as a program: the kinds of some modules, until told to stop. Called by: `holdfast worker run`, the demo."""

from __future__ import annotations

import asyncio
import importlib
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.errors import UsageError
from holdfast.worker.crashpoints import arm_from_settings
from holdfast.worker.kinds import Job, registered
from holdfast.worker.loop import Worker
from holdfast.worker.options import WorkerOptions


def kinds_of(modules: Sequence[str]) -> list[Job[..., Any]]:
    """The kinds that these modules register, and no others: not the demo's, which the command line has loaded too."""
    before = registered()
    sys.path.insert(0, str(Path.cwd()))  # a script is looked for beside itself; people keep their modules where they are
    for module in modules:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            raise UsageError(f"cannot import {module}: {error}; is it installed, or in PYTHONPATH?") from None
    return [kind for name, kind in registered().items() if name not in before]


def work(
    url: str, kinds: Sequence[Job[..., Any]], options: WorkerOptions, *, until_empty: bool = False, crash_at: str | None = None
) -> None:
    """Run these kinds until told to stop."""
    arm_from_settings(crash_at)
    asyncio.run(_work(url, kinds, options, until_empty=until_empty))


async def _work(url: str, kinds: Sequence[Job[..., Any]], options: WorkerOptions, *, until_empty: bool) -> None:
    """SIGTERM and SIGINT let the worker finish what it has."""
    worker = Worker(url, kinds, options)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, worker.stop)
    await worker.run(until_empty=until_empty)
