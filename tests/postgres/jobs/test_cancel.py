"""Stopping jobs: what waits stops at once, what runs is asked, and force does not wait."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from factories import (
    HOUR,
    add,
    column,
    end,
    everything,
    hold,
    holders_of,
    job,
    make_due,
    moves_of,
    poll,
    rows,
    start_worker,
    state_of,
    submit,
    take,
)
from holdfast.errors import CancelRequested, ClaimLost, IllegalMove, NotFound
from holdfast.jobs import effects, progress
from holdfast.jobs.cancel import abort, cancel
from holdfast.jobs.claim import claim_by_id
from holdfast.jobs.model import Lock, NewJob
from holdfast.jobs.outcome import Done, Fail, Retry
from holdfast.jobs.pipelines import Pipeline, read_pipeline


async def test_pending_job_is_cancelled_immediately(conn: Any) -> None:
    job_id = await add(conn, run_after=HOUR)

    assert await cancel(conn, job_id, actor="ada", reason="wrong year") == "cancelled"

    found = await job(conn, job_id)
    assert (found.state, found.cause, found.error, found.run_after) == ("cancelled", "cancelled", "wrong year", None)
    assert found.finished_at is not None
    assert await rows(conn, "SELECT move, actor, reason, attempt_id FROM holdfast.history") == [
        ("cancel", "ada", "wrong year", None)
    ]


async def test_cancel_of_a_submitted_job_cleans_its_remote_work(conn: Any) -> None:
    """E-50: the query is cleaned up by its handle."""
    claim = await hold(conn)
    query = await effects.plan(conn, claim, "query")
    await effects.confirm(conn, claim, query, "q1")
    await submit(conn, claim, "q1")

    assert await cancel(conn, claim.id, actor="ada") == "cancelled"

    assert await rows(conn, "SELECT state, handle FROM holdfast.effects") == [("unwanted", "q1")]
    assert await column(conn, claim.id, "next_poll_at") is None


async def test_running_job_gets_a_request_and_keeps_everything_until_it_stops(conn: Any) -> None:
    """K-62, E-44: its locks are not free while its handler still runs."""
    claim = await hold(conn, locks=(Lock("t"),), slot_key="s")

    assert await cancel(conn, claim.id, actor="ada", reason="wrong year") == "running"

    found = await job(conn, claim.id)
    assert (found.state, found.attempt_id) == ("running", claim.attempt_id)
    assert found.cancel_requested_at is not None
    assert await holders_of(conn, "t") == [claim.id]
    with pytest.raises(CancelRequested) as asked:
        await progress.checkpoint(conn, claim)
    await end(conn, claim, asked.value)
    assert await state_of(conn, claim.id) == "cancelled"
    assert await holders_of(conn, "t") == []
    assert await moves_of(conn, claim.id) == ["act", "cancel"]


async def test_cancellation_request_is_in_the_history_with_its_actor(conn: Any) -> None:
    claim = await hold(conn)

    await cancel(conn, claim.id, actor="ada", reason="wrong year")
    await cancel(conn, claim.id, actor="bob")

    assert await rows(conn, "SELECT move, actor, reason, attempt_id FROM holdfast.history ORDER BY id") == [
        ("act", "ada", "cancel requested: wrong year", None),
        ("act", "bob", "cancel requested", None),
    ]


async def test_second_cancel_keeps_the_time_of_the_first(conn: Any) -> None:
    claim = await hold(conn)
    await cancel(conn, claim.id, actor="ada")
    first = (await job(conn, claim.id)).cancel_requested_at

    await cancel(conn, claim.id, actor="ada")

    assert (await job(conn, claim.id)).cancel_requested_at == first


async def test_completion_after_a_cancellation_request_is_accepted(conn: Any) -> None:
    claim = await hold(conn)
    await cancel(conn, claim.id, actor="ada")

    await end(conn, claim, Done("done"))

    assert await state_of(conn, claim.id) == "completed"


async def test_error_after_a_cancellation_request_is_not_retried(conn: Any) -> None:
    """The attempt is over and somebody wanted it to stop: another attempt would run what nobody wants."""
    claim = await hold(conn, max_attempts=9)
    await cancel(conn, claim.id, actor="ada", reason="wrong year")

    await end(conn, claim, Retry("busy", timedelta(0)))

    assert await state_of(conn, claim.id) == "cancelled"


async def test_forced_cancel_ends_the_claim_immediately(conn: Any) -> None:
    """K-17, K-62."""
    claim = await hold(conn, locks=(Lock("t"), Lock("u")), slot_key="s")
    follow_up = await add(conn, slot_key="s")
    waiting = await add(conn, locks=(Lock("t"),))
    worker = await start_worker(conn)
    assert await claim_by_id(conn, worker, follow_up) is None
    assert await claim_by_id(conn, worker, waiting) is None

    assert await cancel(conn, claim.id, actor="ada", force=True) == "cancelled"

    assert (await job(conn, claim.id)).attempt_id is None
    assert (await holders_of(conn, "t"), await holders_of(conn, "u")) == ([], [])
    assert (await state_of(conn, follow_up), await state_of(conn, waiting)) == ("pending", "pending")
    with pytest.raises(ClaimLost):
        await end(conn, claim, Done("late"))
    assert await rows(
        conn, "SELECT move, attempt_id::text, worker_id::text FROM holdfast.history WHERE job_id = %s", claim.id
    ) == [("cancel", claim.attempt_id, claim.worker_id)]


@pytest.mark.parametrize("ended_with", [None, Fail("no")])
async def test_ended_job_cannot_be_cancelled(conn: Any, ended_with: object) -> None:
    claim = await hold(conn)
    await end(conn, claim, ended_with)
    before = await everything(conn)

    for force in (False, True):
        with pytest.raises(IllegalMove, match="a job that has ended cannot be cancelled"):
            await cancel(conn, claim.id, actor="ada", force=force)

    assert await everything(conn) == before


async def test_unknown_job_is_not_found(conn: Any) -> None:
    with pytest.raises(NotFound, match="there is no job 999999999"):
        await cancel(conn, 999999999, actor="ada")  # type: ignore[arg-type]


async def test_cancel_removes_a_job_that_waits_for_a_lock(conn: Any) -> None:
    holder = await hold(conn, locks=(Lock("t"),))
    first, second = await add(conn, locks=(Lock("t"),)), await add(conn, locks=(Lock("t"),))
    worker = await start_worker(conn)
    for waiting in (first, second):
        assert await claim_by_id(conn, worker, waiting) is None

    await cancel(conn, first, actor="ada")
    await end(conn, holder)

    assert (await state_of(conn, first), await state_of(conn, second)) == ("cancelled", "pending")
    assert await rows(conn, "SELECT FROM holdfast.lock_wants WHERE waiting AND job_id = %s", first) == []


async def test_cancel_releases_locks_of_a_job_that_does_not_run(conn: Any) -> None:
    waiting = await add(conn, locks=(Lock("r", when_busy="reject"),))
    submitted = await hold(conn, locks=(Lock("w"),))
    await submit(conn, submitted)

    await cancel(conn, waiting, actor="ada")
    await cancel(conn, submitted.id, actor="ada")

    assert (await holders_of(conn, "r"), await holders_of(conn, "w")) == ([], [])


async def test_cancel_of_a_parent_cancels_its_dependants(conn: Any) -> None:
    parent = await add(conn)
    child = await add(conn, after=(parent,))
    grandchild = await add(conn, after=(child,))
    anyway = await add(conn, after=(parent,), if_parent_fails="run")

    await cancel(conn, parent, actor="ada")

    assert [await state_of(conn, job_id) for job_id in (child, grandchild, anyway)] == ["cancelled", "cancelled", "pending"]


async def test_cancel_requests_the_end_of_a_running_poll(conn: Any) -> None:
    claim = await hold(conn)
    await submit(conn, claim)
    looked = await poll(conn, claim.id)

    assert await cancel(conn, claim.id, actor="ada") == "running"

    with pytest.raises(CancelRequested):
        await progress.checkpoint(conn, looked)


# ---------------------------------------------------------------------------------------------------------------------
# A whole pipeline
# ---------------------------------------------------------------------------------------------------------------------


async def _pipeline(conn: Any) -> tuple[str, list[int]]:
    """extract → (load, index) → report."""
    pipeline = Pipeline("nightly")
    extract = pipeline.add(NewJob("k"))
    both = [pipeline.add(NewJob("k"), after=extract) for _ in range(2)]
    pipeline.add(NewJob("k"), after=both)
    return pipeline.id, [made.id for made in await pipeline.enqueue(conn)]


async def test_abort_cancels_waiting_jobs_and_requests_cancellation_of_running_ones(conn: Any) -> None:
    pipeline_id, jobs = await _pipeline(conn)
    await end(conn, await take(conn, jobs[0]))
    running = await take(conn, jobs[1])
    bystander = await add(conn)

    touched = await abort(conn, pipeline_id, actor="ada", reason="wrong year")

    assert touched == 3
    assert [await state_of(conn, job_id) for job_id in jobs] == ["completed", "running", "cancelled", "cancelled"]
    assert (await read_pipeline(conn, pipeline_id)).status == "running"
    assert await state_of(conn, bystander) == "pending"
    with pytest.raises(CancelRequested, match="wrong year") as asked:
        await progress.checkpoint(conn, running)
    await end(conn, running, asked.value)
    assert (await read_pipeline(conn, pipeline_id)).status == "partial"


async def test_abort_of_an_unstarted_pipeline_cancels_all_jobs(conn: Any) -> None:
    pipeline_id, jobs = await _pipeline(conn)

    assert await abort(conn, pipeline_id, actor="ada") == 4

    assert {await state_of(conn, job_id) for job_id in jobs} == {"cancelled"}
    assert (await read_pipeline(conn, pipeline_id)).status == "cancelled"


async def test_abort_is_recorded_on_the_pipeline(conn: Any) -> None:
    pipeline_id, _ = await _pipeline(conn)

    await abort(conn, pipeline_id, actor="ada", reason="wrong year")
    first = await rows(conn, "SELECT aborted_at FROM holdfast.pipelines")
    await abort(conn, pipeline_id, actor="ada", reason="still wrong")

    assert await rows(conn, "SELECT aborted_at FROM holdfast.pipelines") == first


async def test_step_that_completes_after_the_abort_starts_nothing(conn: Any) -> None:
    """Otherwise an aborted pipeline would go on from wherever a handler did not hear of it."""
    pipeline_id, jobs = await _pipeline(conn)
    running = await take(conn, jobs[0])
    await abort(conn, pipeline_id, actor="ada")

    await end(conn, running, Done(then=[NewJob("next")]))

    await make_due(conn, jobs[0])
    assert await rows(conn, "SELECT id FROM holdfast.jobs WHERE state IN ('pending', 'running', 'blocked')") == []


async def test_unknown_pipeline_is_not_found(conn: Any) -> None:
    with pytest.raises(NotFound, match="there is no pipeline"):
        await abort(conn, "00000000-0000-4000-8000-000000000000", actor="ada")
