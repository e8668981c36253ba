"""An operator takes a job from a silent holder, and only from a silent one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from factories import (
    LEASE,
    add,
    end,
    everything,
    hold,
    holders_of,
    job,
    poll,
    rows,
    silence,
    state_of,
    submit,
    take,
    waits,
)
from holdfast.errors import ClaimLost, NotFound, NotStale
from holdfast.jobs.cancel import cancel
from holdfast.jobs.finish import finish
from holdfast.jobs.model import Lock
from holdfast.jobs.outcome import COMPLETED, Fail
from holdfast.jobs.recover import recover
from holdfast.jobs.renew import renew


async def test_recovered_job_can_be_claimed_immediately(conn: Any) -> None:
    """K-60, K-17."""
    claim = await hold(conn)
    await silence(conn, claim)

    await recover(conn, claim.id, actor="ada", reason="the node is gone")

    found = await job(conn, claim.id)
    assert (found.state, found.attempt_id, found.worker_id, found.run_after) == ("pending", None, None, None)
    with pytest.raises(ClaimLost):
        await end(conn, claim)
    assert (await take(conn, claim.id)).attempt_no == 2, "the count of attempts goes on and never back"


async def test_job_of_a_live_worker_is_not_recovered(conn: Any) -> None:
    """K-61, E-35."""
    claim = await hold(conn)
    await conn.execute("UPDATE holdfast.jobs SET claimed_at = claimed_at - interval '10 days'")
    before = await everything(conn)

    with pytest.raises(NotStale, match=r"is held by worker, whose lease runs for another \d+ s; wait until its lease expires"):
        await recover(conn, claim.id, actor="ada")

    assert await everything(conn) == before


async def _pending(conn: Any) -> int:
    return await add(conn)


async def _submitted(conn: Any) -> int:
    claim = await hold(conn)
    await submit(conn, claim)
    return claim.id


async def _completed(conn: Any) -> int:
    claim = await hold(conn)
    await end(conn, claim)
    return claim.id


async def _failed(conn: Any) -> int:
    claim = await hold(conn)
    await end(conn, claim, Fail("no"))
    return claim.id


async def _cancelled(conn: Any) -> int:
    job_id = await add(conn)
    await cancel(conn, job_id, actor="ada")
    return job_id


@pytest.mark.parametrize("arrange", [_pending, _submitted, _completed, _failed, _cancelled])
async def test_job_without_a_holder_is_not_recovered(conn: Any, arrange: Any) -> None:
    """K-60."""
    job_id = await arrange(conn)
    before = await everything(conn)

    with pytest.raises(NotStale, match="no worker holds it"):
        await recover(conn, job_id, actor="ada")

    assert await everything(conn) == before


async def test_unknown_job_is_not_found(conn: Any) -> None:
    with pytest.raises(NotFound, match="there is no job 999999999"):
        await recover(conn, 999999999, actor="ada")  # type: ignore[arg-type]


async def test_recover_adds_to_budgets_and_records_it(conn: Any) -> None:
    """E-35."""
    claim = await hold(conn, max_attempts=3, max_crashes=3)
    await conn.execute("UPDATE holdfast.jobs SET errors = 2, crashes = 2 WHERE id = %s", [claim.id])
    await silence(conn, claim)

    await recover(conn, claim.id, actor="ada", reason="mended", grant=4)

    found = await job(conn, claim.id)
    assert (found.errors, found.max_attempts, found.crashes, found.max_crashes) == (2, 6, 2, 6)
    ((move, actor, reason, detail, attempt_id),) = await rows(
        conn, "SELECT move, actor, reason, detail, attempt_id::text FROM holdfast.history WHERE job_id = %s", claim.id
    )
    assert (move, actor, reason, detail, attempt_id) == ("recover", "ada", "mended", {"granted": 4}, claim.attempt_id)


async def test_grant_never_lowers_a_budget(conn: Any) -> None:
    claim = await hold(conn, max_attempts=9, max_crashes=9)
    await silence(conn, claim)

    await recover(conn, claim.id, actor="ada", grant=0)

    found = await job(conn, claim.id)
    assert (found.max_attempts, found.max_crashes) == (9, 9)


async def test_recover_releases_locks_except_those_held_since_enqueue(conn: Any) -> None:
    waits, rejects = await hold(conn, locks=(Lock("w"),)), await hold(conn, locks=(Lock("r", when_busy="reject"),))
    for claim in (waits, rejects):
        await silence(conn, claim)
        await recover(conn, claim.id, actor="ada")

    assert await holders_of(conn, "w") == []
    assert await holders_of(conn, "r") == [rejects.id]


async def test_recovered_poll_returns_to_its_engine(conn: Any) -> None:
    claim = await hold(conn)
    await submit(conn, claim)
    looked = await poll(conn, claim.id)
    await silence(conn, looked)

    await recover(conn, claim.id, actor="ada")

    assert await state_of(conn, claim.id) == "submitted"


async def test_recover_skips_a_worker_that_renews_first(connect: Any) -> None:
    """The worker's row is held during the look, and the lease is read as it is then."""
    conn, renewing, operator = await connect(), await connect(), await connect()
    claim = await hold(conn)
    await silence(conn, claim)

    async with renewing.transaction():
        await renew(renewing, claim.worker_id, [claim], lease=LEASE)
        recovering = asyncio.create_task(recover(operator, claim.id, actor="ada"))
        await waits(conn, operator)

    with pytest.raises(NotStale):
        await recovering
    assert (await job(conn, claim.id)).attempt_id == claim.attempt_id


async def test_recover_skips_a_job_that_ends_first(connect: Any) -> None:
    conn, finisher, operator = await connect(), await connect(), await connect()
    claim = await hold(conn)
    await silence(conn, claim)

    async with finisher.transaction():
        await finish(finisher, claim, COMPLETED)
        recovering = asyncio.create_task(recover(operator, claim.id, actor="ada"))
        await waits(conn, operator)

    with pytest.raises(NotStale, match="completed"):
        await recovering
    assert await state_of(conn, claim.id) == "completed"
