"""Call an engine in a thread, and stop it when the job is cancelled, its claim is lost or its worker must end.

The event loop is never blocked: the handler waits for the thread in short steps. A thread cannot be ended from outside. It is
told to stop and gets `PATIENCE` for it; after that the attempt ends without it. Whatever such a thread still does is refused:
its fence is over, and the catalog checks the attempt in the transaction of each commit.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, Final, TypeVar

from holdfast.errors import CancelRequested, ClaimLost, HoldfastError
from holdfast.services.maintenance.engines.interface import ActionCancelled, ActionResult, Fence, Progress
from holdfast.telemetry.log import log
from holdfast.threads import in_thread
from holdfast.worker.context import Context

R = TypeVar("R")

STEP: Final = 0.05  # seconds between two looks at the thread
REPORT: Final = 1.0  # seconds between two reports of progress, each of which also checks the claim
PATIENCE: Final = 1.0  # seconds that a thread gets to stop
CHECK_WITHIN: Final = 30.0  # seconds until a check of the fence from a thread must be answered


class ShuttingDown(HoldfastError):
    """The worker must end, so the action was stopped."""


class Watched:
    """The part of an attempt that its engine threads see: whether to stop, how far they are, and the fence."""

    def __init__(self, ctx: Context) -> None:
        self._ctx, self._loop = ctx, asyncio.get_running_loop()
        self._stop = threading.Event()
        self._progress: Progress | None = None
        self.done_in_part: ActionResult | None = None  # what an action had committed when it was stopped
        self.fence = Fence(ctx.job.id, ctx.attempt_id, ctx.fence_token, self._check)

    # ------------------------------------------------------------------------------------------------- in the thread

    def report(self, progress: Progress) -> None:
        """An engine says how far it is."""
        self._progress = progress

    def is_cancelled(self) -> bool:
        """An engine asks whether to stop."""
        return self._stop.is_set()

    def _check(self) -> None:
        """An engine asks whether its attempt still holds the job; `ClaimLost` if not. Blocks for one query."""
        lost = ClaimLost(self._ctx.job.id, self._ctx.attempt_id, "commit")
        if self._stop.is_set():
            raise lost
        asked = self._ctx.checkpoint()
        try:
            future = asyncio.run_coroutine_threadsafe(asked, self._loop)
        except RuntimeError:  # the event loop is closed: the worker has ended
            asked.close()
            raise lost from None
        try:
            future.result(CHECK_WITHIN)
        except (FutureTimeout, asyncio.CancelledError):
            raise lost from None

    # ------------------------------------------------------------------------------------------------- in the event loop

    async def call(self, function: Callable[..., R], *args: Any, share: Callable[[float], float] = lambda done: done) -> R:
        """The result of a function that runs in a thread. `share` turns the progress of this call into that of the job."""
        work = asyncio.ensure_future(in_thread(function, *args))
        reported = time.monotonic()
        try:
            while not work.done():
                await asyncio.wait({work}, timeout=STEP)
                if self._ctx.stopping and not work.done():
                    raise ShuttingDown("the worker received SIGTERM")
                if not work.done() and time.monotonic() - reported >= REPORT:
                    await self._report(share)
                    reported = time.monotonic()
            return work.result()
        finally:
            if not work.done():
                await self._end(work, getattr(function, "__name__", "engine"))

    async def _report(self, share: Callable[[float], float]) -> None:
        """Report progress. Raises `ClaimLost` or `CancelRequested`, which stops the thread."""
        progress = self._progress
        if progress is None or not progress.total:
            await self._ctx.checkpoint()
            return
        message = f"{progress.done} of {progress.total} {progress.unit}"
        await self._ctx.progress(share(min(1.0, progress.done / progress.total)), message)

    async def _end(self, work: asyncio.Future[Any], name: str) -> None:
        """Tell the thread to stop, and wait a moment for it."""
        self._stop.set()
        await asyncio.wait({work}, timeout=PATIENCE)
        if not work.done():
            log.warning("maintenance_thread_left_behind", job_id=self._ctx.job.id, engine_call=name, patience_seconds=PATIENCE)
            work.cancel()
        elif not work.cancelled() and isinstance(stopped := work.exception(), ActionCancelled):
            self.done_in_part = stopped.result


def is_about_the_job(error: BaseException) -> bool:
    """Whether an error of an engine call ends the attempt, and not only the action."""
    return isinstance(error, (ClaimLost, CancelRequested, ShuttingDown, asyncio.CancelledError))
