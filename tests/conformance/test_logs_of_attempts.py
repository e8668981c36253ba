"""What handlers log, through a `Worker` on each transport: kept in batches, before the end, and never at the job's cost."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from conformance.conftest import GENEROUS, Api, Make, serving
from conformance.test_whole_jobs import QUICK, ended, until, working
from factories import make_due, rows, state_of, value
from holdfast import Context, Fail, Retry, SyncContext, Worker
from holdfast.api.app import make_app
from holdfast.database.pool import pool
from holdfast.errors import Unreachable
from holdfast.jobs.enqueue import enqueue, enqueue_many
from holdfast.jobs.logs import MOST_LINES, Numbered
from holdfast.jobs.model import AttemptId
from holdfast.jobs.rescue import rescue_worker
from holdfast.jobs.views.logs import read_lines
from holdfast.telemetry.metrics import stale_writebacks
from holdfast.worker.kinds import Job, job
from holdfast.worker.transports.interface import Transport
from holdfast.worker.transports.remote import Remote


def a_kind(function: Callable[..., Any], **policy: Any) -> Job[..., Any]:
    """A kind that only this test knows."""
    return job(f"logs.{function.__name__}", **policy)(function)


class Counted:
    """A transport that counts the writes of lines, and may refuse to do them."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.batches: list[int] = []
        self.fails: Exception | None = None
        self.hangs = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    async def write_logs(self, lines: Sequence[Numbered]) -> set[AttemptId]:
        self.batches.append(len(lines))
        if self.hangs:
            await asyncio.Event().wait()
        if self.fails is not None:
            raise self.fails
        return await self._transport.write_logs(lines)


@pytest.fixture
def counted(make: Make) -> Any:
    return Counted(make())


async def drain(transport: Any, *kinds: Any, **options: Any) -> None:
    await asyncio.wait_for(Worker(transport, kinds, replace(QUICK, **options)).run(until_empty=True), 120)


async def lines_of(conn: Any, job_id: Any, **which: Any) -> list[tuple[int, str, str]]:
    return [(line.attempt_no, line.level, line.message) for line in await read_lines(conn, job_id, **which)]


async def test_lines_of_async_and_sync_handlers_are_stored_with_their_attempt(counted: Any, conn: Any) -> None:
    async def in_loop(ctx: Context) -> Any:
        ctx.log.info("in the loop", rows=5)
        await asyncio.create_task(asyncio.to_thread(ctx.log.warning, "in a thread of a task"))
        return None if ctx.job.attempt_no == 2 else Retry("again", delay=timedelta(0))

    def in_thread(ctx: SyncContext) -> None:
        ctx.log.bind(part=2).error("in a thread")
        logging.getLogger("theirs").critical("old %s", "style")

    one, other = a_kind(in_loop), a_kind(in_thread)
    first, second = (await enqueue(conn, one.new())).id, (await enqueue(conn, other.new())).id

    await drain(counted, one, other)

    both = [("info", "in the loop"), ("warning", "in a thread of a task")]
    assert await lines_of(conn, first) == [(attempt, *line) for attempt in (1, 2) for line in both]
    assert await lines_of(conn, second) == [(1, "error", "in a thread"), (1, "critical", "old style")]
    assert [line.fields for line in await read_lines(conn, second)] == [{"part": 2}, {"logger": "theirs"}]


async def test_handler_without_logs_costs_no_statement(counted: Any, conn: Any) -> None:
    async def silent(number: int) -> None: ...

    kind = a_kind(silent)
    await enqueue_many(conn, [kind.new(number=n) for n in range(50)])

    await drain(counted, kind)

    assert counted.batches == []


async def test_own_log_lines_are_not_stored_as_handler_lines(counted: Any, conn: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def fails() -> Fail:
        return Fail("and says nothing")

    kind = a_kind(fails)
    job_id = (await enqueue(conn, kind.new())).id

    with caplog.at_level(logging.INFO):
        await drain(counted, kind)

    assert "job_failed" in caplog.text
    assert await state_of(conn, job_id) == "failed"
    assert counted.batches == []


async def test_lines_are_written_in_batches_and_the_last_thousand_kept(counted: Any, conn: Any) -> None:
    async def chatty(ctx: Context) -> None:
        for n in range(MOST_LINES + 500):
            ctx.log.info(f"line {n}")

    kind = a_kind(chatty)
    job_id = (await enqueue(conn, kind.new())).id

    await drain(counted, kind)

    assert sum(counted.batches) == MOST_LINES, "the handler never gave way, so nothing older was on its way before"
    assert len(counted.batches) == 5, "two hundred in a batch"
    found = await read_lines(conn, job_id, limit=5000)
    assert [line.message for line in found] == [f"line {n}" for n in range(500, MOST_LINES + 500)]
    assert found[0].line_no == 501, "how many there were before can be told"


async def test_lines_of_many_attempts_share_a_batch(counted: Any, conn: Any) -> None:
    together = asyncio.Barrier(4)

    async def says_one(ctx: Context, number: int) -> None:
        await together.wait()
        ctx.log.info(f"line of {number}")

    kind = a_kind(says_one)
    await enqueue_many(conn, [kind.new(number=n) for n in range(40)])

    await drain(counted, kind)

    assert await value(conn, "SELECT count(*) FROM holdfast.log_lines") == 40
    assert sum(counted.batches) == 40
    assert len(counted.batches) < 40


async def test_follower_sees_a_line_while_the_handler_runs(make: Make, conn: Any) -> None:
    go_on = asyncio.Event()

    async def slow(ctx: Context) -> None:
        ctx.log.info("begun")
        await go_on.wait()

    kind = a_kind(slow)
    job_id = (await enqueue(conn, kind.new())).id
    async with working(make(), kind):

        async def is_there() -> bool:
            return await lines_of(conn, job_id) == [(1, "info", "begun")]

        await until(is_there)
        assert await state_of(conn, job_id) == "running"
        go_on.set()
        await ended(conn, job_id)


async def test_lines_of_an_attempt_that_lost_its_job_are_refused_and_counted(counted: Any, conn: Any) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(ctx: Context) -> None:
        if ctx.job.attempt_no == 1:
            begun.set()
            await go_on.wait()
        ctx.log.info(f"attempt {ctx.job.attempt_no}")

    kind = a_kind(slow, max_crashes=9)
    job_id = (await enqueue(conn, kind.new())).id
    before = stale_writebacks.labels("logs")._value.get()
    async with working(counted, kind, options=replace(QUICK, beat=timedelta(minutes=20), lease=timedelta(hours=1))) as worker:
        await asyncio.wait_for(begun.wait(), 120)
        assert await rescue_worker(conn, worker.id, cause="crash", error="gone", jobs=[job_id]) == [job_id]
        go_on.set()

        async def is_refused() -> bool:
            return bool(stale_writebacks.labels("logs")._value.get() == before + 1)

        await until(is_refused)
        await make_due(conn, job_id)
        worker.nudge()
        await ended(conn, job_id)

    assert await lines_of(conn, job_id) == [(2, "info", "attempt 2")]


@pytest.mark.parametrize("trouble", ["the database is away", "it cannot be stored", "nobody answers"])
async def test_job_ends_normally_when_its_lines_cannot_be_written(
    counted: Any, conn: Any, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.worker.log_buffer.FINISH_TIMEOUT", 0.1)
    monkeypatch.setattr("holdfast.worker.log_buffer.CLOSE_TIMEOUT", 0.1)

    async def says(ctx: Context) -> str:
        ctx.log.info("in vain")
        return "done"

    counted.fails = {"the database is away": Unreachable("away"), "it cannot be stored": ValueError("no")}.get(trouble)
    counted.hangs = counted.fails is None
    kind = a_kind(says)
    job_id = (await enqueue(conn, kind.new())).id

    await drain(counted, kind)

    assert await state_of(conn, job_id) == "completed"
    assert await lines_of(conn, job_id) == []
    assert counted.batches, "it was tried"


async def test_failed_lines_are_written_with_the_next_batch(counted: Any, conn: Any) -> None:
    go_on = asyncio.Event()

    async def says(ctx: Context) -> None:
        ctx.log.info("first")
        await go_on.wait()
        ctx.log.info("second")

    counted.fails = Unreachable("away")
    kind = a_kind(says)
    job_id = (await enqueue(conn, kind.new())).id
    async with working(counted, kind):

        async def was_tried() -> bool:
            return bool(counted.batches)

        await until(was_tried)
        counted.fails = None
        go_on.set()
        await ended(conn, job_id)

    assert await lines_of(conn, job_id) == [(1, "info", "first"), (1, "info", "second")]


async def test_thread_that_outlives_its_attempt_logs_nothing(make: Make, conn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ran too long and was given up; whatever it says now belongs to nobody."""
    longest = timedelta(minutes=7)
    said, go_on, over = threading.Event(), threading.Event(), threading.Event()
    wait_for = asyncio.wait_for

    async def until_it_has_spoken(work: Any, timeout: float | None) -> Any:
        if timeout != longest.total_seconds():
            return await wait_for(work, timeout)
        running = asyncio.ensure_future(work)
        await asyncio.to_thread(said.wait, 120)
        return await wait_for(running, 0)

    monkeypatch.setattr(asyncio, "wait_for", until_it_has_spoken)

    def stubborn(ctx: SyncContext) -> None:
        ctx.log.info("in time")
        said.set()
        go_on.wait(120)
        ctx.log.info("too late")
        over.set()

    kind = a_kind(stubborn, max_runtime=longest, max_attempts=1)
    job_id = (await enqueue(conn, kind.new())).id
    async with working(make(), kind):
        await ended(conn, job_id)
        go_on.set()
        await asyncio.to_thread(over.wait, 120)

    assert await lines_of(conn, job_id) == [(1, "info", "in time")]


async def test_forked_copy_of_a_handler_adds_nothing(make: Make, conn: Any) -> None:
    def forks(ctx: SyncContext) -> None:
        ctx.log.info("before")
        child = os.fork()
        if child == 0:
            try:
                ctx.log.info("from the copy")
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        ctx.log.info("after")

    kind = a_kind(forks)
    job_id = (await enqueue(conn, kind.new())).id

    await drain(make(), kind)

    assert await lines_of(conn, job_id) == [(1, "info", "before"), (1, "info", "after")]


async def test_lines_of_a_stopped_attempt_are_written_before_its_release(
    make: Make, conn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.worker.log_buffer.PAUSE", 3600)  # what comes after the first write waits for the end
    monkeypatch.setattr("holdfast.worker.log_buffer.CLOSE_TIMEOUT", 60)
    begun = asyncio.Event()

    async def endless(ctx: Context) -> None:
        ctx.log.info("begun")
        while not await lines_of(conn, ctx.job.id):
            await asyncio.sleep(0.01)
        ctx.log.info("still here")
        begun.set()
        await asyncio.Event().wait()

    kind = a_kind(endless)
    job_id = (await enqueue(conn, kind.new())).id
    async with working(make(), kind, options=replace(QUICK, grace=timedelta(0))):
        await asyncio.wait_for(begun.wait(), 120)

    assert await state_of(conn, job_id) == "pending"
    assert await lines_of(conn, job_id) == [(1, "info", "begun"), (1, "info", "still here")]


async def test_disabled_log_keeping_stores_nothing(counted: Any, conn: Any) -> None:
    async def says(ctx: Context) -> None:
        ctx.log.info("for the log of the process alone")

    kind = a_kind(says)
    await enqueue(conn, kind.new())

    await drain(counted, kind, keep_logs=False)

    assert counted.batches == []


async def test_worker_runs_with_an_api_without_logs(api: Api, database: str, conn: Any) -> None:
    async def says(ctx: Context) -> None:
        ctx.log.info("nobody keeps this")

    app = make_app(pool(database, most=8), GENEROUS)
    asked: list[str] = []

    async def without_logs(scope: Any, receive: Any, send: Any) -> None:
        if scope.get("path", "").endswith("/logs"):
            asked.append(scope["path"])
            scope = {**scope, "path": "/nowhere"}
        await app(scope, receive, send)

    kind = a_kind(says)
    jobs = [(await enqueue(conn, kind.new())).id for _ in range(3)]
    with serving(without_logs) as url:
        await drain(Remote(url, api.token), kind, concurrency=1)

    assert [await state_of(conn, job_id) for job_id in jobs] == ["completed"] * 3
    assert len(asked) == 1, "it is not asked again"
    assert await rows(conn, "SELECT FROM holdfast.log_lines") == []
