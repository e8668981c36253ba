"""Pipelines: chain, fan-out, fan-in, the effect of a failure on dependants, and the status derived from the rows."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import psycopg
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
    moves_of,
    replace,
    rows,
    silence,
    start_worker,
    state_of,
    take,
    value,
    waits,
)
from holdfast.errors import Draining, NotFound, PayloadInvalid, UsageError
from holdfast.jobs.cancel import abort, cancel
from holdfast.jobs.control import drain, pause
from holdfast.jobs.enqueue import enqueue
from holdfast.jobs.finish import complete_plain, finish
from holdfast.jobs.model import Claim, Lock, NewJob
from holdfast.jobs.outcome import COMPLETED, Cancel, Done, Fail, Retry
from holdfast.jobs.pipelines import Pipeline, PipelineStatus, as_children, complete_and_chain, read_pipeline
from holdfast.jobs.rerun import rerun
from holdfast.jobs.rescue import rescue


async def _children(conn: Any, parent: int) -> list[tuple[Any, ...]]:
    return await rows(
        conn, "SELECT id, kind, step, state, pipeline_id::text FROM holdfast.jobs WHERE parent_id = %s ORDER BY id", parent
    )


# ---------------------------------------------------------------------------------------------------------------------
# Chain
# ---------------------------------------------------------------------------------------------------------------------


async def test_child_is_created_in_the_transaction_that_completes_its_parent(conn: Any) -> None:
    """K-45, P30, E-39: both or neither, and never the child first."""
    parent = await hold(conn, pipeline_id=str(uuid4()))

    await end(conn, parent, Done(then=[NewJob("next", {"a": 1})]))

    ((child, kind, step, state, pipeline),) = await _children(conn, parent.id)
    assert (kind, step, state, pipeline) == ("next", "0:next", "pending", parent.pipeline_id)
    same = """SELECT c.created_xid = h.xid FROM holdfast.jobs c JOIN holdfast.history h ON h.job_id = c.parent_id
              WHERE c.id = %s AND h.move = 'complete'"""
    assert await value(conn, same, child) is True


async def test_repeated_finish_creates_no_second_child(conn: Any) -> None:
    """The second wall: unique (parent, step)."""
    parent = await hold(conn)
    await end(conn, parent, Done(then=[NewJob("next", parent_id=None)]))

    with pytest.raises(psycopg.errors.UniqueViolation, match="one_child_per_step"):
        await conn.execute("INSERT INTO holdfast.jobs (kind, parent_id, step) VALUES ('next', %s, '0:next')", [parent.id])

    assert len(await _children(conn, parent.id)) == 1


async def test_children_get_unique_step_names_or_declare_them(conn: Any) -> None:
    parent = await hold(conn)
    jobs = [NewJob("a"), NewJob("a"), NewJob("b", step="load")]

    await end(conn, parent, Done(then=jobs))

    assert [step for _, _, step, _, _ in await _children(conn, parent.id)] == ["0:a", "1:a", "load"]


async def test_fifty_children_are_copied_in_the_same_transaction(conn: Any) -> None:
    parent = await hold(conn)

    await end(conn, parent, Done(then=[NewJob("part", number) for number in range(60)]))

    assert await value(conn, "SELECT count(DISTINCT created_xid::text) FROM holdfast.jobs WHERE parent_id = %s", parent.id) == 1
    assert len(await _children(conn, parent.id)) == 60


@pytest.mark.parametrize("ended_with", [Fail("no"), Cancel("no"), Retry("no")])
async def test_only_a_completion_creates_children(conn: Any, ended_with: object) -> None:
    parent = await hold(conn)
    await end(conn, parent, ended_with)

    assert await _children(conn, parent.id) == []


async def test_child_can_have_its_own_locks_slot_and_delay(conn: Any) -> None:
    parent = await hold(conn, locks=(Lock("t"),))

    await end(conn, parent, Done(then=[NewJob("k", locks=(Lock("t"),), slot_key="s", run_after=HOUR)]))

    ((child, *_),) = await _children(conn, parent.id)
    assert await column(conn, child, "ties") == 3
    assert (await job(conn, child)).run_after is not None


async def test_child_can_take_over_the_lock_of_its_parent(conn: Any) -> None:
    parent = await hold(conn, locks=(Lock("t"),))

    await end(conn, parent, Done(then=[NewJob("k", locks=(Lock("t", when_busy="reject"),))]))

    ((child, *_),) = await _children(conn, parent.id)
    assert await holders_of(conn, "t") == [child], "the parent gives it back in the same transaction"


def test_children_share_the_pipeline_of_their_parent() -> None:
    """K-46."""
    pipeline = str(uuid4())
    parent = Claim(*([None] * len(Claim._fields)))._replace(id=7, pipeline_id=pipeline)  # type: ignore[arg-type]

    (child,) = as_children(parent, [NewJob("next")])

    assert (child.parent_id, child.step, child.pipeline_id) == (7, "0:next", pipeline)


# ---------------------------------------------------------------------------------------------------------------------
# Complete and hold the next step, in one commit
# ---------------------------------------------------------------------------------------------------------------------


async def test_next_step_is_claimed_in_the_commit_that_completes_the_previous(conn: Any) -> None:
    """K-47."""
    parent = await hold(conn, pipeline_id=str(uuid4()))
    child = await complete_and_chain(
        conn, parent, '{"rows":3}', NewJob("next", {"a": 1}, queue="q", priority=4, max_attempts=7, max_runtime=HOUR)
    )

    assert child is not None
    found = await job(conn, child.id)
    assert (await job(conn, parent.id)).result == {"rows": 3}
    assert (found.state, found.attempt_id, found.worker_id) == ("running", child.attempt_id, parent.worker_id)
    assert (child.kind, child.payload, child.queue, child.priority, child.max_attempts) == ("next", {"a": 1}, "q", 4, 7)
    assert (child.attempt_no, child.parent_id, child.pipeline_id) == (1, parent.id, parent.pipeline_id)
    assert child.fence_token > parent.fence_token
    assert await column(conn, child.id, "deadline_at") is not None
    assert await moves_of(conn, parent.id) == ["complete"]
    same = "SELECT count(DISTINCT xmin::text) FROM holdfast.jobs WHERE id IN (%s, %s)"
    assert await value(conn, same, parent.id, child.id) == 1


async def test_chained_step_is_rescued_like_any_job(conn: Any) -> None:
    """K-48."""
    parent = await hold(conn)
    child = await complete_and_chain(conn, parent, None, NewJob("k"))
    assert child is not None
    await silence(conn, child)

    assert await rescue(conn) == [child.id]
    assert (await take(conn, child.id)).attempt_no == 2


@pytest.mark.parametrize("tie", ["lock", "slot", "dependant"])
async def test_parent_with_ties_claims_no_next_step(conn: Any, tie: str) -> None:
    parent = await hold(conn, locks=(Lock("t"),) if tie == "lock" else (), slot_key="s" if tie == "slot" else None)
    if tie == "dependant":
        await add(conn, after=(parent.id,))
    before = await everything(conn)

    assert await complete_and_chain(conn, parent, None, NewJob("next")) is None

    assert await everything(conn) == before


async def test_replaced_parent_claims_no_next_step(conn: Any) -> None:
    """E-04: a stale attempt has no children."""
    parent = await hold(conn)
    await replace(conn, parent)
    before = await everything(conn)

    assert await complete_and_chain(conn, parent, None, NewJob("next")) is None

    assert await everything(conn) == before


async def test_child_payload_that_cannot_be_stored_leaves_the_parent_unchanged(conn: Any) -> None:
    parent = await hold(conn)
    before = await everything(conn)

    with pytest.raises(PayloadInvalid):
        await complete_and_chain(conn, parent, None, NewJob("next", {"a": "\x00"}))

    assert await everything(conn) == before


@pytest.mark.parametrize("paused", ["next", "*"])
async def test_next_step_of_a_paused_kind_is_not_claimed(conn: Any, paused: str) -> None:
    """It is a claim as well, and a paused kind is not claimed."""
    parent = await hold(conn)
    await pause(conn, paused, actor="ada")

    assert await complete_and_chain(conn, parent, None, NewJob("next")) is None

    await end(conn, parent, Done(then=[NewJob("next")]))
    ((_, _, _, state, _),) = await _children(conn, parent.id)
    assert state == "pending"


async def test_step_with_a_cancellation_request_claims_no_next_step(conn: Any) -> None:
    """Its pipeline may have been aborted: the full finish looks at that."""
    pipeline = Pipeline("chain")
    pipeline.add(NewJob("k"))
    (made,) = await pipeline.enqueue(conn)
    parent = await take(conn, made.id)
    await abort(conn, pipeline.id, actor="ada")

    assert await complete_and_chain(conn, parent, None, NewJob("next")) is None

    await end(conn, parent, Done(then=[NewJob("next")]))
    assert await _children(conn, parent.id) == []


@pytest.mark.parametrize("way", ["finish", "one commit"])
async def test_drain_accepts_steps_of_running_pipelines(conn: Any, way: str) -> None:
    """What is there runs to its end; both ways to end a parent must agree on it."""
    parent = await hold(conn)
    await drain(conn, "next", actor="ada")

    if way == "finish" or await complete_and_chain(conn, parent, None, NewJob("next")) is None:
        await end(conn, parent, Done(then=[NewJob("next")]))

    assert len(await _children(conn, parent.id)) == 1
    with pytest.raises(Draining):
        await enqueue(conn, NewJob("next"))


# ---------------------------------------------------------------------------------------------------------------------
# Fan-out and fan-in
# ---------------------------------------------------------------------------------------------------------------------


async def test_job_starts_when_its_last_parent_has_completed(conn: Any) -> None:
    parents = [await hold(conn) for _ in range(3)]
    child = await add(conn, after=tuple(parent.id for parent in parents))
    left = []
    for parent in parents:
        await end(conn, parent)
        left.append((await column(conn, child, "parents_left"), await state_of(conn, child)))

    assert left == [(2, "blocked"), (1, "blocked"), (0, "pending")]
    assert await moves_of(conn, child) == ["wake"]


async def test_cancelled_child_is_not_woken_by_its_parents(conn: Any) -> None:
    first, second = await hold(conn), await hold(conn)
    child = await add(conn, after=(first.id, second.id))
    await cancel(conn, child, actor="ada")

    await end(conn, first)
    await end(conn, second)

    assert await state_of(conn, child) == "cancelled"


async def test_join_waits_for_all_children_of_its_parent(conn: Any) -> None:
    parent = await hold(conn, pipeline_id=str(uuid4()))

    await end(conn, parent, Done(then=[NewJob("k"), NewJob("k")], join=NewJob("join")))

    *parts, (join, _, step, state, pipeline) = await _children(conn, parent.id)
    assert (step, state, pipeline) == ("join:join", "blocked", parent.pipeline_id)
    for part, *_ in parts:
        await end(conn, await take(conn, part))
    assert await state_of(conn, join) == "pending"


async def test_child_that_depends_on_its_parent_and_another_job_waits_for_the_other(conn: Any) -> None:
    """The parent has ended when the child is made, and counts its dependants down only then."""
    parent, other = await hold(conn), await hold(conn)
    await add(conn, after=(parent.id,))  # so that it looks for dependants at all

    await end(conn, parent, Done(then=[NewJob("child", after=(parent.id, other.id))]))

    ((child, state),) = await rows(conn, "SELECT id, state FROM holdfast.jobs WHERE kind = 'child'")
    assert state == "blocked"
    await end(conn, other, Done())
    assert await state_of(conn, child) == "pending"


async def test_parents_that_end_concurrently_lock_their_child_in_turn(connect: Any) -> None:
    """A count is never lost: the second waits for the first, then counts on from what it wrote."""
    conn, one, two = await connect(), await connect(), await connect()
    first, second = await hold(conn), await hold(conn)
    child = await add(conn, after=(first.id, second.id))

    async with one.transaction():
        await finish(one, first, COMPLETED)
        finishing = asyncio.create_task(finish(two, second, COMPLETED))
        await waits(conn, two)
    await finishing

    assert (await column(conn, child, "parents_left"), await state_of(conn, child)) == (0, "pending")


async def test_parent_cannot_end_unnoticed_while_a_dependant_is_added(connect: Any) -> None:
    conn, enqueuer, finisher = await connect(), await connect(), await connect()
    parent = await hold(conn)

    async with enqueuer.transaction():
        child = await add(enqueuer, after=(parent.id,))
        finishing = asyncio.create_task(complete_plain(finisher, [parent], [None]))
        await waits(conn, finisher)

    assert await finishing == set(), "something hangs on it now, so the plain way is closed"
    await end(conn, parent)
    assert await state_of(conn, child) == "pending"


async def test_dependant_added_during_the_end_of_its_parent_sees_the_end(connect: Any) -> None:
    conn, enqueuer, finisher = await connect(), await connect(), await connect()
    parent = await hold(conn)

    async with finisher.transaction():
        await finish(finisher, parent, COMPLETED)
        adding = asyncio.create_task(add(enqueuer, after=(parent.id,)))
        await waits(conn, enqueuer)

    assert await state_of(conn, await adding) == "pending"


# ---------------------------------------------------------------------------------------------------------------------
# Failure
# ---------------------------------------------------------------------------------------------------------------------


async def test_failure_cancels_all_transitive_dependants(conn: Any) -> None:
    parent = await hold(conn, max_attempts=1)
    child = await add(conn, after=(parent.id,))
    grandchild = await add(conn, after=(child,))
    sibling = await add(conn, after=(await add(conn), parent.id))

    await end(conn, parent, ValueError("odd"))

    assert [await state_of(conn, i) for i in (child, grandchild, sibling)] == ["cancelled"] * 3
    found = await job(conn, grandchild)
    assert (found.cause, found.error) == ("parent", f"parent {child} cancelled")
    assert (await job(conn, child)).error == f"parent {parent.id} failed"
    assert await moves_of(conn, child) == ["cancel"]


async def test_job_can_run_although_a_parent_failed(conn: Any) -> None:
    failing, other = await hold(conn), await hold(conn)
    cleanup = await add(conn, after=(failing.id, other.id), if_parent_fails="run")

    await end(conn, failing, Fail("no"))
    between = await state_of(conn, cleanup)
    await end(conn, other)

    assert (between, await state_of(conn, cleanup)) == ("blocked", "pending")


async def test_retry_of_a_parent_does_not_cancel_dependants(conn: Any) -> None:
    parent = await hold(conn)
    child = await add(conn, after=(parent.id,))

    await end(conn, parent, ValueError("odd"))

    assert await state_of(conn, child) == "blocked"


async def test_failed_parent_refuses_new_dependants(conn: Any) -> None:
    parent = await hold(conn)
    await end(conn, parent, Fail("no"))

    with pytest.raises(NotFound, match="could never run; use if_parent_fails='run'"):
        await add(conn, after=(parent.id,))

    assert await state_of(conn, await add(conn, after=(parent.id,), if_parent_fails="run")) == "pending"


async def test_repeated_end_of_a_parent_is_counted_once(conn: Any) -> None:
    """Failed, run again by an operator, completed: the other parent has still to end."""
    failing, other = await hold(conn), await hold(conn)
    child = await add(conn, after=(failing.id, other.id), if_parent_fails="run")
    await end(conn, failing, Fail("no"))
    await rerun(conn, failing.id, actor="ada")

    await end(conn, await take(conn, failing.id))

    assert (await column(conn, child, "parents_left"), await state_of(conn, child)) == (1, "blocked")


# ---------------------------------------------------------------------------------------------------------------------
# A pipeline as a whole
# ---------------------------------------------------------------------------------------------------------------------


def _diamond() -> Pipeline:
    pipeline = Pipeline("nightly")
    extract = pipeline.add(NewJob("k", {"part": "extract"}))
    parts = [pipeline.add(NewJob("k", {"part": n}), after=extract) for n in range(2)]
    pipeline.add(NewJob("k", {"part": "report"}), after=parts)
    return pipeline


async def test_pipeline_is_created_in_one_transaction(conn: Any) -> None:
    """K-46."""
    pipeline = _diamond()

    made = await pipeline.enqueue(conn)

    found = await rows(
        conn,
        "SELECT id, state, parents_left, created_xid::text FROM holdfast.jobs WHERE pipeline_id = %s ORDER BY id",
        pipeline.id,
    )
    assert [row[0] for row in found] == [m.id for m in made]
    assert [row[1:3] for row in found] == [("pending", 0), ("blocked", 1), ("blocked", 1), ("blocked", 2)]
    assert len({row[3] for row in found}) == 1


async def test_pipeline_is_created_completely_or_not_at_all(conn: Any) -> None:
    pipeline = _diamond()
    pipeline.add(NewJob("k", {"bad": "\x00"}))
    before = await everything(conn)

    with pytest.raises(PayloadInvalid):
        await pipeline.enqueue(conn)

    assert await everything(conn) == before


async def test_pipeline_runs_in_order_and_derives_its_status_from_its_jobs(conn: Any) -> None:
    pipeline = _diamond()
    made = [m.id for m in await pipeline.enqueue(conn)]
    statuses = []
    for job_id in made:
        statuses.append((await read_pipeline(conn, pipeline.id)).status)
        await end(conn, await take(conn, job_id))

    view = await read_pipeline(conn, pipeline.id)
    assert statuses == [PipelineStatus.RUNNING] * 4
    assert (view.name, view.status, view.counts) == ("nightly", PipelineStatus.COMPLETED, {"completed": 4})


@pytest.mark.parametrize(("fails", "status"), [(0, "failed"), (1, "partial"), (3, "partial")])
async def test_failure_appears_in_the_pipeline_status(conn: Any, fails: int, status: str) -> None:
    pipeline = _diamond()
    made = [m.id for m in await pipeline.enqueue(conn)]
    for number, job_id in enumerate(made):
        if await state_of(conn, job_id) == "pending":
            await end(conn, await take(conn, job_id), Fail("no") if number == fails else None)

    assert (await read_pipeline(conn, pipeline.id)).status == status


async def test_children_of_a_step_belong_to_the_pipeline(conn: Any) -> None:
    pipeline = Pipeline("nightly")
    pipeline.add(NewJob("k"))
    (first,) = await pipeline.enqueue(conn)

    await end(conn, await take(conn, first.id), Done(then=[NewJob("k")]))

    assert (await read_pipeline(conn, pipeline.id)).counts == {"completed": 1, "pending": 1}


async def test_status_is_cancelled_when_all_jobs_were_cancelled(conn: Any) -> None:
    pipeline = _diamond()
    made = await pipeline.enqueue(conn)

    await cancel(conn, made[0].id, actor="ada")

    assert (await read_pipeline(conn, pipeline.id)).status == "cancelled"


async def test_unknown_pipeline_is_none(conn: Any) -> None:
    with pytest.raises(NotFound, match="there is no pipeline"):
        await read_pipeline(conn, str(uuid4()))


async def test_a_pipeline_without_jobs_is_refused(conn: Any) -> None:
    with pytest.raises(UsageError, match="has no jobs; add one first"):
        await Pipeline("empty").enqueue(conn)


def test_a_step_of_another_pipeline_is_refused() -> None:
    long = _diamond()
    last = long.add(NewJob("k"))

    with pytest.raises(UsageError, match="names a step of another pipeline"):
        Pipeline("short").add(NewJob("k"), after=last)


async def test_chained_step_belongs_to_the_worker_that_completed_the_previous(conn: Any) -> None:
    worker = await start_worker(conn)
    parent = await hold(conn, worker=worker)

    child = await complete_and_chain(conn, parent, None, NewJob("k"))

    assert child is not None
    assert child.worker_id == worker
