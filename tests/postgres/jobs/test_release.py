"""Release the jobs of a worker that must exit: neither an error nor a crash is counted."""

from __future__ import annotations

from datetime import timedelta

import pytest

from factories import (
    LEASE,
    Conn,
    add,
    column,
    end,
    everything,
    hold,
    holders_of,
    job,
    moves_of,
    poll,
    start_worker,
    state_of,
    submit,
    take,
    value,
)
from holdfast.errors import ClaimLost
from holdfast.jobs.cancel import cancel
from holdfast.jobs.model import Lock
from holdfast.jobs.release import release_worker
from holdfast.jobs.renew import renew_leases, resign


async def test_released_job_is_pending_and_nothing_is_counted(conn: Conn):
    claim = await hold(conn)

    given = await release_worker(conn, claim.worker_id)

    assert (given.released, given.failed) == ([claim.id], [])
    found = await job(conn, claim.id)
    assert (found.state, found.errors, found.crashes, found.attempt_no) == ("pending", 0, 0, 1)
    assert await moves_of(conn, claim.id) == ["release"]
    assert await value(conn, "SELECT reason FROM holdfast.history") == "shutdown"
    assert (await take(conn, claim.id)).attempt_no == 2


async def test_released_attempt_can_no_longer_write(conn: Conn):
    claim = await hold(conn)
    await release_worker(conn, claim.worker_id)
    before = await everything(conn)

    with pytest.raises(ClaimLost):
        await end(conn, claim)

    assert await everything(conn) == before


async def test_k_65_fail_on_shutdown_uses_the_documented_message(conn: Conn):
    """K-65: fenced failed write and unlock; it does not come back by itself."""
    claim = await hold(conn, "strict", locks=(Lock("table"),))

    given = await release_worker(conn, claim.worker_id, failing=["strict"])

    assert given.failed == [claim.id]
    found = await job(conn, claim.id)
    assert (found.state, found.error, found.errors) == ("failed", "Worker received SIGTERM", 1)
    assert await column(conn, claim.id, "cause") == "shutdown"
    assert await holders_of(conn, "table") == []
    assert await moves_of(conn, claim.id) == ["fail"]


async def test_unstarted_job_is_released_even_with_fail_on_shutdown(conn: Conn):
    worker = await start_worker(conn)
    begun, waiting = await hold(conn, "strict", worker=worker), await hold(conn, "strict", worker=worker)

    given = await release_worker(conn, worker, failing=["strict"], begun=[begun.fence_token])

    assert (given.released, given.failed) == ([waiting.id], [begun.id])


async def test_lost_attempt_that_still_runs_does_not_count_as_the_start_of_the_next(conn: Conn):
    """The process lost the job, still runs it, and has claimed it again: the second attempt waits for a lane."""
    worker = await start_worker(conn)
    lost = await hold(conn, "strict", worker=worker)
    await release_worker(conn, worker)
    again = await take(conn, lost.id, worker)

    given = await release_worker(conn, worker, failing=["strict"], begun=[lost.fence_token])

    assert (given.released, given.failed) == ([again.id], [])


async def test_locks_of_a_released_job_are_free_for_others(conn: Conn):
    claim = await hold(conn, locks=(Lock("table"),))

    await release_worker(conn, claim.worker_id)

    assert await holders_of(conn, "table") == []


async def test_released_poll_stays_submitted_and_is_due_immediately(conn: Conn):
    claim = await hold(conn, "strict")
    await submit(conn, claim)
    asking = await poll(conn, claim.id, kind="strict")

    given = await release_worker(conn, asking.worker_id, failing=["strict"])

    assert given.released == [claim.id]
    assert await state_of(conn, claim.id) == "submitted"
    assert await column(conn, claim.id, "next_poll_at <= clock_timestamp()")
    assert await column(conn, claim.id, "handle") == "query-1"


async def test_release_cancels_a_job_whose_cancellation_was_requested(conn: Conn):
    claim = await hold(conn)
    await cancel(conn, claim.id, actor="somebody", reason="not needed")

    await release_worker(conn, claim.worker_id)

    assert await state_of(conn, claim.id) == "cancelled"


async def test_release_does_not_affect_ended_jobs_or_other_attempts(conn: Conn):
    worker = await start_worker(conn)
    done, theirs, waiting = await hold(conn, worker=worker), await hold(conn), await add(conn)
    await end(conn, done)
    before = await everything(conn)

    given = await release_worker(conn, worker)

    assert (given.released, given.failed) == ([], [])
    assert await everything(conn) == before
    assert [await state_of(conn, i) for i in (done.id, theirs.id, waiting)] == ["completed", "running", "pending"]


async def test_keeper_renews_many_leases_except_those_of_resigned_workers(conn: Conn):
    first, second, gone = [await start_worker(conn, lease=timedelta(seconds=1)) for _ in range(3)]
    await resign(conn, gone)

    assert await renew_leases(conn, [first, second, gone], lease=LEASE) == {first, second}

    living = await value(conn, "SELECT count(*) FROM holdfast.workers WHERE lease_until > clock_timestamp() + interval '4 min'")
    assert living == 2
