"""An operator runs an ended job once more: not a reset, a new generation on record."""

from __future__ import annotations

from typing import Any

import pytest

from factories import HOUR, add, end, everything, hold, job, lose, poll, rows, state_of, submit, take
from holdfast.errors import IllegalMove, NotFound, Refused
from holdfast.jobs.cancel import cancel
from holdfast.jobs.model import JobId
from holdfast.jobs.outcome import Cancel, Done, Fail
from holdfast.jobs.progress import checkpoint, report
from holdfast.jobs.rerun import rerun


@pytest.mark.parametrize("ended_with", [Fail("no"), Cancel("no"), ValueError("odd")])
async def test_a_failed_or_cancelled_job_can_run_once_more(conn: Any, ended_with: object) -> None:
    claim = await hold(conn, max_attempts=1)
    await end(conn, claim, ended_with)

    await rerun(conn, claim.id, actor="ada", reason="mended")

    found = await job(conn, claim.id)
    assert (found.state, found.finished_at, found.run_after, found.generation) == ("pending", None, None, 1)
    again = await take(conn, claim.id)
    assert again.attempt_no == 2, "attempts are counted on"
    await end(conn, again, Done("at last"))
    assert (await job(conn, claim.id)).result == "at last"


async def test_counts_stay_limits_rise_and_it_stands_in_the_history(conn: Any) -> None:
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


async def test_a_quarantined_job_can_be_let_out(conn: Any) -> None:
    claim = await hold(conn, max_crashes=1)
    await lose(conn, claim)

    await rerun(conn, claim.id, actor="ada")

    found = await job(conn, claim.id)
    assert (found.crashes, found.max_crashes, found.is_quarantined) == (1, 2, False)
    await take(conn, claim.id)


async def test_a_job_that_an_engine_had_starts_over(conn: Any) -> None:
    claim = await hold(conn)
    await submit(conn, claim)
    await end(conn, await poll(conn, claim.id), Fail("query was killed"))

    await rerun(conn, claim.id, actor="ada")

    again = await take(conn, claim.id)
    assert (again.handle, again.poll_count, again.is_poll) == (None, 0, False)


async def test_a_request_to_stop_does_not_stop_the_next_run(conn: Any) -> None:
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
async def test_anything_else_is_refused_and_unchanged(conn: Any, arrange: Any) -> None:
    job_id = await arrange(conn)
    before = await everything(conn)

    with pytest.raises(IllegalMove, match="only a failed or cancelled job can be run again"):
        await rerun(conn, JobId(job_id), actor="ada")

    assert await everything(conn) == before


async def test_there_is_no_such_job(conn: Any) -> None:
    with pytest.raises(NotFound, match="there is no job 999999999"):
        await rerun(conn, JobId(999999999), actor="ada")


@pytest.mark.parametrize("unique_while", ["waiting", "live"])
async def test_a_job_whose_unique_key_is_taken_cannot_wait_again(conn: Any, unique_while: Any) -> None:
    first = await add(conn, unique_key="u", unique_while=unique_while)
    await cancel(conn, first, actor="ada")
    other = await add(conn, unique_key="u", unique_while=unique_while)
    before = await everything(conn)

    with pytest.raises(Refused, match="another job waits under its unique key or slot"):
        await rerun(conn, first, actor="ada")

    assert await everything(conn) == before
    assert await state_of(conn, other) == "pending"


async def test_a_job_that_was_cancelled_with_its_parent_can_run_by_itself(conn: Any) -> None:
    parent = await hold(conn)
    child = await add(conn, after=(parent.id,))
    await end(conn, parent, Fail("no"))

    await rerun(conn, child, actor="ada")

    assert (await take(conn, child)).attempt_no == 1
