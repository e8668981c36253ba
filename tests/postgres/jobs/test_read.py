"""Looking at jobs: one, pages by key, and counts that say when they are only a lower bound."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from factories import add, end, everything, hold, lose, start_worker, submit
from holdfast.errors import NotFound, UsageError
from holdfast.jobs.enqueue import enqueue_many
from holdfast.jobs.model import JobId, NewJob
from holdfast.jobs.outcome import Cancel, Done, Fail
from holdfast.jobs.states import State
from holdfast.jobs.views.read import LONGEST_PAGE, Count, count_states, get_job, list_jobs


async def _one_in_each_state(conn: Any) -> dict[State, int]:
    completed, failed, cancelled, submitted = [await hold(conn) for _ in range(4)]
    await end(conn, completed, Done())
    await end(conn, failed, Fail("no"))
    await end(conn, cancelled, Cancel("no"))
    await submit(conn, submitted)
    running, pending = await hold(conn), await add(conn)
    return {
        State.COMPLETED: completed.id,
        State.FAILED: failed.id,
        State.CANCELLED: cancelled.id,
        State.SUBMITTED: submitted.id,
        State.RUNNING: running.id,
        State.PENDING: pending,
        State.BLOCKED: await add(conn, after=(pending,)),
    }


async def test_get_returns_all_fields_of_a_job(conn: Any) -> None:
    claim = await hold(conn, payload={"a": 1})

    found = await get_job(conn, claim.id)

    assert (found.id, found.payload, found.attempt_id, found.worker_id) == (
        claim.id,
        {"a": 1},
        claim.attempt_id,
        claim.worker_id,
    )
    assert not found.is_quarantined


async def test_unknown_job_is_none(conn: Any) -> None:
    with pytest.raises(NotFound, match="there is no job 999999999"):
        await get_job(conn, JobId(999999999))


async def test_quarantined_job_is_marked(conn: Any) -> None:
    poison, failed = await hold(conn, max_crashes=1), await hold(conn)
    await lose(conn, poison)
    await end(conn, failed, Fail("no"))

    assert (await get_job(conn, poison.id)).is_quarantined
    assert not (await get_job(conn, failed.id)).is_quarantined


async def test_pages_are_newest_first_without_gaps_or_repeats(conn: Any) -> None:
    made = [m.id for m in await enqueue_many(conn, [NewJob("k")] * 7)]
    seen, before = [], None
    while True:
        page = await list_jobs(conn, limit=3, before=before)
        seen.append([found.id for found in page.jobs])
        before = page.before
        if before is None:
            break

    newest_first = made[::-1]
    assert seen == [newest_first[:3], newest_first[3:6], newest_first[6:]]


async def test_full_last_page_has_no_cursor(conn: Any) -> None:
    await enqueue_many(conn, [NewJob("k")] * 3)

    assert (await list_jobs(conn, limit=3)).before is None


async def test_new_jobs_do_not_shift_pages(conn: Any) -> None:
    """P19: by key and never by offset."""
    made = [m.id for m in await enqueue_many(conn, [NewJob("k")] * 4)]
    first = await list_jobs(conn, limit=2)
    await enqueue_many(conn, [NewJob("k")] * 3)

    second = await list_jobs(conn, limit=2, before=first.before)

    assert [found.id for found in second.jobs] == [made[1], made[0]]


async def test_filter_by_every_state(conn: Any) -> None:
    jobs = await _one_in_each_state(conn)

    found = {state: [view.id for view in (await list_jobs(conn, state=state)).jobs] for state in State}

    assert found == {state: [job_id] for state, job_id in jobs.items()}


async def test_filters_are_combined(conn: Any) -> None:
    pipeline, parent, worker = str(uuid4()), await add(conn), await start_worker(conn)
    wanted = await hold(conn, "a", queue="q", pipeline_id=pipeline, parent_id=parent, step="s", slot_key="x", worker=worker)
    await hold(conn), await add(conn, "a"), await add(conn, queue="q")
    filters = {
        "kind": "a",
        "queue": "q",
        "pipeline_id": pipeline,
        "parent_id": parent,
        "slot_key": "x",
        "worker_id": worker,
        "state": "running",
    }

    for name in ("pipeline_id", "parent_id", "slot_key", "worker_id"):
        assert [view.id for view in (await list_jobs(conn, **{name: filters[name]})).jobs] == [wanted.id], name
    assert [view.id for view in (await list_jobs(conn, **filters)).jobs] == [wanted.id]  # type: ignore[arg-type]
    assert (await list_jobs(conn, **{**filters, "kind": "b"})).jobs == []  # type: ignore[arg-type]


async def test_omitted_filter_is_ignored(conn: Any) -> None:
    await add(conn)

    assert len((await list_jobs(conn, kind=None, state=None)).jobs) == 1


@pytest.mark.parametrize("limit", [0, -1, LONGEST_PAGE + 1])
async def test_page_size_has_bounds(conn: Any, limit: int) -> None:
    with pytest.raises(UsageError, match="a page has 1 to 200 jobs"):
        await list_jobs(conn, limit=limit)


async def test_unknown_filter_error_lists_the_known_ones(conn: Any) -> None:
    with pytest.raises(UsageError, match=r"no filter colour; there are: before, ids, state, kind"):
        await list_jobs(conn, colour="red")


async def test_unknown_state_error_lists_the_known_ones(conn: Any) -> None:
    with pytest.raises(UsageError, match=r"no state 'finished'; there are: blocked, pending"):
        await list_jobs(conn, state="finished")


async def test_counts_are_exact_up_to_their_cap(conn: Any) -> None:
    await enqueue_many(conn, [NewJob("k")] * 5)
    await hold(conn)

    found = await count_states(conn, cap=5)
    capped = await count_states(conn, cap=4)

    assert found[State.PENDING] == Count(5, capped=False)
    assert capped[State.PENDING] == Count(4, capped=True)
    assert found[State.RUNNING] == Count(1, capped=False)
    assert set(found) == set(State)


async def test_every_state_is_counted(conn: Any) -> None:
    await _one_in_each_state(conn)

    assert {str(count) for count in (await count_states(conn)).values()} == {"1"}


def test_capped_count_is_marked() -> None:
    assert (str(Count(12345, capped=False)), str(Count(10000, capped=True))) == ("12,345", "10,000+")


async def test_reads_change_nothing(conn: Any) -> None:
    jobs = await _one_in_each_state(conn)
    before = await everything(conn)

    await list_jobs(conn), await count_states(conn), await get_job(conn, JobId(jobs[State.RUNNING]))

    assert await everything(conn) == before
