"""Ending an attempt: what each end writes, that all of it is one transaction, and batches in which each row is fenced."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Any

import psycopg
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
    poll,
    replace,
    rows,
    start_worker,
    state_of,
    submit,
    take,
    value,
)
from holdfast.errors import ClaimLost, PayloadInvalid, PublishFailed
from holdfast.jobs import effects
from holdfast.jobs.finish import complete_plain, finish
from holdfast.jobs.model import Lock, NewJob
from holdfast.jobs.outcome import COMPLETED, Cancel, Done, End, Fail, Permanent, Retry, Snooze, released
from holdfast.jobs.pipelines import complete_and_chain
from holdfast.jobs.states import Move, State

# ---------------------------------------------------------------------------------------------------------------------
# Each end
# ---------------------------------------------------------------------------------------------------------------------


async def test_completed_job_keeps_its_result_and_has_no_holder(conn: Any) -> None:
    """K-14, K-15, T-05: one write is the end and the acknowledgement."""
    claim = await hold(conn, max_runtime=HOUR)
    before = await clock(conn)

    await end(conn, claim, Done({"rows": 3}))

    found = await job(conn, claim.id)
    assert (found.state, found.result, found.attempt_id, found.worker_id) == ("completed", {"rows": 3}, None, None)
    assert before <= found.finished_at <= await clock(conn)  # type: ignore[operator]
    assert (found.attempt_no, found.fence_token) == (1, claim.fence_token), "who ended it can still be seen"


COMPLETIONS: dict[str, Any] = {
    "in a batch": lambda conn, claim: complete_plain(conn, [claim], [None]),
    "by itself": end,
    "with its next step": lambda conn, claim: complete_and_chain(conn, claim, None, NewJob("next")),
}


@pytest.mark.parametrize("how", COMPLETIONS)
async def test_completed_job_has_no_error_of_an_earlier_attempt(conn: Any, how: str) -> None:
    claim = await hold(conn)
    await end(conn, claim, Retry("busy", timedelta(0)))

    await COMPLETIONS[how](conn, await take(conn, claim.id))

    found = await job(conn, claim.id)
    assert (found.state, found.errors, found.error, found.cause) == ("completed", 1, None, None)


@pytest.mark.parametrize(
    ("ended_with", "state", "errors", "cause", "error"),
    [
        (None, "completed", 0, None, None),
        (Fail("no such table"), "failed", 1, "failed", "no such table"),
        (Permanent("never"), "failed", 1, "permanent", "holdfast.jobs.outcome.Permanent: never"),
        (Cancel("not needed"), "cancelled", 0, "cancelled", "not needed"),
        (Retry("busy", HOUR), "pending", 1, "retry", "busy"),
        (ValueError("odd"), "pending", 1, "error", "ValueError: odd"),
        (TimeoutError("slow"), "pending", 1, "timeout", "TimeoutError: slow"),
        (Snooze(HOUR, "later"), "pending", 0, "snooze", "later"),
    ],
    ids=["done", "fail", "permanent", "cancel", "retry", "surprise", "timeout", "snooze"],
)
async def test_each_end_has_a_history_row(
    conn: Any, ended_with: object, state: str, errors: int, cause: str | None, error: str | None
) -> None:
    claim = await hold(conn)

    await end(conn, claim, ended_with)

    found = await job(conn, claim.id)
    assert (found.state, found.errors, found.cause, found.error) == (state, errors, cause, error)
    assert (found.attempt_id, found.worker_id) == (None, None)
    assert (found.finished_at is None) == (state == "pending")
    assert (found.run_after is None) == (state != "pending")


async def test_released_job_can_be_claimed_immediately_and_nothing_is_counted(conn: Any) -> None:
    """E-51."""
    claim = await hold(conn)

    await finish(conn, claim, released("shutdown"))

    found = await job(conn, claim.id)
    assert (found.state, found.run_after, found.errors, found.crashes) == ("pending", None, 0, 0)
    assert (await take(conn, claim.id)).attempt_no == 2


async def test_an_end_is_accepted_once(conn: Any) -> None:
    claim = await hold(conn)
    await end(conn, claim, Done(1))

    with pytest.raises(ClaimLost):
        await end(conn, claim, Done(2))

    assert (await job(conn, claim.id)).result == 1
    assert await moves_of(conn, claim.id) == ["complete"]


@pytest.mark.parametrize(
    "wrong", [End(Move.COMPLETE, State.FAILED), End(Move.CLAIM, State.RUNNING), End(Move.RERUN, State.PENDING)]
)
async def test_illegal_transition_is_a_programming_error(conn: Any, wrong: End) -> None:
    claim = await hold(conn)

    with pytest.raises(AssertionError, match="does not lead to"):
        await finish(conn, claim, wrong)

    assert await state_of(conn, claim.id) == "running"


async def test_error_message_with_any_characters_is_stored(conn: Any) -> None:
    """What Postgres cannot store in it must not keep a job from ending."""
    nul, half, long = await hold(conn), await hold(conn), await hold(conn)

    await end(conn, nul, ValueError("a\x00b"))
    await end(conn, half, ValueError("a\ud800b"))
    await end(conn, long, Fail("x" * 100_000))

    assert (await job(conn, nul.id)).error == "ValueError: a\N{SYMBOL FOR NULL}b"
    assert (await job(conn, half.id)).error == "ValueError: a?b"
    assert len((await job(conn, long.id)).error or "") == 20_000


@pytest.mark.parametrize("result", [{"a": float("nan")}, {"a": "\x00"}, object()], ids=["NaN", "NUL", "object"])
async def test_result_that_cannot_be_stored_does_not_end_the_job(conn: Any, result: object) -> None:
    claim = await hold(conn)
    before = await everything(conn)

    with pytest.raises(PayloadInvalid, match="result"):
        await end(conn, claim, Done(result))

    assert await everything(conn) == before


# ---------------------------------------------------------------------------------------------------------------------
# One transaction
# ---------------------------------------------------------------------------------------------------------------------


async def test_publish_commits_with_finish_unlock_children_and_history(conn: Any) -> None:
    """Promise 3, E-38, E-48."""
    claim = await hold(conn, locks=(Lock("t"),), slot_key="s")
    waiting = await add(conn, after=(claim.id,))

    async def publish(inside: Any) -> None:
        await inside.execute("INSERT INTO holdfast.controls (kind, reason) VALUES ('published', 'a domain row')")

    await end(conn, claim, Done(publish=publish, then=[NewJob("next")]))

    xids = await rows(
        conn,
        f"""SELECT xmin::text FROM holdfast.controls WHERE kind = 'published'
            UNION SELECT xmin::text FROM holdfast.jobs WHERE {claim.id} IN (id, parent_id) OR id = {waiting}
            UNION SELECT xmin::text FROM holdfast.history WHERE job_id IN ({claim.id}, {waiting})""",
    )
    assert await holders_of(conn, "t") == []
    assert await state_of(conn, waiting) == "pending"
    assert len(xids) == 1


@pytest.mark.parametrize("ended_with", ["publish", "child"])
async def test_failure_of_any_part_rolls_back_the_whole_finish(conn: Any, ended_with: str) -> None:
    claim = await hold(conn, locks=(Lock("t"),), slot_key="s")
    await add(conn, after=(claim.id,))
    await effects.plan(conn, claim, "query")
    before = await everything(conn)

    async def publish(inside: Any) -> None:
        await inside.execute("INSERT INTO holdfast.controls (kind) VALUES ('half')")
        raise RuntimeError("the domain says no")

    failing = Done(publish=publish) if ended_with == "publish" else Done(then=[NewJob("ok"), NewJob("bad", {"a": "\x00"})])
    with pytest.raises((RuntimeError, PayloadInvalid)):
        await end(conn, claim, failing)

    assert await everything(conn) == before
    await end(conn, claim)
    assert await state_of(conn, claim.id) == "completed", "the attempt still holds its job and may end otherwise"


async def test_publish_runs_inside_the_transaction_that_has_ended_the_job(conn: Any) -> None:
    claim = await hold(conn)
    seen: list[Any] = []

    async def publish(inside: Any) -> None:
        seen.append(await value(inside, "SELECT state FROM holdfast.jobs WHERE id = %s", claim.id))

    await end(conn, claim, Done(publish=publish))

    assert seen == ["completed"]


async def _lose_the_connection(conn: Any) -> None:
    with suppress(psycopg.Error):
        await conn.execute("SELECT pg_terminate_backend(pg_backend_pid())")


async def _swallow_an_error(conn: Any) -> None:
    with suppress(psycopg.Error):
        await conn.execute("SELECT 1 / 0")


async def _commit(conn: Any) -> None:
    await conn.execute("COMMIT")


async def _roll_back(conn: Any) -> None:
    await conn.execute("ROLLBACK")


@pytest.mark.parametrize(
    ("publish", "error", "why"),
    [
        (_lose_the_connection, psycopg.OperationalError, "lost while publish ran"),
        (_swallow_an_error, PublishFailed, "let the error propagate, or use a savepoint"),
        (_commit, PublishFailed, "must neither commit nor roll back"),
        (_roll_back, PublishFailed, "must neither commit nor roll back"),
    ],
)
async def test_finish_whose_publish_failed_is_not_counted(connect: Any, publish: Any, error: type[Exception], why: str) -> None:
    conn, observer = await connect(), await connect()
    claim = await hold(conn, locks=(Lock("t"),))

    with pytest.raises(error, match=why):
        await end(conn, claim, Done(publish=publish))

    assert await holders_of(observer, "t") == [claim.id], "nothing of it was done outside its transaction"
    assert await state_of(observer, claim.id) == ("completed" if publish is _commit else "running")


@pytest.mark.parametrize(
    ("ended_with", "told"),
    [(released("its worker ends"), ["slow"]), (Snooze(timedelta(0)), ["slow"]), (Snooze(HOUR), []), (None, [])],
    ids=["given back", "again", "again later", "done"],
)
async def test_idle_workers_are_notified_of_released_jobs(connect: Any, ended_with: Any, told: list[str]) -> None:
    listener, conn = await connect(), await connect()
    claim = await hold(conn, queue="slow")
    await listener.execute("LISTEN holdfast")

    await (finish(conn, claim, ended_with) if isinstance(ended_with, End) else end(conn, claim, ended_with))
    await conn.execute("NOTIFY holdfast, 'last'")

    heard = [hint.payload async for hint in listener.notifies(timeout=30, stop_after=len(told) + 1)]
    assert heard == [*told, "last"]


async def test_finish_can_run_in_the_callers_transaction(conn: Any) -> None:
    """For code that has its own session: the end is taken back with it."""
    claim = await hold(conn)

    async with conn.transaction(force_rollback=True):
        await end(conn, claim)

    assert await state_of(conn, claim.id) == "running"
    await end(conn, claim)


# ---------------------------------------------------------------------------------------------------------------------
# Batches
# ---------------------------------------------------------------------------------------------------------------------


async def test_a_batch_of_completions_is_one_statement_with_its_history(conn: Any) -> None:
    worker = await start_worker(conn)
    claims = [await hold(conn, worker=worker) for _ in range(5)]

    done = await complete_plain(conn, claims, [None, '{"a":1}', '"x\\\\y,\\"z\\""', "[1,2]", None])

    assert done == {claim.id for claim in claims}
    assert [(await job(conn, claim.id)).result for claim in claims] == [None, {"a": 1}, 'x\\y,"z"', [1, 2], None]
    entries = await rows(
        conn, "SELECT attempt_id::text, worker_id::text, move, xid::text FROM holdfast.history ORDER BY job_id"
    )
    assert [(e[0], e[1], e[2]) for e in entries] == [(claim.attempt_id, worker, "complete") for claim in claims]
    assert len({e[3] for e in entries}) == 1


async def test_batch_without_results_is_written(conn: Any) -> None:
    claims = [await hold(conn) for _ in range(3)]

    assert await complete_plain(conn, claims, [None] * 3) == {claim.id for claim in claims}
    assert {(await job(conn, claim.id)).result for claim in claims} == {None}


async def test_each_row_of_a_batch_is_fenced(conn: Any) -> None:
    healthy, stale, gone = await hold(conn), await hold(conn), await hold(conn)
    successor = await replace(conn, stale)
    await lose(conn, gone)

    done = await complete_plain(conn, [healthy, stale, gone], ["1", "2", "3"])

    assert done == {healthy.id}
    assert (await job(conn, stale.id)).attempt_id == successor.attempt_id
    assert await state_of(conn, gone.id) == "pending"


async def _with_a_lock(conn: Any) -> Any:
    return await hold(conn, locks=(Lock("t"),))


async def _with_a_slot(conn: Any) -> Any:
    return await hold(conn, slot_key="s")


async def _with_an_effect(conn: Any) -> Any:
    claim = await hold(conn)
    await effects.plan(conn, claim, "query")
    return claim


async def _with_a_dependant(conn: Any) -> Any:
    claim = await hold(conn)
    await add(conn, after=(claim.id,))
    return claim


@pytest.mark.parametrize("arrange", [_with_a_lock, _with_a_slot, _with_an_effect, _with_a_dependant])
async def test_batch_leaves_tied_jobs_to_the_full_finish(conn: Any, arrange: Any) -> None:
    """Also if it came to hang there after the claim, which the claim cannot know."""
    claim = await arrange(conn)
    before = await everything(conn)

    done = await complete_plain(conn, [claim], [None])

    assert done == set()
    assert await everything(conn) == before
    await finish(conn, claim, COMPLETED)
    assert await state_of(conn, claim.id) == "completed"


async def test_a_poll_can_complete_in_a_batch_as_well(conn: Any) -> None:
    claim = await hold(conn)
    await submit(conn, claim)
    looked = await poll(conn, claim.id)

    assert await complete_plain(conn, [looked], ['"done"']) == {claim.id}


async def test_end_time_is_the_clock_and_not_the_start_of_the_transaction(conn: Any) -> None:
    claim, plain = await hold(conn), await hold(conn)
    async with conn.transaction():
        started = await value(conn, "SELECT now()")
        await end(conn, claim, Retry("later", timedelta(hours=1)))
        await complete_plain(conn, [plain], [None])

    assert (await job(conn, claim.id)).run_after > started + HOUR  # type: ignore[operator]
    assert (await job(conn, plain.id)).finished_at > started  # type: ignore[operator]
    assert await column(conn, claim.id, "finished_at") is None
