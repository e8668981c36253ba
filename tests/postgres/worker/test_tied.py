"""Jobs that need a lock or a slot do not keep a worker from the others."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from factories import add, state_of, value
from holdfast import Worker, WorkerOptions
from holdfast.errors import UsageError
from holdfast.jobs.model import Lock
from holdfast.worker.kinds import Job, job
from workers import beside, until

QUICK = WorkerOptions(concurrency=4, beat=timedelta(milliseconds=200), lease=timedelta(minutes=2), grace=timedelta(seconds=5))
WAIT, REJECT = Lock("t"), Lock("t", when_busy="reject")
CLAIM_WAITS = """
    SELECT count(*) FROM pg_stat_activity
    WHERE wait_event_type = 'Lock' AND query LIKE '%%lock_keys%%' AND datname = current_database()
"""


async def test_plain_jobs_run_while_a_tied_job_waits_for_its_key(database: str, connect: Any) -> None:
    conn, enqueueing = await connect(), await connect()

    async def quick() -> None:
        """Nothing."""

    kind = job("k")(quick)
    async with enqueueing.transaction():
        await add(enqueueing, "other", locks=(REJECT,))  # the key is theirs until they commit
        async with working(database, kind):
            tied = await add(conn, locks=(WAIT,))

            async def waits() -> bool:
                return bool(await value(conn, CLAIM_WAITS))

            await until(waits)
            for _ in range(5):
                plain = await add(conn)
                await until(lambda plain=plain: _is(conn, plain, "completed"))  # type: ignore[misc]
            assert await state_of(conn, tied) == "pending"
            await enqueueing.execute("ROLLBACK")
            await until(lambda: _is(conn, tied, "completed"))


async def test_jobs_behind_blocked_ones_are_claimed_between_heartbeats(database: str, connect: Any) -> None:
    """A whole batch of jobs whose lock is busy leaves the lanes free for what comes after them."""
    conn = await connect()
    gate = asyncio.Event()

    async def held() -> None:
        await gate.wait()

    async def quick() -> None:
        """Nothing."""

    options = replace(QUICK, concurrency=3, beat=QUICK.lease / 2)
    async with working(database, job("held")(held), job("k")(quick), options=options):
        holder = await add(conn, "held", locks=(WAIT,))
        await until(lambda: _is(conn, holder, "running"))
        async with conn.transaction():  # one hint for all
            blocked = [await add(conn, locks=(WAIT,)) for _ in range(4)]
            plain = await add(conn)
        async with asyncio.timeout(options.beat.total_seconds() / 2):
            await until(lambda: _is(conn, plain, "completed"))
        assert {await state_of(conn, one) for one in blocked} == {"blocked"}
        gate.set()
        for one in blocked:
            await until(lambda one=one: _is(conn, one, "completed"))  # type: ignore[misc]


async def test_worker_with_one_free_lane_claims_one_job(database: str, connect: Any) -> None:
    conn = await connect()
    ran: list[int] = []

    async def quick() -> None:
        ran.append(1)

    jobs = [await add(conn, locks=(WAIT,)), await add(conn), await add(conn)]
    options = replace(QUICK, most=1)
    await asyncio.wait_for(Worker(database, [job("k")(quick)], options).run(until_empty=True), 60)

    assert len(ran) == 1
    assert [await state_of(conn, one) for one in jobs].count("completed") == 1


async def test_a_worker_runs_once(database: str) -> None:
    async def quick() -> None:
        """Nothing."""

    worker = Worker(database, [job("k")(quick)], QUICK)
    await asyncio.wait_for(worker.run(until_empty=True), 60)

    with pytest.raises(UsageError, match="make a new Worker for every run"):
        await worker.run(until_empty=True)


def working(database: str, *kinds: Job[..., Any], options: WorkerOptions = QUICK) -> AbstractAsyncContextManager[Worker]:
    return beside(Worker(database, kinds, options))


async def _is(conn: Any, job_id: int, state: str) -> bool:
    return await state_of(conn, job_id) == state
