"""Turns: a process streams a limited number of exports at once, because each needs memory.

A job that gets no turn within `PATIENCE` goes back to the queue, where another worker may take it. That is not counted as an
attempt or an error.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from weakref import WeakKeyDictionary

from holdfast.errors import HoldfastError
from holdfast.jobs.outcome import Backoff, Snooze
from holdfast.worker.context import Context

PATIENCE = 2.0  # seconds: most exports are short, so waiting is usually faster than going back to the queue
COMES_BACK = Backoff(first=timedelta(seconds=2), longest=timedelta(seconds=20))

_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


class NoTurn(HoldfastError):
    """This process streams as many exports as it may; `snooze` returns the job to the queue."""

    def __init__(self, ctx: Context, most: int) -> None:
        super().__init__(f"waits for a turn: this worker streams as many exports as it may (HOLDFAST_EXPORT_STREAMS={most})")
        self.snooze = Snooze(COMES_BACK.delay(ctx.job.attempt_no - 1, random.random()), str(self))  # noqa: S311 - no secret


@asynccontextmanager
async def a_turn(ctx: Context, most: int) -> AsyncIterator[None]:
    """One of the `most` turns of this process, for the length of a block; `NoTurn` if none is free soon."""
    turns = _turns.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(most))
    try:
        async with asyncio.timeout(PATIENCE):
            await turns.acquire()
    except TimeoutError:
        raise NoTurn(ctx, most) from None
    try:
        yield
    finally:
        turns.release()
