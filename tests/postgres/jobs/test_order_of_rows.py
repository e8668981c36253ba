"""A transaction that changes several jobs locks their rows in the order of their ids, before it changes the first.

Somebody holds the middle one. The act must come to wait for it without holding a later one: if it held that, whoever has
the middle one and goes on to the later would wait for the act, and the act for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import uuid4

import pytest

from factories import KIND, add, end, hold, rows, silence, start_worker, submit, take, waits
from holdfast.jobs.cancel import abort
from holdfast.jobs.finish import complete_plain, finish
from holdfast.jobs.model import Claim, Lock, NewJob
from holdfast.jobs.outcome import COMPLETED, Fail
from holdfast.jobs.pipelines import Pipeline
from holdfast.jobs.poll import fail_longer_than
from holdfast.jobs.release import release_worker
from holdfast.jobs.rescue import rescue, rescue_worker

HOLD = "SELECT id FROM holdfast.jobs WHERE id = %s FOR UPDATE NOWAIT"
HOLD_KEY = "SELECT key FROM holdfast.lock_keys WHERE key = %s FOR UPDATE NOWAIT"
Act = Callable[[Any, "Three"], Awaitable[Any]]


class Three(NamedTuple):
    """The first and the last are held by one worker; the middle one waits for the first."""

    first: Claim
    middle: int
    last: Claim
    pipeline: str


async def _three(conn: Any) -> Three:
    worker, pipeline = await start_worker(conn), Pipeline("three", id=str(uuid4()))
    pipeline.add(NewJob(KIND))
    (first,) = await pipeline.enqueue(conn)
    middle = await add(conn, after=(first.id,))
    last = await add(conn, pipeline_id=pipeline.id)
    return Three(await take(conn, first.id, worker), middle, await take(conn, last, worker), pipeline.id)


ACTS: dict[str, Act] = {
    "a rescue": lambda conn, three: rescue(conn),
    "a keeper that saw its executor die": lambda conn, three: rescue_worker(
        conn, three.first.worker_id, cause="signal", error="killed"
    ),
    "a keeper that gives back": lambda conn, three: release_worker(conn, three.first.worker_id),
    "an abort": lambda conn, three: abort(conn, three.pipeline, actor="somebody"),
}


@pytest.mark.parametrize("name", ACTS)
async def test_rows_are_locked_in_id_order(connect: Any, name: str) -> None:
    conn, acting, other = await connect(), await connect(), await connect()
    three = await _three(conn)
    if name == "a rescue":
        await silence(conn, three.first)

    async with other.transaction():
        await other.execute(HOLD, (three.middle,))
        act = asyncio.create_task(ACTS[name](acting, three))  # type: ignore[arg-type]
        await waits(conn, acting)
        assert await rows(other, HOLD, three.last.id) == [(three.last.id,)]

    await act


async def test_finish_locks_an_older_job_of_its_join_first(connect: Any) -> None:
    conn, acting, other = await connect(), await connect(), await connect()
    older = await add(conn)
    ending = await hold(conn)
    with_a_join = replace(COMPLETED, then=[NewJob(KIND)], join=NewJob(KIND, after=(older,)))

    async with other.transaction():
        await other.execute(HOLD, (older,))
        act = asyncio.create_task(finish(acting, ending, with_a_join))
        await waits(conn, acting)
        assert await rows(other, HOLD, ending.id) == [(ending.id,)]

    await act


async def test_batch_of_ends_locks_rows_in_id_order(connect: Any) -> None:
    conn, acting, other = await connect(), await connect(), await connect()
    worker = await start_worker(conn)
    first, last = await hold(conn, worker=worker), await hold(conn, worker=worker)
    await acting.execute("SET enable_seqscan = off")  # as in every table that is worth an index: two rows are read as they lie

    async with other.transaction():
        await other.execute(HOLD, (first.id,))
        act = asyncio.create_task(complete_plain(acting, [last, first], ['{"of": "last"}', '{"of": "first"}']))
        await waits(conn, acting)
        assert await rows(other, HOLD, last.id) == [(last.id,)]

    assert await act == {first.id, last.id}
    assert await rows(conn, "SELECT id, result->>'of' FROM holdfast.jobs ORDER BY id") == [
        (first.id, "first"),
        (last.id, "last"),
    ]


async def test_finish_locks_keys_of_cancelled_dependants_with_its_own(connect: Any) -> None:
    """A job gives back the key `b` and spoils one that asked for the key `a`: it must not hold `b` while it waits for `a`."""
    conn, acting, other = await connect(), await connect(), await connect()
    failing = await hold(conn, locks=[Lock("b")])
    await add(conn, after=(failing.id,), locks=[Lock("a")])
    await conn.execute("INSERT INTO holdfast.lock_keys VALUES ('a')")

    async with other.transaction():
        await other.execute(HOLD_KEY, ("a",))
        act = asyncio.create_task(end(acting, failing, Fail("no")))
        await waits(conn, acting)
        assert await rows(other, HOLD_KEY, "b") == [("b",)]

    await act


async def test_overdue_submitted_jobs_are_ended_one_by_one(connect: Any) -> None:
    """The first gives back the key `b`, the second `a`: whoever has `a` and wants `b` is not waited for with `b` in hand."""
    conn, acting, other = await connect(), await connect(), await connect()
    worker = await start_worker(conn)
    first, second = await hold(conn, locks=[Lock("b")]), await hold(conn, locks=[Lock("a")])
    for claimed in (first, second):
        await submit(conn, claimed)
    await conn.execute("UPDATE holdfast.jobs SET submitted_at = submitted_at - interval '1 hour'")

    async with other.transaction():
        await other.execute(HOLD_KEY, ("a",))
        act = asyncio.create_task(
            fail_longer_than(acting, worker, kind=KIND, longest=timedelta(minutes=1), error="it took too long")
        )
        await waits(conn, acting)
        assert await rows(other, HOLD_KEY, "b") == [("b",)]

    assert await act == ([first.id, second.id], [])
