"""Followers of jobs: a registered SQL function runs once for every change of state, in the transaction that makes it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from factories import HOUR, Conn, add, end, hold, rows, silence, start_worker, state_of, submit, take, value
from holdfast.jobs.cancel import abort, cancel
from holdfast.jobs.finish import complete_plain
from holdfast.jobs.model import NewJob
from holdfast.jobs.outcome import Cancel, Done, Fail
from holdfast.jobs.pipelines import Pipeline, complete_and_chain
from holdfast.jobs.poll import fail_overdue
from holdfast.jobs.release import release_worker
from holdfast.jobs.rerun import rerun
from holdfast.jobs.rescue import rescue

KIND = "followed"
INSTALL = """
    CREATE TABLE holdfast.calls (job_id bigint, old_state text, state text, result jsonb);
    CREATE FUNCTION holdfast.note_call(job holdfast.jobs, old_state text) RETURNS void LANGUAGE sql AS
    $$ INSERT INTO holdfast.calls VALUES (job.id, old_state, job.state, job.result) $$;
    INSERT INTO holdfast.job_followers VALUES ('followed', 'holdfast.note_call')
"""
REFUSE = """
    CREATE FUNCTION holdfast.refuse_end(job holdfast.jobs, old_state text) RETURNS void LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'not today'; END $$;
    INSERT INTO holdfast.job_followers VALUES ('refused', 'holdfast.refuse_end')
"""
ENDED = ("completed", "failed", "cancelled")


@pytest.fixture
async def followed(conn: Conn) -> Conn:
    """A connection to a database with a follower of the kind `followed`."""
    await conn.execute(INSTALL)
    return conn


async def calls(conn: Conn) -> list[tuple[Any, ...]]:
    return await rows(conn, "SELECT job_id, old_state, state FROM holdfast.calls ORDER BY job_id")


# ---------------------------------------------------------------------------------------------------------------------
# Every way in which a job can end: the job, its state before and after
# ---------------------------------------------------------------------------------------------------------------------

End = tuple[int, str, str]


async def batch_of_completions(conn: Conn) -> list[End]:
    worker = await start_worker(conn)
    claims = [await hold(conn, KIND, worker=worker) for _ in range(3)]
    assert len(await complete_plain(conn, claims, [None, "1", None])) == 3
    return [(claim.id, "running", "completed") for claim in claims]


async def completion_with_publish(conn: Conn) -> list[End]:
    async def publish(conn: Any) -> None:
        await conn.execute("SELECT 1")

    claim = await hold(conn, KIND)
    await end(conn, claim, Done(1, publish=publish))
    return [(claim.id, "running", "completed")]


async def completion_with_the_next_step(conn: Conn) -> list[End]:
    claim = await hold(conn, KIND)
    assert await complete_and_chain(conn, claim, None, NewJob("another"))
    return [(claim.id, "running", "completed")]


async def failure(conn: Conn) -> list[End]:
    claim = await hold(conn, KIND)
    await end(conn, claim, Fail("no"))
    return [(claim.id, "running", "failed")]


async def cancel_by_the_handler(conn: Conn) -> list[End]:
    claim = await hold(conn, KIND)
    await end(conn, claim, Cancel("no"))
    return [(claim.id, "running", "cancelled")]


async def rescue_that_quarantines(conn: Conn) -> list[End]:
    claim = await hold(conn, KIND, max_crashes=1)
    await silence(conn, claim)
    assert await rescue(conn) == [claim.id]
    return [(claim.id, "running", "failed")]


async def rescue_after_a_cancel_request(conn: Conn) -> list[End]:
    claim = await hold(conn, KIND)
    await cancel(conn, claim.id, actor="ada")
    await silence(conn, claim)
    assert await rescue(conn) == [claim.id]
    return [(claim.id, "running", "cancelled")]


async def forced_cancel(conn: Conn) -> list[End]:
    claim = await hold(conn, KIND)
    await cancel(conn, claim.id, actor="ada", force=True)
    return [(claim.id, "running", "cancelled")]


async def cancel_of_pending_and_submitted_jobs(conn: Conn) -> list[End]:
    pending, claim = await add(conn, KIND), await hold(conn, KIND)
    await submit(conn, claim)
    for job_id in (pending, claim.id):
        await cancel(conn, job_id, actor="ada")
    return [(pending, "pending", "cancelled"), (claim.id, "submitted", "cancelled")]


async def abort_of_a_pipeline(conn: Conn) -> list[End]:
    pipeline = Pipeline("p")
    pipeline.add(NewJob(KIND), after=pipeline.add(NewJob(KIND)))
    first, second = [made.id for made in await pipeline.enqueue(conn)]
    await abort(conn, pipeline.id, actor="ada")
    return [(first, "pending", "cancelled"), (second, "blocked", "cancelled")]


async def failure_of_a_parent(conn: Conn) -> list[End]:
    parent = await hold(conn, "another")
    child = await add(conn, KIND, after=(parent.id,))
    await end(conn, parent, Fail("no"))
    return [(child, "blocked", "cancelled")]


async def release_that_fails_the_job(conn: Conn) -> list[End]:
    claim = await hold(conn, KIND)
    await release_worker(conn, claim.worker_id, failing=[KIND])
    return [(claim.id, "running", "failed")]


async def submitted_for_too_long(conn: Conn) -> list[End]:
    claim = await hold(conn, KIND, max_runtime=HOUR)
    await submit(conn, claim)
    await conn.execute(
        "UPDATE holdfast.jobs SET submitted_at = submitted_at - interval '2 h', next_poll_at = clock_timestamp() WHERE id = %s",
        [claim.id],
    )
    assert await fail_overdue(conn, await start_worker(conn)) == [claim.id]
    return [(claim.id, "running", "failed")]


async def update_by_hand(conn: Conn) -> list[End]:
    job_id = await add(conn, KIND)
    await conn.execute("UPDATE holdfast.jobs SET state = 'cancelled', finished_at = clock_timestamp() WHERE id = %s", [job_id])
    return [(job_id, "pending", "cancelled")]


EVERY_WAY: tuple[Callable[[Conn], Awaitable[list[End]]], ...] = (
    *(batch_of_completions, completion_with_publish, completion_with_the_next_step, failure, cancel_by_the_handler),
    *(rescue_that_quarantines, rescue_after_a_cancel_request, forced_cancel, cancel_of_pending_and_submitted_jobs),
    *(abort_of_a_pipeline, failure_of_a_parent, release_that_fails_the_job, submitted_for_too_long, update_by_hand),
)


async def test_every_end_calls_the_follower_once_in_its_transaction(followed: Conn) -> None:
    for way in EVERY_WAY:
        await followed.execute("DELETE FROM holdfast.calls")

        expected = await way(followed)

        noted = [call for call in await calls(followed) if call[2] in ENDED]
        assert noted == expected, way.__name__
        apart = await rows(
            followed,
            "SELECT j.id, j.xmin, c.xmin FROM holdfast.jobs j JOIN holdfast.calls c ON c.job_id = j.id AND c.state = j.state"
            " WHERE c.xmin <> j.xmin",
        )
        assert apart == [], f"{way.__name__}: the row of the job and that of its follower have one transaction"


async def test_follower_gets_the_current_row_and_every_state_change(followed: Conn) -> None:
    claim = await hold(followed, KIND)
    await submit(followed, claim)
    await cancel(followed, claim.id, actor="ada")
    await rerun(followed, claim.id, actor="ada")
    await end(followed, await take(followed, claim.id), Done({"rows": 3}))

    noted = await rows(followed, "SELECT old_state, state, result FROM holdfast.calls")
    assert noted == [
        ("pending", "running", None),
        ("running", "submitted", None),
        ("submitted", "cancelled", None),
        ("cancelled", "pending", None),
        ("pending", "running", None),
        ("running", "completed", {"rows": 3}),
    ]


async def test_rollback_of_an_end_rolls_back_its_follower(followed: Conn) -> None:
    job_id = await add(followed, KIND)

    async with followed.transaction():
        await cancel(followed, job_id, actor="ada")
        raise psycopg.Rollback

    assert (await calls(followed), await state_of(followed, job_id)) == ([], "pending")


async def test_a_follower_that_raises_aborts_the_end(conn: Conn) -> None:
    job_id = await add(conn, "refused")
    await conn.execute(REFUSE)

    with pytest.raises(psycopg.errors.RaiseException, match="not today"):
        await cancel(conn, job_id, actor="ada")

    assert await state_of(conn, job_id) == "pending"
    assert await rows(conn, "SELECT move FROM holdfast.history") == []


async def test_kinds_without_a_follower_call_nothing(followed: Conn) -> None:
    await followed.execute(REFUSE)
    claim = await hold(followed, "another")

    await end(followed, claim)

    assert await state_of(followed, claim.id) == "completed"
    assert await calls(followed) == []


async def test_updates_without_a_state_change_call_nothing(followed: Conn) -> None:
    job_id = await add(followed, KIND, run_after=timedelta(hours=1))

    await followed.execute("UPDATE holdfast.jobs SET state = state, priority = 3 WHERE id = %s", [job_id])

    assert await calls(followed) == []


# ---------------------------------------------------------------------------------------------------------------------
# Registration
# ---------------------------------------------------------------------------------------------------------------------

TRIGGER = (
    "SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE tgrelid = 'holdfast.jobs'::regclass AND tgname = 'run_job_followers'"
)


async def kinds_of_the_trigger(conn: Conn) -> set[str]:
    listed = re.search(r"'\{([^}]*)\}'", await value(conn, TRIGGER))
    assert listed is not None
    return set(listed[1].split(","))


async def registered_kinds(conn: Conn) -> set[str]:
    return {kind for (kind,) in await rows(conn, "SELECT kind FROM holdfast.job_followers")}


async def test_one_trigger_serves_all_kinds_and_is_dropped_with_the_last(followed: Conn) -> None:
    assert await kinds_of_the_trigger(followed) == await registered_kinds(followed)
    assert KIND in await registered_kinds(followed)

    await followed.execute("DELETE FROM holdfast.job_followers WHERE kind = 'followed'")
    assert KIND not in await kinds_of_the_trigger(followed)
    assert await kinds_of_the_trigger(followed) == await registered_kinds(followed)

    await followed.execute("TRUNCATE holdfast.job_followers")
    assert await rows(followed, TRIGGER) == []
    await end(followed, await hold(followed, KIND))
    assert await calls(followed) == []


async def test_unknown_function_is_refused(conn: Conn) -> None:
    with pytest.raises(psycopg.errors.UndefinedFunction, match=r"holdfast.missing\(holdfast.jobs, text\) does not exist"):
        await conn.execute("INSERT INTO holdfast.job_followers VALUES ('k', 'holdfast.missing')")
    with pytest.raises(psycopg.errors.CheckViolation):
        await conn.execute("INSERT INTO holdfast.job_followers VALUES ('k', 'holdfast.f(); DROP TABLE holdfast.jobs')")


async def test_kind_with_a_quote_is_registered_unchanged(followed: Conn) -> None:
    await followed.execute("INSERT INTO holdfast.job_followers VALUES ('it''s, {one}', 'holdfast.note_call')")

    await end(followed, await hold(followed, "it's, {one}"))

    assert [state for _, _, state in await calls(followed)] == ["running", "completed"]
