"""For end-to-end tests of periodic loops: wait until a loop has succeeded, instead of sleeping for its interval."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime, timedelta
from typing import Any

import psycopg

from holdfast.errors import UsageError
from holdfast.schedule.read import LoopView, get_loop

STEP = timedelta(seconds=5)
TIMEOUT = timedelta(minutes=10)


class LoopDidNotSucceed(UsageError):
    """No pass of the loop succeeded within the timeout."""


async def wait_for_success(
    conn: psycopg.AsyncConnection[Any],
    name: str,
    *,
    after: datetime | None = None,
    step: timedelta = STEP,
    timeout: timedelta = TIMEOUT,
) -> LoopView:
    """Poll the last success of a loop every `step` until it is later than `after`, by default later than at the call.

    `LoopDidNotSucceed` after `timeout`, with the status of the loop.
    """
    view = await get_loop(conn, name)
    since = view.last_success_at if after is None else after
    deadline = time.monotonic() + timeout.total_seconds()
    while view.last_success_at is None or (since is not None and view.last_success_at <= since):
        if time.monotonic() >= deadline:
            raise LoopDidNotSucceed(
                f"loop {name} did not succeed within {timeout}: it is {view.status}, its last outcome is {view.last_outcome} "
                f"({view.last_error}); check that a scheduler runs it"
            )
        await asyncio.sleep(step.total_seconds())
        view = await get_loop(conn, name)
    return view
