"""Run a worker in this process, without a keeper, until SIGTERM or SIGINT. Called by: the demos, the proofs."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from typing import Any

from holdfast.crashpoints import arm_from_settings
from holdfast.worker.kinds import Job
from holdfast.worker.loop import Worker
from holdfast.worker.options import WorkerOptions


def work(
    url: str, kinds: Sequence[Job[..., Any]], options: WorkerOptions, *, until_empty: bool = False, crash_at: str | None = None
) -> None:
    """Run these kinds until a signal, or until no job is left."""
    arm_from_settings(crash_at)
    asyncio.run(_work(url, kinds, options, until_empty=until_empty))


async def _work(url: str, kinds: Sequence[Job[..., Any]], options: WorkerOptions, *, until_empty: bool) -> None:
    """SIGTERM and SIGINT let the worker finish its jobs."""
    worker = Worker(url, kinds, options)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, worker.stop)
    await worker.run(until_empty=until_empty)
