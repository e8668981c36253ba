"""The helper for end-to-end tests: it waits for a success and not for a moment."""

from __future__ import annotations

import asyncio
import inspect
from datetime import timedelta
from typing import Any

import pytest

from factories import Conn
from holdfast.schedule.context import Pass
from holdfast.schedule.read import get_loop
from holdfast.schedule.term import ensure
from holdfast.schedule.tick import Place, tick
from holdfast.testing import LoopDidNotSucceed, wait_for_success
from loop_factories import loop, make_due

SOON = timedelta(milliseconds=10)


async def test_wait_returns_at_the_next_success_of_a_loop(connect: Any, conn: Conn, place: Place) -> None:
    """Z-04: polls the last-success timestamp, every 5 s and for 600 s unless told otherwise."""
    given = inspect.signature(wait_for_success).parameters
    assert (given["step"].default, given["timeout"].default) == (timedelta(seconds=5), timedelta(seconds=600))
    await ensure(conn, [loop()])
    await tick(loop(), place)
    before = (await get_loop(conn, "tidy")).last_success_at
    assert before is not None

    waiting = asyncio.create_task(wait_for_success(await connect(), "tidy", after=before, step=SOON))
    await make_due(conn)
    assert not waiting.done(), "the success of before is not the one that it waits for"
    await tick(loop(), place)

    last = (await waiting).last_success_at
    assert last is not None
    assert last > before


async def test_wait_timeout_names_the_cause(conn: Conn, place: Place) -> None:
    async def work(ctx: Pass) -> None:
        raise RuntimeError("the warehouse is away")

    one = loop(work)
    await ensure(conn, [one])
    await tick(one, place)

    with pytest.raises(LoopDidNotSucceed, match="last outcome is failed .RuntimeError: the warehouse is away"):
        await wait_for_success(conn, "tidy", step=SOON, timeout=3 * SOON)
