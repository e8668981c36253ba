"""Rules of retry, polling and load, seen through a real worker or the harness on a real Postgres."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from factories import HOUR, clock, job, rows
from holdfast import Context, RetryPolicy, Submitted, Worker, WorkerOptions
from holdfast import job as kind_of
from holdfast.jobs.enqueue import enqueue, enqueue_many
from holdfast.jobs.outcome import COLD_START
from holdfast.testing import harness

SECONDS = timedelta(seconds=1)


async def test_cold_start_of_an_engine_is_retried_twice(database: str, conn: Any) -> None:
    """K-41: only timeouts, two retries, five seconds apart."""
    calls: list[int] = []

    async def asleep(ctx: Context) -> str:
        calls.append(ctx.job.attempt_no)
        if len(calls) < 3:
            raise TimeoutError("no answer")
        return "awake"

    kind = kind_of("rules.asleep", retry=COLD_START)(asleep)
    async with harness(database, [kind]) as runner:
        made = await enqueue(conn, kind.new())
        for _ in range(2):
            before = await clock(conn)
            await runner.drain()
            after, found = await clock(conn), await job(conn, made.id)
            assert (found.state, found.cause) == ("pending", "timeout")
            assert before + 5 * SECONDS <= found.run_after <= after + 5 * SECONDS  # type: ignore[operator]
            await runner.move_time(5 * SECONDS)
        await runner.drain()

    assert calls == [1, 2, 3]
    assert (await job(conn, made.id)).result == "awake"


@pytest.mark.parametrize(
    ("error", "attempts", "cause"),
    [(TimeoutError("no answer"), 3, "timeout"), (ConnectionError("timeout: refused"), 1, "permanent")],
    ids=["it never wakes up", "another error, whatever its message"],
)
async def test_cold_start_retries_are_bounded(database: str, conn: Any, error: Exception, attempts: int, cause: str) -> None:
    """K-41: classified by type and not by the word in a message."""

    async def broken() -> None:
        raise error

    kind = kind_of(f"rules.broken.{cause}", retry=COLD_START)(broken)
    async with harness(database, [kind]) as runner:
        made = await enqueue(conn, kind.new())
        for _ in range(5):
            await runner.drain()
            await runner.move_time(5 * SECONDS)

    found = await job(conn, made.id)
    assert (found.state, found.attempt_no, found.cause) == ("failed", attempts, cause)


async def test_poll_handler_that_always_raises_fails_the_job(database: str, conn: Any) -> None:
    """The budget of its kind's policy, through the same code that a worker runs."""

    async def export(ctx: Context) -> Submitted:
        if ctx.job.is_poll:
            raise ConnectionError("wrong password")
        return Submitted("query-1")

    kind = kind_of("rules.export", retry=RetryPolicy(poll_errors=4))(export)
    async with harness(database, [kind]) as runner:
        made = await enqueue(conn, kind.new())
        for _ in range(10):
            await runner.drain()
            await runner.move_time(HOUR)

    found = await job(conn, made.id)
    assert (found.state, found.cause, found.attempt_no) == ("failed", "poll", 5)


async def test_worker_ends_overdue_submitted_jobs_of_unknown_kinds(database: str, conn: Any) -> None:
    async def unrelated() -> None: ...

    kind = kind_of("rules.unrelated")(unrelated)
    await conn.execute(
        """INSERT INTO holdfast.jobs (kind, state, handle, submitted_at, next_poll_at, max_runtime)
           VALUES ('gone', 'submitted', '1', clock_timestamp() - interval '2 h', clock_timestamp(), interval '1 h')"""
    )
    worker = Worker(database, [kind], WorkerOptions(beat=timedelta(milliseconds=100)))
    running = asyncio.create_task(worker.run())
    async with asyncio.timeout(120):
        while await rows(conn, "SELECT state, cause FROM holdfast.jobs") != [("failed", "max_runtime")]:
            await asyncio.sleep(0.02)
    worker.stop()
    await asyncio.wait_for(running, 120)


async def test_worker_never_exceeds_its_concurrency(database: str, conn: Any) -> None:
    """E-32: the document's poller started ten more tasks every ten seconds, whatever was running."""
    now, most, may_end = 0, 0, asyncio.Event()

    async def counted() -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        if now == 3:
            may_end.set()
        await may_end.wait()
        await asyncio.sleep(0)
        now -= 1

    kind = kind_of("rules.counted")(counted)
    await enqueue_many(conn, [kind.new() for _ in range(60)])

    worker = Worker(database, [kind], WorkerOptions(concurrency=3, beat=timedelta(milliseconds=100)))
    await asyncio.wait_for(worker.run(until_empty=True), 120)

    assert most == 3
    assert await rows(conn, "SELECT state, count(*) FROM holdfast.jobs GROUP BY 1") == [("completed", 60)]


async def test_two_workers_share_pending_jobs_without_overlap(database: str, conn: Any) -> None:
    """E-32: the locks of the document's poller ended with its SELECT, so every pod scheduled the same ten jobs."""
    started: list[int] = []

    async def noted(number: int) -> None:
        started.append(number)

    kind = kind_of("rules.noted")(noted)
    await enqueue_many(conn, [kind.new(number=number) for number in range(200)])

    workers = [Worker(database, [kind], WorkerOptions(concurrency=2, largest_batch=10)) for _ in range(2)]
    async with asyncio.timeout(120):
        await asyncio.gather(*(worker.run(until_empty=True) for worker in workers))

    assert sorted(started) == list(range(200))


def test_silent_holder_is_noticed_within_half_a_minute_by_default() -> None:
    """K-21, E-37: the document's heartbeat was a quarter of an hour, its timeout an hour. Promise 4: lease 30, beat 5."""
    options = WorkerOptions()

    assert (options.beat, options.lease) == (5 * SECONDS, 30 * SECONDS)
    assert options.beat * 3 <= options.lease, "two beats may be lost"
