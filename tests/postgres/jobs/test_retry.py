"""Retries: when, how often, and that a job always ends."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from factories import HOUR, add, clock, end, hold, job, lose, make_due, moves_of, rows, silence, start_worker, state_of, take
from holdfast.jobs.claim import claim, claim_by_id
from holdfast.jobs.finish import finish
from holdfast.jobs.outcome import Backoff, Permanent, Retry, RetryPolicy, Snooze, decide, released
from holdfast.jobs.promote import promote_due
from holdfast.jobs.recover import recover


async def test_unexpected_error_is_retried_after_a_delay(conn: Any) -> None:
    """E-36: transient errors are retried with backoff."""
    claimed = await hold(conn)
    policy = RetryPolicy(Backoff(first=HOUR, longest=HOUR))
    before = await clock(conn)

    await finish(conn, claimed, decide(claimed, ConnectionError("reset"), policy, chance=lambda: 1.0))

    after, found = await clock(conn), await job(conn, claimed.id)
    assert (found.state, found.errors) == ("pending", 1)
    assert before + HOUR <= found.run_after <= after + HOUR  # type: ignore[operator]
    assert await claim_by_id(conn, await start_worker(conn), claimed.id) is None
    assert await claim(conn, await start_worker(conn), kinds=["k"]) == []


async def test_job_fails_after_its_last_attempt(conn: Any) -> None:
    """K-33, K-04: max_attempts is the number of attempts that may end in an error."""
    job_id = await add(conn, max_attempts=3)
    for _ in range(3):
        await end(conn, await take(conn, job_id), ValueError("odd"))
        await make_due(conn, job_id)

    found = await job(conn, job_id)
    assert (found.state, found.errors, found.attempt_no) == ("failed", 3, 3)
    assert await claim_by_id(conn, await start_worker(conn), job_id) is None
    assert await moves_of(conn, job_id) == ["retry", "retry", "fail"]


async def test_permanent_error_is_not_retried(conn: Any) -> None:
    claimed = await hold(conn, max_attempts=9)

    await end(conn, claimed, Permanent("no such table"))

    assert (await job(conn, claimed.id)).state == "failed"


async def test_snooze_and_release_use_no_budget(conn: Any) -> None:
    """P28: attempts are counted on, budgets are apart."""
    job_id = await add(conn, max_attempts=1, max_crashes=1)
    for _ in range(5):
        await end(conn, await take(conn, job_id), Snooze(timedelta(seconds=1)))
        await make_due(conn, job_id)
        claimed = await take(conn, job_id)
        await finish(conn, claimed, released("shutdown"))

    found = await job(conn, job_id)
    assert (found.state, found.attempt_no, found.errors, found.crashes) == ("pending", 10, 0, 0)


async def test_retry_without_delay_is_on_the_claim_index_immediately(conn: Any) -> None:
    claimed = await hold(conn)

    await end(conn, claimed, Retry("again", timedelta(0)))

    assert [c.id for c in await claim(conn, await start_worker(conn), kinds=["k"])] == [claimed.id]


async def test_retry_is_promoted_when_due(conn: Any) -> None:
    claimed = await hold(conn)
    await end(conn, claimed, Retry("later", HOUR))
    await conn.execute("UPDATE holdfast.jobs SET run_after = clock_timestamp() WHERE id = %s", [claimed.id])

    assert await promote_due(conn) == [claimed.id]

    assert (await take(conn, claimed.id)).errors == 1


@pytest.mark.parametrize(("error", "cause"), [(TimeoutError("slow"), "timeout"), (ValueError("timeout"), "error")])
async def test_the_cause_of_an_error_is_its_type(conn: Any, error: Exception, cause: str) -> None:
    """E-06 n."""
    claimed = await hold(conn)

    await end(conn, claimed, error)

    assert (await job(conn, claimed.id)).cause == cause


async def test_the_traceback_of_every_attempt_is_in_the_history(conn: Any) -> None:
    job_id = await add(conn)
    for message in ("first", "second"):
        await end(conn, await take(conn, job_id), ValueError(message))
        await make_due(conn, job_id)

    found = await rows(conn, "SELECT reason, detail->>'traceback' FROM holdfast.history WHERE job_id = %s ORDER BY id", job_id)
    assert [reason for reason, _ in found] == ["ValueError: first", "ValueError: second"]
    assert all(reason in trace for reason, trace in found)


async def test_success_after_errors_completes_the_job(conn: Any) -> None:
    job_id = await add(conn)
    await end(conn, await take(conn, job_id), ValueError("odd"))
    await make_due(conn, job_id)

    await end(conn, await take(conn, job_id))

    found = await job(conn, job_id)
    assert (found.state, found.errors, found.attempt_no) == ("completed", 1, 2)
    assert await state_of(conn, job_id) == "completed"


async def _retried(conn: Any, claimed: Any) -> None:
    await end(conn, claimed, Retry("busy", timedelta(0)))


async def _given_back(conn: Any, claimed: Any) -> None:
    await finish(conn, claimed, released("shutdown"))


async def _rescued(conn: Any, claimed: Any) -> None:
    await lose(conn, claimed)


async def _recovered(conn: Any, claimed: Any) -> None:
    await silence(conn, claimed)
    await recover(conn, claimed.id, actor="ada")


@pytest.mark.parametrize("come_back", [_retried, _given_back, _rescued, _recovered])
async def test_retry_of_a_unique_job_coexists_with_a_newer_one(conn: Any, come_back: Any) -> None:
    claimed = await hold(conn, unique_key="u")
    twin = await add(conn, unique_key="u")

    await come_back(conn, claimed)

    assert (await state_of(conn, claimed.id), await state_of(conn, twin)) == ("pending", "pending")
    assert {c.id for c in await claim(conn, await start_worker(conn), kinds=["k"])} == {claimed.id, twin}
