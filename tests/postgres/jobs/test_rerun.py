"""An operator runs an ended job once more: not a reset, a new generation on record."""

from __future__ import annotations

import asyncio
from itertools import permutations
from typing import Any

import pytest

from factories import (
    HOUR,
    add,
    column,
    end,
    everything,
    hold,
    job,
    lose,
    moves_of,
    poll,
    rows,
    start_worker,
    state_of,
    submit,
    take,
    waits,
)
from holdfast.errors import IllegalMove, NotFound, Refused
from holdfast.jobs.cancel import cancel
from holdfast.jobs.claim import claim as claim_jobs
from holdfast.jobs.model import JobId
from holdfast.jobs.outcome import Cancel, Done, Fail
from holdfast.jobs.progress import checkpoint, report
from holdfast.jobs.rerun import rerun
from holdfast.jobs.views.explain import explain


@pytest.mark.parametrize("ended_with", [Fail("no"), Cancel("no"), ValueError("odd")])
async def test_failed_or_cancelled_job_can_be_rerun(conn: Any, ended_with: object) -> None:
    claim = await hold(conn, max_attempts=1)
    await end(conn, claim, ended_with)

    await rerun(conn, claim.id, actor="ada", reason="mended")

    found = await job(conn, claim.id)
    assert (found.state, found.finished_at, found.run_after, found.generation) == ("pending", None, None, 1)
    again = await take(conn, claim.id)
    assert again.attempt_no == 2, "attempts are counted on"
    await end(conn, again, Done("at last"))
    assert (await job(conn, claim.id)).result == "at last"


async def test_rerun_keeps_counts_raises_limits_and_is_in_the_history(conn: Any) -> None:
    claim = await hold(conn, max_attempts=1, max_crashes=2)
    await end(conn, claim, ValueError("odd"))

    await rerun(conn, claim.id, actor="ada", reason="mended", grant=3)

    found = await job(conn, claim.id)
    assert (found.errors, found.max_attempts, found.crashes, found.max_crashes) == (1, 4, 0, 3)
    last = await rows(
        conn,
        "SELECT move, actor, reason, detail, attempt_id FROM holdfast.history WHERE job_id = %s ORDER BY id DESC",
        claim.id,
    )
    assert last[0] == ("rerun", "ada", "mended", {"granted": 3}, None)


async def test_quarantined_job_can_be_rerun(conn: Any) -> None:
    claim = await hold(conn, max_crashes=1)
    await lose(conn, claim)

    await rerun(conn, claim.id, actor="ada")

    found = await job(conn, claim.id)
    assert (found.crashes, found.max_crashes, found.is_quarantined) == (1, 2, False)
    await take(conn, claim.id)


async def test_rerun_of_a_submitted_job_starts_over(conn: Any) -> None:
    claim = await hold(conn)
    await submit(conn, claim)
    await end(conn, await poll(conn, claim.id), Fail("query was killed"))

    await rerun(conn, claim.id, actor="ada")

    again = await take(conn, claim.id)
    assert (again.handle, again.poll_count, again.is_poll) == (None, 0, False)


async def test_cancellation_request_does_not_stop_the_rerun(conn: Any) -> None:
    claim = await hold(conn)
    await report(conn, claim, progress=0.5, message="half")
    await cancel(conn, claim.id, actor="ada", force=True)
    await conn.execute("UPDATE holdfast.jobs SET cancel_requested_at = clock_timestamp() WHERE id = %s", [claim.id])

    await rerun(conn, claim.id, actor="ada")

    await checkpoint(conn, await take(conn, claim.id))
    found = await job(conn, claim.id)
    assert (found.progress, found.message) == (None, None)


async def _pending(conn: Any) -> int:
    return await add(conn, run_after=HOUR)


async def _running(conn: Any) -> int:
    return (await hold(conn)).id


async def _submitted(conn: Any) -> int:
    claim = await hold(conn)
    await submit(conn, claim)
    return claim.id


async def _completed(conn: Any) -> int:
    claim = await hold(conn)
    await end(conn, claim)
    return claim.id


@pytest.mark.parametrize("arrange", [_pending, _running, _submitted, _completed])
async def test_rerun_of_other_states_is_refused_and_changes_nothing(conn: Any, arrange: Any) -> None:
    job_id = await arrange(conn)
    before = await everything(conn)

    with pytest.raises(IllegalMove, match="only a failed or cancelled job can be run again"):
        await rerun(conn, JobId(job_id), actor="ada")

    assert await everything(conn) == before


async def test_unknown_job_is_not_found(conn: Any) -> None:
    with pytest.raises(NotFound, match="there is no job 999999999"):
        await rerun(conn, JobId(999999999), actor="ada")


@pytest.mark.parametrize("unique_while", ["waiting", "live"])
async def test_rerun_is_refused_when_the_unique_key_is_taken(conn: Any, unique_while: Any) -> None:
    first = await add(conn, unique_key="u", unique_while=unique_while)
    await cancel(conn, first, actor="ada")
    other = await add(conn, unique_key="u", unique_while=unique_while)
    before = await everything(conn)

    with pytest.raises(Refused, match="another job waits under its unique key or slot"):
        await rerun(conn, first, actor="ada")

    assert await everything(conn) == before
    assert await state_of(conn, other) == "pending"


async def _pipeline(conn: Any) -> tuple[int, int, int]:
    """A → B → C, of which A has failed."""
    head = await hold(conn)
    second = await add(conn, after=(head.id,), priority=-1)  # of what could run, the later steps would be first
    third = await add(conn, after=(second,), priority=-2)
    await end(conn, head, Fail("no"))
    return head.id, second, third


async def _run_all(conn: Any) -> list[int]:
    """Run whatever can be claimed, until nothing can; in which order."""
    worker, ran = await start_worker(conn), list[int]()
    while claims := await claim_jobs(conn, worker, kinds=["k"], limit=1):
        ran.append(claims[0].id)
        await end(conn, claims[0], Done())
    return ran


@pytest.mark.parametrize("order", list(permutations(range(3))))
async def test_rerun_of_a_pipeline_keeps_its_order(conn: Any, order: tuple[int, ...]) -> None:
    """In whatever order its jobs are rerun."""
    jobs = await _pipeline(conn)

    for number in order:
        await rerun(conn, JobId(jobs[number]), actor="ada")

    assert await _run_all(conn) == list(jobs)


async def test_rerun_job_waits_until_its_failed_parent_is_rerun(conn: Any) -> None:
    head, second, _ = await _pipeline(conn)

    await rerun(conn, JobId(second), actor="ada")

    assert await moves_of(conn, second) == ["cancel", "rerun", "block"]
    assert (
        await explain(conn, JobId(second)) == f"It was rerun and waits for job {head} (k), which is failed: rerun that one too."
    )
    assert await _run_all(conn) == []
    await rerun(conn, JobId(head), actor="ada")
    assert "next job" in await explain(conn, JobId(second))
    assert await _run_all(conn) == [head, second]


async def test_rerun_subset_waits_only_for_parents_that_have_not_completed(conn: Any) -> None:
    head = await hold(conn)
    second = await add(conn, after=(head.id,), priority=-1)  # of what could run, the later steps would be first
    third = await add(conn, after=(second,), priority=-2)
    await end(conn, head, Done())
    await end(conn, await take(conn, second), Fail("no"))

    await rerun(conn, JobId(third), actor="ada")
    await rerun(conn, JobId(second), actor="ada")

    assert await _run_all(conn) == [second, third]


async def test_a_rerun_fan_in_waits_for_each_of_its_parents(conn: Any) -> None:
    parents = [await hold(conn) for _ in range(3)]
    join = await add(conn, after=tuple(parent.id for parent in parents), priority=-1)
    await end(conn, parents[0], Done())
    await end(conn, parents[1], Fail("no"))
    await end(conn, parents[2], Fail("no"))

    for job_id in (join, parents[2].id, parents[1].id):
        await rerun(conn, JobId(job_id), actor="ada")

    assert await column(conn, join, "parents_left") == 2
    assert await _run_all(conn) == [parents[1].id, parents[2].id, join]


async def test_rerun_parent_that_fails_again_cancels_its_dependants_again(conn: Any) -> None:
    jobs = await _pipeline(conn)
    for job_id in jobs:
        await rerun(conn, JobId(job_id), actor="ada")

    await end(conn, await take(conn, jobs[0]), Fail("again"))

    assert [await state_of(conn, job_id) for job_id in jobs] == ["failed", "cancelled", "cancelled"]


async def test_two_ends_of_one_parent_count_once(conn: Any) -> None:
    """A job that runs also when a parent fails: it waits again for the one that was rerun."""
    first, other = await hold(conn), await hold(conn)
    join = await add(conn, after=(first.id, other.id), if_parent_fails="run")
    await end(conn, first, Fail("no"))
    assert await column(conn, join, "parents_left") == 1

    await rerun(conn, first.id, actor="ada")

    assert await column(conn, join, "parents_left") == 2
    await end(conn, await take(conn, first.id), Fail("again"))
    assert (await state_of(conn, join), await column(conn, join, "parents_left")) == ("blocked", 1)
    await end(conn, other, Done())
    assert await state_of(conn, join) == "pending"


async def test_job_that_ignores_parent_failures_does_not_wait_for_a_failed_parent(conn: Any) -> None:
    parent = await hold(conn)
    child = await add(conn, after=(parent.id,), if_parent_fails="run")
    await end(conn, parent, Fail("no"))
    await end(conn, await take(conn, child), Fail("no"))

    await rerun(conn, JobId(child), actor="ada")

    assert await _run_all(conn) == [child]


async def test_parent_that_ends_during_the_rerun_of_its_child_is_counted(connect: Any) -> None:
    """The rerun waits for the parent's row, and sees how it has ended."""
    conn, other = await connect(), await connect()
    head = await hold(conn)
    child = await add(conn, after=(head.id,))
    await cancel(conn, child, actor="ada")

    async with conn.transaction():
        await end(conn, head, Done())
        again = asyncio.create_task(rerun(other, JobId(child), actor="ada"))
        await waits(conn, other)
    await again

    assert await _run_all(conn) == [child]


async def test_parent_that_ends_during_the_rerun_of_another_parent_is_counted_once(connect: Any) -> None:
    """The rerun waits for the row of the dependant before it counts its parents again."""
    conn, other = await connect(), await connect()
    first, second, third = [await hold(conn) for _ in range(3)]
    child = await add(conn, after=(first.id, second.id, third.id), if_parent_fails="run")
    await end(conn, first, Fail("no"))

    async with conn.transaction():
        await end(conn, second, Done())
        again = asyncio.create_task(rerun(other, first.id, actor="ada"))
        await waits(conn, other)
    await again
    await end(conn, third, Done())

    assert await _run_all(conn) == [first.id, child]
