"""Turns: each stream takes its share of a process's memory, so only so many run in one at once.

Who gets no turn soon gives its job back: another worker may have one, and waiting is no running. It costs the job nothing.
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
from holdfast.settings import settings
from holdfast.worker.context import Context

PATIENCE = 2.0  # seconds: most exports are short, and a turn comes sooner than a job that was given back
COMES_BACK = Backoff(first=timedelta(seconds=2), longest=timedelta(seconds=20))

_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


class NoTurn(HoldfastError):
    """This process streams as many exports as it may; `snooze` is how the job goes back."""

    def __init__(self, ctx: Context, most: int) -> None:
        super().__init__(f"waits for a turn: this worker streams as many exports as it may (HOLDFAST_EXPORT_STREAMS={most})")
        self.snooze = Snooze(COMES_BACK.delay(ctx.job.attempt_no - 1, random.random()), str(self))  # noqa: S311 - no secret


@asynccontextmanager
async def a_turn(ctx: Context) -> AsyncIterator[None]:
    """One of this process's turns, for the length of a block; `NoTurn` if none is free soon."""
    most = settings().export_streams
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
