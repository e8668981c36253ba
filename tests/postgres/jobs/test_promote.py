"""Delayed jobs are put on the claim index when they are due."""

from __future__ import annotations

from typing import Any

from factories import HOUR, add, end, everything, hold, never_wait, rows, submit
from holdfast.jobs.enqueue import enqueue_many
from holdfast.jobs.model import NewJob
from holdfast.jobs.outcome import Fail, Retry
from holdfast.jobs.promote import promote_due


async def _all_due(conn: Any) -> None:
    await conn.execute("UPDATE holdfast.jobs SET run_after = clock_timestamp() WHERE run_after IS NOT NULL")


async def test_only_due_jobs_are_promoted(conn: Any) -> None:
    """K-34."""
    due, later = await add(conn, run_after=HOUR), await add(conn, run_after=HOUR)
    await conn.execute("UPDATE holdfast.jobs SET run_after = clock_timestamp() WHERE id = %s", [due])

    assert await promote_due(conn) == [due]

    assert await rows(conn, "SELECT id FROM holdfast.jobs WHERE run_after IS NOT NULL") == [(later,)]


async def test_promote_changes_only_the_time(conn: Any) -> None:
    job_id = await add(conn, run_after=HOUR, priority=4, payload={"a": 1})
    await _all_due(conn)
    columns = "SELECT kind, state, priority, payload, attempt_no, errors, waiting_for FROM holdfast.jobs WHERE id = %s"
    before = await rows(conn, columns, job_id)

    await promote_due(conn)

    assert await rows(conn, columns, job_id) == before
    assert await rows(conn, "SELECT * FROM holdfast.history") == []


async def test_promote_goes_in_batches_most_overdue_first(conn: Any) -> None:
    made = await enqueue_many(conn, [NewJob("k", run_after=HOUR) for _ in range(5)])
    await _all_due(conn)
    await conn.execute("UPDATE holdfast.jobs SET run_after = run_after - interval '1 h' WHERE id = %s", [made[3].id])

    first = await promote_due(conn, limit=1)
    rest = await promote_due(conn)

    assert first == [made[3].id]
    assert len(rest) == 4


async def test_promote_notifies_idle_workers(connect: Any) -> None:
    listener, conn = await connect(), await connect()
    await enqueue_many(conn, [NewJob("k", queue=queue, run_after=HOUR) for queue in ("a", "b", "b")])
    await _all_due(conn)
    await listener.execute("LISTEN holdfast")

    await promote_due(conn)

    assert sorted([hint.payload async for hint in listener.notifies(timeout=30, stop_after=2)]) == ["a", "b"]


async def test_concurrent_promotes_do_not_block_each_other(connect: Any) -> None:
    conn, other = await connect(), await connect()
    held, free = await add(conn, run_after=HOUR), await add(conn, run_after=HOUR)
    await _all_due(conn)
    await never_wait(conn)

    async with other.transaction():
        await other.execute("SELECT FROM holdfast.jobs WHERE id = %s FOR UPDATE", [held])
        assert await promote_due(conn) == [free]


async def test_promote_skips_jobs_that_are_not_pending(conn: Any) -> None:
    await submit(conn, await hold(conn))
    await end(conn, await hold(conn), Fail("no"))
    await hold(conn)
    await add(conn, after=(await add(conn),), run_after=HOUR)
    await conn.execute("UPDATE holdfast.jobs SET run_after = clock_timestamp() - interval '1 s' WHERE state = 'blocked'")
    before = await everything(conn)

    assert await promote_due(conn) == []

    assert await everything(conn) == before


async def test_retry_is_promoted_like_any_delayed_job(conn: Any) -> None:
    claim = await hold(conn)
    await end(conn, claim, Retry("later", HOUR))
    await _all_due(conn)

    assert await promote_due(conn) == [claim.id]
