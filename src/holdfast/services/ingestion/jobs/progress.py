"""Report progress while a long step runs. Called by: the handlers, also for what they do in the transaction that ends the job.

Each report checks the attempt: when it was replaced or asked to stop, the statement that runs is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from holdfast.worker.context import Context

T = TypeVar("T")
PROGRESS_SECONDS: Final = 1.0


async def with_progress(ctx: Context, work: Coroutine[Any, Any, T], say: Callable[[], tuple[float | None, str]]) -> T:
    """Run a long step, and report its progress every second: the part that is done, from 0 to 1, and a message."""
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=PROGRESS_SECONDS)
            if not task.done():
                await ctx.progress(*say())
        return await task
    finally:
        task.cancel()
        await asyncio.wait({task})
