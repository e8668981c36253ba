"""The same request from many places at once is one job."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from factories import add, value, waits
from holdfast.errors import IdempotencyConflict
from holdfast.jobs.enqueue import enqueue
from holdfast.jobs.model import NewJob

CALLERS = 8


@pytest.mark.parametrize(
    "fields", [{"idempotency_key": "i"}, {"unique_key": "u"}, {"unique_key": "u", "unique_while": "live"}, {"slot_key": "s"}]
)
async def test_concurrent_callers_create_one_job_and_all_get_it(connect: Any, fields: dict[str, Any]) -> None:
    """P11."""
    callers = [await connect() for _ in range(CALLERS)]
    for turn in range(10):
        keyed = {name: f"{text}-{turn}" if name != "unique_while" else text for name, text in fields.items()}

        made = await asyncio.gather(*(enqueue(caller, NewJob("k", **keyed)) for caller in callers))

        assert len({m.id for m in made}) == 1
        assert sum(m.created for m in made) == 1


async def test_the_second_caller_waits_for_the_first_and_gets_its_job(connect: Any) -> None:
    conn, first, second = await connect(), await connect(), await connect()

    async with first.transaction():
        made = await enqueue(first, NewJob("k", {"a": 1}, idempotency_key="i"))
        enqueueing = asyncio.create_task(enqueue(second, NewJob("k", {"a": 1}, idempotency_key="i")))
        await waits(conn, second)

    assert await enqueueing == (made.id, False)


async def test_second_caller_creates_the_job_if_the_first_rolls_back(connect: Any) -> None:
    conn, first, second = await connect(), await connect(), await connect()

    async with first.transaction(force_rollback=True):
        await enqueue(first, NewJob("k", {"a": 1}, idempotency_key="i"))
        enqueueing = asyncio.create_task(enqueue(second, NewJob("k", {"a": 1}, idempotency_key="i")))
        await waits(conn, second)

    assert (await enqueueing).created


async def test_second_caller_gets_a_conflict_with_the_uncommitted_first(connect: Any) -> None:
    conn, first, second = await connect(), await connect(), await connect()

    async with first.transaction():
        await enqueue(first, NewJob("k", {"a": 1}, idempotency_key="i"))
        enqueueing = asyncio.create_task(enqueue(second, NewJob("k", {"a": 2}, idempotency_key="i")))
        await waits(conn, second)

    with pytest.raises(IdempotencyConflict):
        await enqueueing


async def test_child_of_one_step_is_created_once(connect: Any) -> None:
    callers = [await connect() for _ in range(CALLERS)]
    parent = await add(callers[0])

    made = await asyncio.gather(*(enqueue(caller, NewJob("k", parent_id=parent, step="s")) for caller in callers))

    assert sum(m.created for m in made) == 1
    assert await value(callers[0], "SELECT count(*) FROM holdfast.jobs WHERE parent_id = %s", parent) == 1
