"""Handlers that end in invalid ways: each fails its own attempt, and never the worker."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from test_worker import QUICK, a_kind, drain, working

from holdfast import Cancel, Context, Done, Fail, NewJob, Retry, Snooze, Submitted, WorkerOptions
from holdfast.errors import UsageError
from holdfast.jobs.enqueue import enqueue
from holdfast.jobs.outcome import COMPLETED, End
from holdfast.jobs.states import Move, State
from holdfast.jobs.views.history import history
from holdfast.jobs.views.read import get_job
from holdfast.worker.attempt import CompletionBatches
from holdfast.worker.in_process import Runner
from holdfast.worker.outcome_writer import OutcomeWriter
from holdfast.worker.transports.direct import Direct
from workers import ended, until

LATER = timedelta(hours=1)
LEAF = NewJob("leaf")


async def neighbour() -> str:
    return "all is well"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: Snooze(30), r"Snooze\(…\) takes a timedelta, as in timedelta\(seconds=30\), not int \(30\)"),  # type: ignore[arg-type]
        (lambda: Snooze(timedelta.max), "at most 36500 days"),
        (lambda: Snooze(LATER, 7), "Snooze takes a reason as text"),  # type: ignore[arg-type]
        (lambda: Retry("busy", delay=5), r"Retry\(delay=…\) takes a timedelta"),  # type: ignore[arg-type]
        (lambda: Retry(ValueError("busy")), r"as in Retry\(str\(error\)\), not ValueError"),  # type: ignore[arg-type]
        (lambda: Fail(ValueError("no")), "Fail takes a reason as text"),  # type: ignore[arg-type]
        (lambda: Cancel(None), "Cancel takes a reason as text"),  # type: ignore[arg-type]
        (lambda: Submitted("q-1", poll_after=3), "takes a timedelta"),  # type: ignore[arg-type]
        (lambda: Done(then=LEAF), r"a list of jobs, as in then=\[render.new"),  # type: ignore[arg-type]
        (lambda: Done(then=["leaf"]), "then and join take jobs"),  # type: ignore[list-item]
        (lambda: Done(join="leaf"), "then and join take jobs"),  # type: ignore[arg-type]
        (lambda: Done(publish="leaf"), "publish must be an async function"),  # type: ignore[arg-type]
    ],
)
async def test_invalid_outcome_is_refused_on_construction_and_the_worker_continues(database, conn, wrong, says):
    async def handler() -> Any:
        return wrong()

    kind, other = a_kind(handler), a_kind(neighbour)
    made = await enqueue(conn, kind.new())
    beside = await enqueue(conn, other.new())

    await drain(database, kind, other)

    with pytest.raises(UsageError, match=says):
        wrong()
    found = await get_job(conn, made.id)
    assert (found.state, found.errors) == ("failed", 1)
    assert found.error.startswith("holdfast.errors.UsageError")
    assert (await get_job(conn, beside.id)).state == "completed"


async def test_chained_value_must_be_a_job(database, conn):
    async def handler(ctx: Context) -> None:
        ctx.chain(neighbour)  # type: ignore[arg-type]

    kind = a_kind(handler)
    made = await enqueue(conn, kind.new())

    await drain(database, kind)

    found = await get_job(conn, made.id)
    assert found.state == "failed"
    assert "as in render.new(invoice_id=7), not function" in found.error


async def _cancelled_inside() -> None:
    inner = asyncio.create_task(asyncio.sleep(3600))
    asyncio.get_running_loop().call_soon(inner.cancel)
    await inner


async def _exits() -> None:
    sys.exit(3)


def _exits_in_a_thread() -> None:
    sys.exit(3)


@pytest.mark.parametrize(
    ("handler", "error"),
    [
        (_cancelled_inside, "CancelledError"),
        (_exits, "SystemExit: 3"),
        (_exits_in_a_thread, "SystemExit: 3"),
    ],
)
async def test_handler_that_cancels_itself_or_exits_fails_only_its_job(database, conn, handler: Callable[[], Any], error: str):
    kind, other = a_kind(handler, max_attempts=1), a_kind(neighbour)
    made = await enqueue(conn, kind.new())

    async with working(database, kind, other):
        found = await ended(conn, made.id)
        beside = await ended(conn, (await enqueue(conn, other.new())).id)

    assert found.state == "failed"
    assert found.error.endswith(error)
    assert beside.state == "completed"


@pytest.mark.parametrize("raised", [FileNotFoundError("no such file"), ConnectionRefusedError("not the database")])
async def test_publish_that_raises_a_connection_error_is_retried_a_bounded_number_of_times(database, conn, raised):
    calls: list[int] = []

    async def handler() -> Done:
        async def publish(_conn: Any) -> None:
            calls.append(1)
            raise raised

        return Done(publish=publish)

    kind = a_kind(handler, max_attempts=1)
    made = await enqueue(conn, kind.new())

    await drain(database, kind)

    found = await get_job(conn, made.id)
    assert (found.state, found.errors, len(calls)) == ("failed", 1, 1)
    assert str(raised) in found.error


async def test_publish_whose_connection_is_cut_is_retried(database, conn):
    """The other half of the guard: there it was the database, and the handler's work is not lost."""
    calls: list[int] = []

    async def handler() -> Done:
        async def publish(own: Any) -> None:
            calls.append(1)
            if len(calls) == 1:
                await conn.execute("SELECT pg_terminate_backend(%s)", [own.info.backend_pid])
            await own.execute("SELECT 1")

        return Done(publish=publish)

    kind = a_kind(handler, max_attempts=1)
    made = await enqueue(conn, kind.new())

    await drain(database, kind)

    assert ((await get_job(conn, made.id)).state, len(calls)) == ("completed", 2)


async def test_sync_publish_is_reported(database, conn):
    async def handler() -> Done:
        return Done(publish=lambda _conn: None)  # type: ignore[arg-type,return-value]

    kind = a_kind(handler)
    made = await enqueue(conn, kind.new())

    await drain(database, kind)

    assert "publish must be an async function" in (await get_job(conn, made.id)).error


async def test_finish_that_cannot_be_written_becomes_a_failure(database, conn, monkeypatch: pytest.MonkeyPatch):
    """Whatever gets past the outcome's own checks."""
    said = Snooze(LATER)
    object.__setattr__(said, "delay", "soon")

    async def handler() -> Any:
        return said

    kind = a_kind(handler)
    made = await enqueue(conn, kind.new())

    await drain(database, kind)

    found = await get_job(conn, made.id)
    assert (found.state, found.cause) == ("failed", "permanent")
    assert found.error.startswith("its end could not be written")


@pytest.mark.parametrize("how", ["done", "context"])
async def test_fan_out_without_children_still_runs_its_join(database, conn, how: str):
    joined: list[int] = []

    async def gather() -> None:
        joined.append(1)

    last = a_kind(gather)

    async def spread(ctx: Context) -> Done | None:
        if how == "done":
            return Done(then=[], join=last.new())
        ctx.chain(join=last.new())
        return None

    first = a_kind(spread)
    await enqueue(conn, first.new())

    await drain(database, first, last)

    assert joined == [1]


async def test_duplicate_steps_are_refused(database, conn):
    leaf = a_kind(neighbour)

    async def spread() -> Done:
        return Done(then=[NewJob(leaf.kind, step="same"), NewJob(leaf.kind, step="same")])

    kind = a_kind(spread)
    made = await enqueue(conn, kind.new())

    await drain(database, kind, leaf)

    found = await get_job(conn, made.id)
    assert found.state == "failed"
    assert "have the step 'same'" in found.error
    assert await (await conn.execute("SELECT count(*) FROM holdfast.jobs")).fetchone() == (1,)


async def test_lost_response_of_a_chained_step_is_looked_up(database, conn, monkeypatch: pytest.MonkeyPatch):
    """The commit is there; its answer is not. The child that it claimed is given back after a lease, and runs."""
    chained = Direct.complete_and_chain
    lost: list[int] = []

    async def answers_too_late(self: Direct, *arguments: Any) -> Any:
        following = await chained(self, *arguments)
        if not lost:
            lost.append(1)
            raise ConnectionResetError("the answer was lost")
        return following

    monkeypatch.setattr(Direct, "complete_and_chain", answers_too_late)
    seen: list[int] = []

    async def step(number: int) -> Done | None:
        seen.append(number)
        return Done(then=[kind.new(number=number + 1)]) if number < 2 else None

    kind = a_kind(step, "test.chained_step")
    first = await enqueue(conn, kind.new(number=0))

    async with working(database, kind, options=WorkerOptions(beat=QUICK.beat, lease=timedelta(seconds=2))):

        async def all_three() -> bool:
            return await (await conn.execute("SELECT count(*) FROM holdfast.jobs WHERE state = 'completed'")).fetchone() == (3,)

        await until(all_three)

    assert seen.count(0) == 1
    assert [row.move for row in await history(conn, first.id)] == ["complete"]


async def test_handler_that_ignores_cancellation_does_not_block_the_shutdown(database, conn, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("holdfast.worker.loop.UNTIL_CANCELLED", 0.1)
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def stubborn() -> None:
        begun.set()
        while not may_end.is_set():
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                continue

    kind = a_kind(stubborn)
    made = await enqueue(conn, kind.new())

    async with working(database, kind, options=WorkerOptions(beat=QUICK.beat, lease=QUICK.lease, grace=timedelta())):
        await asyncio.wait_for(begun.wait(), 60)
    found = await get_job(conn, made.id)
    may_end.set()

    assert (found.state, found.errors) == ("pending", 0)


async def test_runner_replaces_a_worker_that_lost_a_task(database, conn, monkeypatch: pytest.MonkeyPatch):
    """A cancelled duty used to end the runner of a web application without a word."""
    written = CompletionBatches.write_batches
    cut: list[int] = []

    async def cancelled_once(self: CompletionBatches) -> None:
        if not cut:
            cut.append(1)
            raise asyncio.CancelledError
        await written(self)

    monkeypatch.setattr(CompletionBatches, "write_batches", cancelled_once)
    kind = a_kind(neighbour)
    runner = Runner(database, [kind], QUICK)
    running = asyncio.create_task(runner.run())
    try:
        made = await enqueue(conn, kind.new())
        assert (await ended(conn, made.id)).state == "completed"
    finally:
        runner.stop()
        await asyncio.wait_for(running, 60)


async def test_end_written_by_an_isolated_process_returns_the_next_poll_time():
    said: list[End] = []
    writer = OutcomeWriter(None, lambda _kind: None, said.append)  # type: ignore[arg-type,return-value]
    claim: Any = type("Claimed", (), {"kind": "engine"})()

    writer.record_written(claim, "complete", back=None)
    writer.record_written(claim, "submit", back=(State.SUBMITTED, timedelta(seconds=2)))

    assert said == [COMPLETED, End(Move.RELEASE, State.SUBMITTED, delay=timedelta(seconds=2))]
