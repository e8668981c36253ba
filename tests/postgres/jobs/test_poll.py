"""External engines: submit the work, poll at persisted times, and never poll after the end."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from factories import (
    HOUR,
    add,
    clock,
    column,
    end,
    everything,
    hold,
    holders_of,
    job,
    lose,
    moves_of,
    never_wait,
    poll,
    rows,
    start_worker,
    state_of,
    submit,
    take,
    together,
    value,
)
from holdfast.jobs import effects
from holdfast.jobs.cancel import cancel
from holdfast.jobs.finish import finish
from holdfast.jobs.model import Claim, Lock
from holdfast.jobs.outcome import Done, Fail, Permanent, Retry, RetryPolicy, Snooze, Submitted, decide, released_poll
from holdfast.jobs.poll import claim_to_poll, fail_overdue
from holdfast.jobs.rerun import rerun


async def _submitted(conn: Any, handle: Any = "query-1", **fields: Any) -> Claim:
    claim = await hold(conn, **fields)
    await submit(conn, claim, handle)
    return claim


async def _all_due(conn: Any) -> None:
    await conn.execute("UPDATE holdfast.jobs SET next_poll_at = clock_timestamp() WHERE next_poll_at IS NOT NULL")


async def test_submitted_job_holds_no_worker_and_has_a_first_poll_time(conn: Any) -> None:
    """K-36: two seconds after the submit, with number one."""
    claim = await hold(conn)
    before = await clock(conn)

    await submit(conn, claim, {"query": "q1", "next_uri": "http://engine/1"})

    after = await clock(conn)
    found = await job(conn, claim.id)
    assert (found.state, found.attempt_id, found.worker_id) == ("submitted", None, None)
    assert (found.handle, found.poll_count) == ({"query": "q1", "next_uri": "http://engine/1"}, 1)
    assert before + timedelta(seconds=2) <= found.next_poll_at <= after + timedelta(seconds=2)  # type: ignore[operator]
    assert before <= await column(conn, claim.id, "submitted_at") <= after


async def test_poll_delays_follow_the_backoff_table_and_survive_crashes(connect: Any) -> None:
    """K-35, K-36, E-05: the whole of the backoff is on the row; every look here comes from another connection."""
    conn = await connect()
    claim = await _submitted(conn)
    first_submit = await column(conn, claim.id, "submitted_at")
    for delay in (3, 5, 8, 13, 21, 34, 55, 89, 90, 90, 90, 90):
        other = await connect()
        looked = await poll(other, claim.id)
        before = await clock(other)
        await end(other, looked, Submitted("query-1"))
        after, found = await clock(other), await job(other, claim.id)
        await other.close()
        assert before <= found.next_poll_at - timedelta(seconds=delay) <= after  # type: ignore[operator]

    assert (await job(conn, claim.id)).poll_count == 13
    assert await column(conn, claim.id, "submitted_at") == first_submit, "it was submitted once"


async def test_engine_status_is_stored_after_each_poll(conn: Any) -> None:
    """K-40."""
    claim = await _submitted(conn, {"next_uri": "1"})

    looked = await poll(conn, claim.id)
    await end(conn, looked, Submitted({"next_uri": "2"}))

    assert looked.handle == {"next_uri": "1"}
    assert (await poll(conn, claim.id)).handle == {"next_uri": "2"}


async def test_engine_can_set_the_next_poll_time(conn: Any) -> None:
    claim = await hold(conn)
    before = await clock(conn)

    await submit(conn, claim, "q", poll_after=HOUR)

    assert (await job(conn, claim.id)).next_poll_at >= before + HOUR  # type: ignore[operator]


async def test_poll_is_claimed_like_any_job(conn: Any) -> None:
    """K-37, E-04: fenced, counted, and in nobody else's hands."""
    claim = await _submitted(conn)
    worker = await start_worker(conn)

    looked = await poll(conn, claim.id, worker=worker)

    found = await job(conn, claim.id)
    assert looked.is_poll
    assert (looked.attempt_no, looked.poll_count) == (2, 1)
    assert (found.state, found.worker_id, found.attempt_id) == ("running", worker, looked.attempt_id)
    assert looked.attempt_id != claim.attempt_id
    assert looked.fence_token > claim.fence_token


async def test_poll_is_not_claimed_before_its_time(conn: Any) -> None:
    """K-37."""
    claim = await hold(conn)
    await submit(conn, claim, poll_after=HOUR)
    before = await everything(conn)
    worker = await start_worker(conn)

    assert await claim_to_poll(conn, worker, kinds=["k"]) == []

    await conn.execute("DELETE FROM holdfast.workers WHERE id = %s", [worker])
    assert await everything(conn) == before
    assert await state_of(conn, claim.id) == "submitted"


async def test_polls_are_claimed_by_kind_and_queue_most_overdue_first(conn: Any) -> None:
    jobs = [await _submitted(conn) for _ in range(3)]
    await _submitted(conn, kind="other")
    await _submitted(conn, queue="other")
    await _all_due(conn)
    await conn.execute("UPDATE holdfast.jobs SET next_poll_at = next_poll_at - interval '1 h' WHERE id = %s", [jobs[1].id])
    worker = await start_worker(conn)

    first = await claim_to_poll(conn, worker, kinds=["k"], limit=1)
    rest = await claim_to_poll(conn, worker, kinds=["k"])

    assert [c.id for c in first] == [jobs[1].id]
    assert sorted(c.id for c in rest) == [jobs[0].id, jobs[2].id]


async def test_default_poll_batch_size_is_fifty(conn: Any) -> None:
    """K-37."""
    await conn.execute(
        """INSERT INTO holdfast.jobs (kind, state, handle, next_poll_at)
           SELECT 'k', 'submitted', '1', clock_timestamp() FROM generate_series(1, 55)"""
    )

    claims = await claim_to_poll(conn, await start_worker(conn), kinds=["k"])

    assert len(claims) == 50
    assert await value(conn, "SELECT count(*) FROM holdfast.jobs WHERE state = 'running'") == 50


async def test_two_pollers_never_claim_the_same_job(connect: Any) -> None:
    conn, other = await connect(), await connect()
    claim = await _submitted(conn)
    await _all_due(conn)
    worker = await start_worker(conn)
    await never_wait(conn)

    async with other.transaction():
        looked = await claim_to_poll(other, worker, kinds=["k"])
        meanwhile = await claim_to_poll(conn, worker, kinds=["k"])

    assert [c.id for c in looked] == [claim.id]
    assert meanwhile == []


async def test_claim_never_takes_submitted_jobs(conn: Any) -> None:
    """A submitted job is never reset to be run again."""
    from holdfast.jobs.claim import claim

    await _submitted(conn)
    await _all_due(conn)

    assert await claim(conn, await start_worker(conn), kinds=["k"]) == []


@pytest.mark.parametrize("error", [ConnectionError("reset"), TimeoutError("slow"), ValueError("not JSON")])
async def test_transient_poll_error_keeps_the_job_submitted(conn: Any, error: Exception) -> None:
    """K-38: also far beyond the error budget of its attempts, for nothing is known about the work."""
    claim = await _submitted(conn, {"next_uri": "1"}, max_attempts=1)
    same = "SELECT state, handle, poll_count, errors, crashes, submitted_at, finished_at FROM holdfast.jobs WHERE id = %s"
    before = await rows(conn, same, claim.id)

    for _ in range(3):
        await end(conn, await poll(conn, claim.id), error)

    assert await rows(conn, same, claim.id) == before


async def test_permanent_poll_error_fails_the_job(conn: Any) -> None:
    claim = await _submitted(conn)

    await end(conn, await poll(conn, claim.id), Permanent("query was killed"))

    assert await state_of(conn, claim.id) == "failed"


@pytest.mark.parametrize("ended_with", [Done("rows"), Fail("no")])
async def test_ended_job_is_not_polled(conn: Any, ended_with: object) -> None:
    """K-39."""
    claim = await _submitted(conn)
    await end(conn, await poll(conn, claim.id), ended_with)
    await _all_due(conn)

    assert await claim_to_poll(conn, await start_worker(conn), kinds=["k"]) == []


async def test_cancelled_job_is_not_polled(conn: Any) -> None:
    claim = await _submitted(conn)
    await cancel(conn, claim.id, actor="ada")
    await _all_due(conn)

    assert await state_of(conn, claim.id) == "cancelled"
    assert await claim_to_poll(conn, await start_worker(conn), kinds=["k"]) == []


async def test_rescued_poll_returns_to_its_engine(conn: Any) -> None:
    claim = await _submitted(conn, {"next_uri": "1"})
    looked = await poll(conn, claim.id)

    await lose(conn, looked)

    found = await job(conn, claim.id)
    assert (found.state, found.handle, found.poll_count, found.crashes) == ("submitted", {"next_uri": "1"}, 1, 1)
    assert found.next_poll_at <= await clock(conn)  # type: ignore[operator]
    assert [c.id for c in await claim_to_poll(conn, await start_worker(conn), kinds=["k"])] == [claim.id]


async def test_released_poll_uses_no_budget(conn: Any) -> None:
    claim = await _submitted(conn)
    looked = await poll(conn, claim.id)

    await finish(conn, looked, released_poll(looked, "shutdown"))

    found = await job(conn, claim.id)
    assert (found.state, found.poll_count, found.errors, found.crashes) == ("submitted", 1, 0, 0)


async def test_retry_from_a_poll_starts_over_without_a_handle(conn: Any) -> None:
    """A retry out of a look starts over: no handle, no count of looks."""
    claim = await _submitted(conn)
    looked = await poll(conn, claim.id)

    await end(conn, looked, Retry("unknown query", timedelta(0)))

    again = await take(conn, claim.id)
    assert (again.handle, again.poll_count, again.errors) == (None, 0, 1)
    assert not again.is_poll


async def test_intent_is_recorded_before_the_submit(conn: Any) -> None:
    """K-36, E-07: whatever happens between the two, the query can be found by its tag."""
    claim = await hold(conn)
    query = await effects.plan(conn, claim, "query", adoptable=True)
    await lose(conn, claim)

    again = await take(conn, claim.id)

    assert [(left.tag, left.state, left.handle) for left in await effects.left_behind(conn, again)] == [
        (query.tag, "planned", None)
    ]


async def test_kept_effect_of_a_submit_is_kept_when_a_poll_completes(conn: Any) -> None:
    """The look is another attempt, but the work is the same: its table must not be cleaned away with its success."""
    claim = await hold(conn)
    table = await effects.plan(conn, claim, "table")
    query = await effects.plan(conn, claim, "query", temporary=True)
    await effects.confirm(conn, claim, table, "t1")
    await submit(conn, claim)
    await end(conn, await poll(conn, claim.id), Submitted("query-1"))

    await end(conn, await poll(conn, claim.id), Done())

    states = dict(await rows(conn, "SELECT id, state FROM holdfast.effects"))
    assert states == {table.id: "kept", query.id: "unwanted"}


async def test_poll_can_confirm_an_effect_of_the_submit(conn: Any) -> None:
    claim = await hold(conn)
    table = await effects.plan(conn, claim, "table")
    await submit(conn, claim)
    looked = await poll(conn, claim.id)

    assert (await effects.confirm(conn, looked, table, "t1")).state == "made"


async def test_effects_of_attempts_before_the_submit_are_cleaned(conn: Any) -> None:
    first = await hold(conn)
    lost = await effects.plan(conn, first, "table", adoptable=True)
    await lose(conn, first)
    second = await take(conn, first.id)
    made = await effects.plan(conn, second, "table", adoptable=True)
    await submit(conn, second)

    await end(conn, await poll(conn, first.id), Done())

    assert dict(await rows(conn, "SELECT id, state FROM holdfast.effects")) == {lost.id: "unwanted", made.id: "kept"}


async def test_history_has_the_submit_and_every_poll(conn: Any) -> None:
    claim = await _submitted(conn)
    await end(conn, await poll(conn, claim.id), Submitted("q"))
    await end(conn, await poll(conn, claim.id), ConnectionError("reset"))
    await end(conn, await poll(conn, claim.id), Done())

    assert await moves_of(conn, claim.id) == ["submit", "submit", "release", "complete"]


async def test_completed_job_keeps_its_submit_time(conn: Any) -> None:
    claim = await _submitted(conn)
    submitted_at = await column(conn, claim.id, "submitted_at")

    await end(conn, await poll(conn, claim.id), Done())

    assert await column(conn, claim.id, "submitted_at") == submitted_at


async def test_poll_claim_does_not_take_pending_jobs(conn: Any) -> None:
    """K-37."""
    await add(conn)
    await _all_due(conn)

    assert await claim_to_poll(conn, await start_worker(conn), kinds=["k"]) == []


async def test_poll_outcome_needs_only_the_claim(conn: Any) -> None:
    claim = await _submitted(conn)
    looked = await poll(conn, claim.id)

    assert decide(looked, Submitted("h")).poll_count == 2


# ---------------------------------------------------------------------------------------------------------------------
# Not for ever
# ---------------------------------------------------------------------------------------------------------------------


async def test_engine_that_never_responds_fails_the_job_and_cleans_its_work(conn: Any) -> None:
    """A budget of its own: so many looks in a row that came to nothing. What the engine still does is cleaned up."""
    claim = await hold(conn)
    query = await effects.plan(conn, claim, "query")
    await submit(conn, claim)
    policy = RetryPolicy(poll_errors=3)

    for number in range(3):
        looked = await poll(conn, claim.id)
        assert looked.poll_errors == number
        await finish(conn, looked, decide(looked, ConnectionError("reset"), policy))

    found = await job(conn, claim.id)
    assert (found.state, found.cause, found.errors) == ("failed", "poll", 1)
    assert found.error == "3 polls of its engine failed in a row: ConnectionError: reset"
    assert dict(await rows(conn, "SELECT id, state FROM holdfast.effects")) == {query.id: "unwanted"}
    assert await moves_of(conn, claim.id) == ["submit", "release", "release", "fail"]


@pytest.mark.parametrize("news", [Submitted("query-1"), Snooze(timedelta(0))], ids=["still busy", "not now"])
async def test_successful_poll_resets_the_error_budget(conn: Any, news: object) -> None:
    claim = await _submitted(conn)
    await end(conn, await poll(conn, claim.id), ConnectionError("reset"))

    await end(conn, await poll(conn, claim.id), news)

    assert (await poll(conn, claim.id)).poll_errors == 0


async def test_released_poll_does_not_change_the_error_budget(conn: Any) -> None:
    claim = await _submitted(conn)
    await end(conn, await poll(conn, claim.id), ConnectionError("reset"))
    looked = await poll(conn, claim.id)

    await finish(conn, looked, released_poll(looked, "shutdown"))

    assert (await poll(conn, claim.id)).poll_errors == 1


async def test_rerun_resets_the_poll_budget(conn: Any) -> None:
    claim = await _submitted(conn)
    for _ in range(2):
        looked = await poll(conn, claim.id)
        await finish(conn, looked, decide(looked, ConnectionError("reset"), RetryPolicy(poll_errors=2)))

    await rerun(conn, claim.id, actor="ada")

    assert (await take(conn, claim.id)).poll_errors == 0


async def _submitted_ago(conn: Any, ago: timedelta, **fields: Any) -> Claim:
    """Submitted so long ago, and last asked just now."""
    claim = await _submitted(conn, max_runtime=HOUR, **fields)
    await conn.execute("UPDATE holdfast.jobs SET submitted_at = submitted_at - %s WHERE id = %s", [ago, claim.id])
    return claim


async def test_last_poll_is_not_later_than_max_runtime(conn: Any) -> None:
    """That is how an overdue job is found: it is due to be polled as well."""
    claim = await hold(conn, max_runtime=HOUR)
    await submit(conn, claim, "q", poll_after=2 * HOUR)

    deadline = await column(conn, claim.id, "submitted_at + max_runtime")
    assert abs((await job(conn, claim.id)).next_poll_at - deadline) < timedelta(seconds=1)  # type: ignore[operator]

    await end(conn, await poll(conn, claim.id), Submitted("q", 2 * HOUR))

    assert (await job(conn, claim.id)).next_poll_at == deadline, "counted from the submit, not from the look"


async def test_submitted_job_beyond_max_runtime_is_ended_for_any_kind_and_queue(conn: Any) -> None:
    claim = await _submitted_ago(conn, 2 * HOUR, kind="nobody.asks", queue="nobody")
    await _all_due(conn)
    worker = await start_worker(conn)

    assert await fail_overdue(conn, worker) == [claim.id]

    found = await job(conn, claim.id)
    assert (found.state, found.cause, found.attempt_id) == ("failed", "max_runtime", None)
    assert found.error == "its engine had it for longer than max_runtime"
    assert await moves_of(conn, claim.id) == ["submit", "fail"]
    assert await fail_overdue(conn, worker) == []


async def test_work_of_an_overdue_job_is_cancelled_at_its_engine(conn: Any) -> None:
    """Through the ledger: the cleaner is called until it confirms. Its locks are free and its dependants told."""
    claim = await hold(conn, max_runtime=HOUR, locks=(Lock("t"),))
    query = await effects.plan(conn, claim, "query")
    await effects.confirm(conn, claim, query, "q1")
    follower = await add(conn, after=(claim.id,))
    await submit(conn, claim)
    await conn.execute("UPDATE holdfast.jobs SET submitted_at = submitted_at - interval '2 h' WHERE id = %s", [claim.id])
    await _all_due(conn)
    cancelled = []

    async def cancel_query(effect: effects.Effect) -> bool:
        cancelled.append(effect.handle)
        return True

    await fail_overdue(conn, await start_worker(conn))
    assert await effects.clean(conn, {"query": cancel_query}) == 1

    assert cancelled == ["q1"]
    assert await holders_of(conn, "t") == []
    assert await state_of(conn, follower) == "cancelled"


async def test_overdue_job_is_not_polled(conn: Any) -> None:
    """Otherwise one that is asked all the time would never be found by the sweep."""
    await _submitted_ago(conn, 2 * HOUR)
    await _all_due(conn)

    assert await claim_to_poll(conn, await start_worker(conn), kinds=["k"]) == []


@pytest.mark.parametrize("max_runtime", [None, HOUR])
async def test_submitted_job_within_max_runtime_is_kept(conn: Any, max_runtime: timedelta | None) -> None:
    claim = await _submitted(conn, max_runtime=max_runtime)
    await conn.execute("UPDATE holdfast.jobs SET submitted_at = submitted_at - interval '59 min' WHERE id = %s", [claim.id])
    await _all_due(conn)

    assert await fail_overdue(conn, await start_worker(conn)) == []
    assert await state_of(conn, claim.id) == "submitted"


async def test_sweep_skips_a_poll_that_is_being_claimed(connect: Any) -> None:
    conn, other = await connect(), await connect()
    claim = await _submitted(conn, max_runtime=HOUR)
    await _all_due(conn)
    worker = await start_worker(conn)
    await never_wait(conn)

    async with other.transaction():
        assert [c.id for c in await claim_to_poll(other, worker, kinds=["k"])] == [claim.id]
        await other.execute("UPDATE holdfast.jobs SET submitted_at = submitted_at - interval '2 h' WHERE id = %s", [claim.id])
        assert await fail_overdue(conn, worker) == []

    assert await fail_overdue(conn, worker) == [], "it is held now; when it comes back it is found"
    assert await state_of(conn, claim.id) == "running"


async def test_concurrent_sweeps_end_a_job_once(connect: Any) -> None:
    conn, other = await connect(), await connect()
    claim = await _submitted_ago(conn, 2 * HOUR)
    await _all_due(conn)
    worker = await start_worker(conn)

    both = await together(fail_overdue(conn, worker), fail_overdue(other, worker))

    assert sorted(both) == [[], [claim.id]]
    assert await moves_of(conn, claim.id) == ["submit", "fail"]
