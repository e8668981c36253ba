"""A slow `publish` does not block other jobs, neither by its lock nor by its slot.

`publish` stands still where the test wants it. Everybody else is told to fail rather than to wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from factories import add, end, hold, holders_of, never_wait, rows, start_worker, state_of, take, value
from holdfast.errors import CancelRequested, LockBusy
from holdfast.jobs import progress
from holdfast.jobs.cancel import cancel
from holdfast.jobs.claim import claim, claim_by_id, claim_plain, claim_tied
from holdfast.jobs.enqueue import enqueue
from holdfast.jobs.model import Claim, JobId, Lock, NewJob
from holdfast.jobs.outcome import Done

WAIT, REJECT = Lock("t"), Lock("t", when_busy="reject")


@asynccontextmanager
async def publishing(conn: Any, held: Claim) -> AsyncIterator[None]:
    """The job is in the middle of its `publish` for as long as the block lasts; afterwards it has ended."""
    async with ending_with(conn, held, "publish"):
        yield


@asynccontextmanager
async def ending_with(conn: Any, held: Claim, way: str, **done: Any) -> AsyncIterator[None]:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def write(_: Any) -> None:
        begun.set()
        await go_on.wait()

    ending = asyncio.create_task(end(conn, held, Done(**{way: write}, **done)))
    async with asyncio.timeout(60):
        await begun.wait()
    try:
        yield
    finally:
        go_on.set()
        await ending


@pytest.mark.parametrize("tie", [{"locks": (WAIT,)}, {"slot_key": "s"}], ids=["lock", "slot"])
async def test_claim_does_not_wait_for_a_publishing_holder_and_is_woken_by_its_end(connect: Any, tie: Any) -> None:
    conn, acting = await connect(), await connect()
    held = await hold(conn, **tie)
    waiting = await add(conn, **tie)
    await never_wait(conn)

    async with publishing(acting, held):
        assert await claim_by_id(conn, await start_worker(conn), waiting) is None
        assert await state_of(conn, waiting) == "blocked"

    assert await state_of(conn, waiting) == "pending"
    assert (await take(conn, waiting)).id == waiting


@pytest.mark.parametrize("tie", [{"locks": (WAIT,)}, {"slot_key": "s"}], ids=["lock", "slot"])
async def test_other_jobs_of_a_batch_do_not_wait_for_a_publish(connect: Any, tie: Any) -> None:
    conn, acting = await connect(), await connect()
    held = await hold(conn, **tie)
    await add(conn, **tie)
    plain, other = await add(conn), await add(conn, locks=(Lock("free"),))
    await never_wait(conn)

    async with publishing(acting, held):
        claims = await claim(conn, await start_worker(conn), kinds=["k"])

    assert {one.id for one in claims} == {plain, other}


async def test_enqueue_with_reject_does_not_wait_for_a_publish(connect: Any) -> None:
    conn, acting = await connect(), await connect()
    held = await hold(conn, locks=(REJECT,))
    await never_wait(conn)

    async with publishing(acting, held):
        with pytest.raises(LockBusy):
            await enqueue(conn, NewJob("k", locks=(REJECT,)))

    assert (await enqueue(conn, NewJob("k", locks=(REJECT,)))).created


async def test_publish_can_enqueue_a_job_with_the_released_lock(conn: Any) -> None:
    """The places are given back after `publish`, in the same transaction."""
    held = await hold(conn, locks=(REJECT,))
    made: list[JobId] = []

    async def publish(inside: Any) -> None:
        made.append(await add(inside, locks=(REJECT,)))

    await end(conn, held, Done(publish=publish))

    assert await holders_of(conn, "t") == made
    assert (await take(conn, made[0])).id == made[0]


async def test_child_takes_over_the_permit_of_its_parent(conn: Any) -> None:
    held = await hold(conn, locks=(REJECT,))
    waiting = await add(conn, locks=(WAIT,))
    assert await claim_by_id(conn, await start_worker(conn), waiting) is None

    await end(conn, held, Done(then=[NewJob("k", locks=(REJECT,))]))

    child = await value(conn, "SELECT id FROM holdfast.jobs WHERE parent_id = %s", held.id)
    assert await holders_of(conn, "t") == [child]
    assert await state_of(conn, waiting) == "blocked"
    await end(conn, await take(conn, child))
    assert await state_of(conn, waiting) == "pending"


async def test_only_one_child_takes_over_the_permit(conn: Any) -> None:
    held = await hold(conn, locks=(REJECT,))

    with pytest.raises(LockBusy):
        await end(conn, held, Done(then=[NewJob("k", locks=(REJECT,)), NewJob("k", locks=(REJECT,))]))

    assert await holders_of(conn, "t") == [held.id]


async def test_plain_jobs_are_claimed_while_a_lock_key_is_held(connect: Any) -> None:
    """Whoever enqueues with `reject` has the key for as long as their own transaction lasts."""
    conn, enqueueing = await connect(), await connect()
    tied, plain = await add(conn, locks=(WAIT,)), await add(conn)
    worker = await start_worker(conn)

    async with enqueueing.transaction():
        await add(enqueueing, locks=(REJECT,))
        found = await claim_plain(conn, worker, kinds=["k"])
        another = await add(conn)
        in_one_go = await claim(conn, worker, kinds=["k"])

    assert ([one.id for one in found.claims], found.tied) == ([plain], [tied])
    assert [one.id for one in in_one_go] == [another], "it has claims in hand, and does not wait to the end"
    assert await rows(conn, "SELECT state, attempt_no FROM holdfast.jobs WHERE id = %s", tied) == [("pending", 0)]
    assert await claim_tied(conn, worker, [tied]) == []
    assert await state_of(conn, tied) == "blocked"


async def test_job_that_prepares_its_end_reports_progress_without_blocking(connect: Any) -> None:
    """Its row, its slot and the slots of its children are free until the end."""
    conn, acting = await connect(), await connect()
    held = await hold(conn, slot_key="s")
    await never_wait(conn)

    async with ending_with(acting, held, "prepare", then=[NewJob("k", slot_key="child")]):
        await progress.report(conn, held, progress=0.7, message="700 of 1,000 rows")
        other = await add(conn, slot_key="child")
        assert await rows(conn, "SELECT state, progress FROM holdfast.jobs WHERE id = %s", held.id) == [("running", 0.7)]

    assert await state_of(conn, held.id) == "completed"
    assert await value(conn, "SELECT count(*) FROM holdfast.jobs WHERE parent_id = %s", held.id) == 0, "merged with the other"
    assert await state_of(conn, other) == "pending"


async def test_job_cancelled_while_preparing_its_end_writes_nothing(connect: Any) -> None:
    conn, acting = await connect(), await connect()
    held = await hold(conn)

    async def prepare(inside: Any) -> None:
        await inside.execute("INSERT INTO holdfast.controls (kind, reason) VALUES ('published', 'half')")
        await cancel(conn, held.id, actor="ada", reason="wrong file")
        await progress.report(conn, held, progress=0.5)

    with pytest.raises(CancelRequested) as asked:
        await end(acting, held, Done(prepare=prepare))
    await end(acting, held, asked.value)

    assert await state_of(conn, held.id) == "cancelled"
    assert await value(conn, "SELECT count(*) FROM holdfast.controls") == 0
