"""The worker on a real Postgres: what runs, what is written, and what happens when things go wrong beside it."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any

import psycopg
import pytest

import holdfast
from factories import hold, silence
from holdfast import (
    Cancel,
    Context,
    Done,
    Fail,
    NewJob,
    Permanent,
    Retry,
    Snooze,
    Submitted,
    SyncContext,
    Worker,
    WorkerOptions,
)
from holdfast.jobs.cancel import cancel
from holdfast.jobs.enqueue import enqueue, enqueue_many
from holdfast.jobs.renew import Beat
from holdfast.jobs.views.explain import explain
from holdfast.jobs.views.history import history
from holdfast.jobs.views.read import get_job
from holdfast.testing import harness
from holdfast.worker.kinds import Job, job, registered
from holdfast.worker.transports.direct import Direct
from workers import beside, ended, until

QUICK = WorkerOptions(concurrency=4, beat=timedelta(milliseconds=200), lease=timedelta(seconds=30), grace=timedelta(seconds=5))


def a_kind(function: Callable[..., Any], name: str | None = None, **policy: Any) -> Job[..., Any]:
    """A kind that only this test knows."""
    return job(name or f"test.{function.__name__}", **policy)(function)


def working(database: str, *kinds: Job[..., Any], options: WorkerOptions = QUICK) -> AbstractAsyncContextManager[Worker]:
    return beside(Worker(database, kinds, options))


async def drain(database: str, *kinds: Job[..., Any]) -> Worker:
    worker = Worker(database, kinds, QUICK)
    await asyncio.wait_for(worker.run(until_empty=True), 120)
    return worker


async def test_thousand_jobs_complete_once_with_one_history_row_each(database, conn):
    seen: list[int] = []

    async def count(number: int) -> None:
        seen.append(number)

    kind = a_kind(count)
    await enqueue_many(conn, [kind.new(number=n) for n in range(1000)])

    worker = await drain(database, kind)

    assert sorted(seen) == list(range(1000))
    assert worker.completed == 1000
    rows = await (await conn.execute("SELECT state, count(*) FROM holdfast.jobs GROUP BY state")).fetchall()
    assert rows == [("completed", 1000)]
    assert await (await conn.execute("SELECT count(*), count(DISTINCT attempt_id) FROM holdfast.history")).fetchone() == (
        1000,
        1000,
    )


@pytest.mark.parametrize(
    ("outcome", "state", "moves"),
    [
        (None, "completed", ["complete"]),
        ({"answer": 42}, "completed", ["complete"]),
        (Done({"answer": 42}), "completed", ["complete"]),
        (Fail("no such invoice"), "failed", ["fail"]),
        (Cancel("not needed"), "cancelled", ["cancel"]),
        (Snooze(timedelta(hours=1)), "pending", ["snooze"]),
        (Retry("busy", delay=timedelta(hours=1)), "pending", ["retry"]),
        (Submitted({"query": "q1"}, poll_after=timedelta(hours=1)), "submitted", ["submit"]),
        (Permanent("never"), "failed", ["fail"]),
        (ValueError("oops"), "pending", ["retry"]),
    ],
)
async def test_return_value_decides_the_outcome(database, conn, outcome, state, moves):
    async def end() -> Any:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    kind = a_kind(end, retry=holdfast.RetryPolicy(backoff=holdfast.Backoff.fixed(timedelta(hours=1))))
    made = await enqueue(conn, kind.new())

    await drain(database, kind)

    job_now = await get_job(conn, made.id)
    assert job_now.state == state
    assert [entry.move for entry in await history(conn, made.id)] == moves
    if state == "completed" and outcome is not None:
        assert job_now.result == {"answer": 42}


async def test_transient_error_is_retried_until_the_budget_is_used(database, conn):
    tries: list[int] = []

    async def flaky(ctx: Context) -> Retry:
        tries.append(ctx.job.attempt_no)
        return Retry("not yet", delay=timedelta(milliseconds=1))

    kind = a_kind(flaky, max_attempts=3)
    made = await enqueue(conn, kind.new())

    async with working(database, kind):
        job_now = await ended(conn, made.id)

    assert (job_now.state, job_now.errors, tries) == ("failed", 3, [1, 2, 3])


async def test_publish_commits_with_the_finish(database, conn):
    await conn.execute("CREATE TABLE results (n int)")

    async def publishes(ctx: Context, fails: bool) -> Done:
        async def publish(inner: psycopg.AsyncConnection[Any]) -> None:
            await inner.execute("INSERT INTO results VALUES (1)")
            if fails:
                raise Permanent("cannot publish")

        return Done(publish=publish)

    kind = a_kind(publishes)
    good = await enqueue(conn, kind.new(fails=False))
    bad = await enqueue(conn, kind.new(fails=True))

    await drain(database, kind)

    assert (await get_job(conn, good.id)).state == "completed"
    assert (await get_job(conn, bad.id)).state == "failed"
    assert await (await conn.execute("SELECT count(*) FROM results")).fetchone() == (1,)


async def test_chain_creates_each_child_in_its_parents_transaction(database, conn):
    order: list[int] = []

    async def step(ctx: Context, left: int) -> Done:
        order.append(left)
        return Done(left, then=[chained.new(left=left - 1)] if left else [])

    chained = a_kind(step)
    await enqueue(conn, chained.new(left=20))

    worker = await drain(database, chained)

    assert order == list(range(20, -1, -1))
    assert worker.completed == 21
    same = await (
        await conn.execute(
            """SELECT count(*) FROM holdfast.jobs c JOIN holdfast.history p ON p.job_id = c.parent_id
               WHERE p.move = 'complete' AND p.xid = c.created_xid"""
        )
    ).fetchone()
    assert same == (20,)


async def test_context_children_fan_out_and_join(database, conn):
    ran: list[str] = []

    async def split(ctx: Context) -> None:
        ctx.chain(*[part_kind.new(number=n) for n in range(5)], join=join_kind.new())

    async def part(number: int) -> None:
        ran.append(f"part {number}")

    async def join() -> None:
        ran.append("join")

    split_kind, part_kind, join_kind = a_kind(split), a_kind(part), a_kind(join)
    await enqueue(conn, split_kind.new())

    async with working(database, split_kind, part_kind, join_kind):
        await until(lambda: _is(len(ran) == 6))

    assert ran[-1] == "join"
    assert sorted(ran[:-1]) == [f"part {n}" for n in range(5)]


async def _is(value: bool) -> bool:
    return value


async def _at_least(count: Callable[[], Awaitable[int]], enough: int) -> bool:
    return await count() >= enough


async def test_sync_handler_runs_in_a_thread_with_a_sync_context(database, conn):
    where: list[str] = []

    def slow(ctx: SyncContext, number: int) -> dict[str, int]:
        where.append(threading.current_thread().name)
        ctx.progress(0.5, "half")
        ctx.checkpoint()
        return {"number": number}

    kind = a_kind(slow)
    made = await enqueue(conn, kind.new(number=3))

    await drain(database, kind)

    job_now = await get_job(conn, made.id)
    assert (job_now.state, job_now.result, job_now.message) == ("completed", {"number": 3}, "half")
    assert where[0] != threading.main_thread().name


async def test_cancelled_handler_stops_and_its_lane_continues(database, conn):
    started = asyncio.Event()

    async def endless(ctx: Context) -> None:
        started.set()
        await asyncio.Event().wait()

    async def other() -> None: ...

    endless_kind, other_kind = a_kind(endless), a_kind(other)
    made = await enqueue(conn, endless_kind.new())

    async with working(
        database, endless_kind, other_kind, options=WorkerOptions(concurrency=1, beat=timedelta(milliseconds=100))
    ):
        await asyncio.wait_for(started.wait(), 120)
        assert await cancel(conn, made.id, actor="operator", reason="enough") == "running"
        assert (await ended(conn, made.id)).state == "cancelled"
        later = await enqueue(conn, other_kind.new())
        assert (await ended(conn, later.id)).state == "completed"


async def test_replaced_attempt_is_refused_and_the_replacement_is_kept(database, connect):
    conn = await connect()
    go, started = asyncio.Event(), asyncio.Event()

    async def slow() -> str:
        started.set()
        await go.wait()
        return "from the first"

    kind = a_kind(slow)
    made = await enqueue(conn, kind.new())

    async with working(database, kind) as worker:
        await asyncio.wait_for(started.wait(), 120)
        await conn.execute(
            "UPDATE holdfast.jobs SET state = 'pending', attempt_id = NULL, worker_id = NULL, "
            "run_after = clock_timestamp() + interval '1 hour' WHERE id = %s",
            [made.id],
        )
        go.set()
        await until(lambda: _is(not worker.held()))

    job_now = await get_job(conn, made.id)
    assert (job_now.state, job_now.result) == ("pending", None)
    assert await history(conn, made.id) == []


async def test_worker_keeps_two_attempts_of_one_job_apart(database, connect):
    conn = await connect()
    go, started = asyncio.Event(), asyncio.Event()
    results: list[int] = []

    async def slow(ctx: Context) -> int:
        if ctx.job.attempt_no == 1:
            started.set()
            await go.wait()
        results.append(ctx.job.attempt_no)
        return ctx.job.attempt_no

    kind = a_kind(slow)
    made = await enqueue(conn, kind.new())

    async with working(database, kind) as worker:
        await asyncio.wait_for(started.wait(), 120)
        await conn.execute(
            "UPDATE holdfast.jobs SET state = 'pending', attempt_id = NULL, worker_id = NULL WHERE id = %s", [made.id]
        )
        worker.nudge()
        assert (await ended(conn, made.id)).result == 2
        go.set()
        await until(lambda: _is(not worker.held()))

    assert results == [2, 1]
    assert (await get_job(conn, made.id)).result == 2


async def test_a_blocked_event_loop_does_not_stop_the_heartbeat(database, connect):
    """K-25: the handler blocks the loop until a thread has seen the worker beat three more times."""
    conn = await connect()
    entered, seen = threading.Event(), threading.Event()

    async def blocks() -> None:
        entered.set()
        assert seen.wait(60)

    def watch() -> None:
        assert entered.wait(60)
        with psycopg.connect(database, autocommit=True) as other:
            beats: set[Any] = set()
            deadline = time.monotonic() + 60
            while len(beats) < 4 and time.monotonic() < deadline:
                beats.add(other.execute("SELECT beat_at FROM holdfast.workers").fetchone())
        if len(beats) == 4:
            seen.set()

    kind = a_kind(blocks)
    made = await enqueue(conn, kind.new())
    watcher = threading.Thread(target=watch)
    watcher.start()
    async with working(database, kind, options=WorkerOptions(concurrency=1, beat=timedelta(milliseconds=50))):
        job_now = await ended(conn, made.id)
    watcher.join()

    assert job_now.state == "completed"


async def test_the_lease_is_a_setting_of_the_worker(database, conn):
    """K-23: how long a silent holder keeps its jobs is configured, and counted by the database's clock."""
    kind = a_kind(lambda: None, "test.lease")
    async with working(database, kind, options=WorkerOptions(concurrency=1, lease=timedelta(minutes=30))):

        async def registered_for_long() -> bool:
            cursor = await conn.execute("SELECT lease_until > clock_timestamp() + interval '29 min' FROM holdfast.workers")
            return await cursor.fetchone() == (True,)

        await until(registered_for_long)


async def test_worker_leaves_unknown_kinds_to_others(database, conn, caplog):
    """K-42, K-43: dispatch goes by the registry; an unknown kind is neither run nor harmed, and whoever asks is told."""
    caplog.set_level(logging.INFO)
    ran: list[str] = []

    async def known() -> None:
        ran.append("known")

    kind = a_kind(known)
    unknown = await enqueue(conn, NewJob("nobody.knows"))
    made = await enqueue(conn, kind.new())

    async with working(database, kind) as worker:
        assert (await ended(conn, made.id)).state == "completed"
        assert not await worker.run_by_id(unknown.id)
        assert "no live worker runs nobody.knows; they run test.known: was its module" in await explain(conn, unknown.id)

    assert ran == ["known"]
    assert (await get_job(conn, unknown.id)).attempt_no == 0
    (skipped,) = [line for line in caplog.messages if "job_skipped" in line]
    assert str(unknown.id) in skipped


async def test_function_runs_directly_inline_and_in_a_worker(database, conn):
    """K-44, Y-09: a handler does not know what dispatched it."""
    seen: list[int] = []

    async def note(number: int) -> None:
        seen.append(number)

    kind = a_kind(note)
    await kind(number=1)
    async with harness(database, [kind]) as inline:
        await inline.run(kind.new(number=2))
    await enqueue(conn, kind.new(number=3))
    await drain(database, kind)

    assert seen == [1, 2, 3]


async def test_jobs_of_a_dead_worker_are_rescued_by_a_live_one(database, conn):
    async def work() -> None: ...

    kind = a_kind(work)
    made = await enqueue(conn, kind.new())
    dead = Worker(database, [kind])
    await conn.execute(
        "INSERT INTO holdfast.workers (id, name, host, pid, version, lease_until) "
        "VALUES (%s, 'dead', 'h', 1, '0', clock_timestamp())",
        [dead.id],
    )
    await conn.execute(
        "UPDATE holdfast.jobs SET state = 'running', attempt_id = gen_random_uuid(), attempt_no = 1, worker_id = %s, "
        "fence_token = 1, claimed_at = clock_timestamp(), begun_at = clock_timestamp() WHERE id = %s",
        [dead.id, made.id],
    )

    async with working(database, kind):
        job_now = await ended(conn, made.id)

    assert (job_now.state, job_now.attempt_no, job_now.crashes) == ("completed", 2, 1)
    assert [entry.move for entry in await history(conn, made.id)] == ["rescue", "complete"]


async def test_worker_continues_after_its_connections_are_cut(database, connect, caplog):
    """K-54: an iteration that fails is logged as a warning, and the loop goes on."""
    conn = await connect()
    ran: list[int] = []

    async def work(number: int) -> None:
        ran.append(number)
        await asyncio.sleep(0.001)

    kind = a_kind(work)
    await enqueue_many(conn, [kind.new(number=n) for n in range(300)])
    cut = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
             WHERE application_name = 'holdfast' AND datname = current_database()"""

    async def completed() -> int:
        row = await (await conn.execute("SELECT count(*) FROM holdfast.jobs WHERE state = 'completed'")).fetchone()
        return int(row[0])

    async with working(database, kind):
        await until(lambda: _at_least(completed, 1))
        for _ in range(5):
            await asyncio.sleep(0.05)
            await conn.execute(cut)
        await until(lambda: _at_least(completed, 300))
        # The worker is idle now, and its next claim goes over a connection that is gone.
        async with asyncio.timeout(60):
            while not (warned := _warnings(caplog, "worker_database_lost")):
                await conn.execute(cut)
                await enqueue(conn, kind.new(number=300))
                await asyncio.sleep(0.01)
        await until(lambda: _all_ended(conn))

    assert warned[0].levelname == "WARNING"
    twice = "SELECT job_id FROM holdfast.history WHERE move = 'complete' GROUP BY 1 HAVING count(*) > 1"
    assert await (await conn.execute(twice)).fetchall() == []


def _warnings(caplog, event):
    return [record for record in caplog.records if event in record.getMessage()]


async def _all_ended(conn) -> bool:
    row = await (await conn.execute("SELECT count(*) FROM holdfast.jobs WHERE state <> 'completed'")).fetchone()
    return row == (0,)


async def test_delayed_job_starts_on_time_between_heartbeats(database, conn):
    async def work() -> None: ...

    kind = a_kind(work)
    options = WorkerOptions(concurrency=1, beat=timedelta(seconds=20))
    async with working(database, kind, options=options):
        made = await enqueue(conn, replace_delay(kind.new(), timedelta(milliseconds=300)))
        job_now = await ended(conn, made.id)

    assert job_now.state == "completed"
    assert job_now.claimed_at - job_now.created_at >= timedelta(milliseconds=300)


def replace_delay(new: NewJob, delay: timedelta) -> NewJob:
    from dataclasses import replace

    return replace(new, run_after=delay)


async def test_a_submitted_job_is_polled_and_completed_by_its_engine(database, conn):
    async def query(ctx: Context) -> Any:
        if not ctx.job.is_poll:
            async with ctx.effect("engine.query") as planned:
                planned.made({"id": planned.tag})
            return Submitted({"query": 1}, poll_after=timedelta(milliseconds=20))
        return Submitted(ctx.job.handle, poll_after=timedelta(milliseconds=20)) if ctx.job.poll_count < 3 else Done("ready")

    kind = a_kind(query)
    made = await enqueue(conn, kind.new())
    async with working(database, kind):
        job_now = await ended(conn, made.id)

    assert (job_now.state, job_now.result, job_now.poll_count) == ("completed", "ready", 3)
    assert [e.move for e in await history(conn, made.id)] == ["submit", "submit", "submit", "complete"]


async def test_stop_releases_running_jobs_without_using_an_attempt(database, conn):
    started = asyncio.Event()

    async def endless() -> None:
        started.set()
        await asyncio.Event().wait()

    kind = a_kind(endless)
    made = await enqueue(conn, kind.new())
    worker = Worker(database, [kind], WorkerOptions(concurrency=1, grace=timedelta(milliseconds=50)))
    running = asyncio.create_task(worker.run())
    await asyncio.wait_for(started.wait(), 120)

    worker.stop()
    await asyncio.wait_for(running, 120)

    job_now = await get_job(conn, made.id)
    assert (job_now.state, job_now.errors, job_now.crashes) == ("pending", 0, 0)
    assert [e.move for e in await history(conn, made.id)] == ["release"]


async def test_first_worker_does_not_prefetch_long_jobs(database, conn):
    go = asyncio.Event()

    async def long() -> None:
        await go.wait()

    kind = a_kind(long)
    await enqueue_many(conn, [kind.new() for _ in range(10)])
    options = WorkerOptions(concurrency=2, beat=timedelta(milliseconds=100))

    async with working(database, kind, options=options) as first, working(database, kind, options=options) as second:
        await until(lambda: _is(len(first.held()) == 2 and len(second.held()) == 2))
        go.set()


async def test_result_that_cannot_be_stored_fails_its_job_and_not_the_worker(database, conn):
    async def odd() -> Done:
        return Done({"when": object()})

    async def fine() -> None: ...

    odd_kind, fine_kind = a_kind(odd), a_kind(fine)
    made = await enqueue(conn, odd_kind.new())

    async with working(database, odd_kind, fine_kind):
        job_now = await ended(conn, made.id)
        later = await enqueue(conn, fine_kind.new())
        assert (await ended(conn, later.id)).state == "completed"

    assert job_now.state == "failed"
    assert "the result is not JSON" in job_now.error


async def test_refused_child_fails_the_attempt_and_not_the_worker(database, conn):
    lock = holdfast.Lock("table", when_busy="reject")
    await enqueue(conn, NewJob("somebody.else", locks=(lock,)))

    async def parent() -> Done:
        return Done(then=[NewJob("child", locks=(lock,))])

    kind = a_kind(parent, max_attempts=1)
    made = await enqueue(conn, kind.new())

    async with working(database, kind):
        job_now = await ended(conn, made.id)

    assert job_now.state == "failed"
    assert "is held by job" in job_now.error


async def test_until_empty_waits_for_pending_rescues(database, conn, monkeypatch: pytest.MonkeyPatch):
    """Two look at once, and the one that found the rows taken must not be the one that says that there is nothing."""
    rescue, drain_looks, beat_looks, drain_looked = Direct.rescue, asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def meets_another(self: Direct, *arguments: Any) -> Any:
        task = asyncio.current_task()
        if task is not None and "_drained" in repr(task.get_coro()):
            if drain_looked.is_set():
                return await rescue(self, *arguments)
            drain_looks.set()
            await beat_looks.wait()
            drain_looked.set()
            return []  # the other holds the rows
        if not drain_looks.is_set():
            return []
        beat_looks.set()
        await drain_looked.wait()
        return await rescue(self, *arguments)

    monkeypatch.setattr(Direct, "rescue", meets_another)

    async def left_over() -> None: ...

    kind = a_kind(left_over)
    claim = await hold(conn, kind.kind)
    await silence(conn, claim)

    await drain(database, kind)

    assert (await get_job(conn, claim.id)).state == "completed"


@pytest.mark.more
async def test_until_empty_leaves_no_held_job(database, conn):
    """A claim that is on its way when the worker decides to leave must not be forgotten by it."""

    async def step(ctx: Context, left: int) -> None:
        if left:
            ctx.chain(*[kind.new(left=left - 1) for _ in range(2)])

    kind = a_kind(step)
    for _ in range(8):
        await enqueue(conn, kind.new(left=3))
        await drain(database, kind)
        held = await (await conn.execute("SELECT count(*) FROM holdfast.jobs WHERE state = 'running'")).fetchone()
        assert held == (0,)


async def test_claim_whose_response_was_lost_is_released_while_its_worker_lives(database, conn):
    async def work() -> None: ...

    kind = a_kind(work)
    options = WorkerOptions(concurrency=1, beat=timedelta(milliseconds=50), lease=timedelta(seconds=30))
    async with working(database, kind, options=options) as worker:
        made = await enqueue(conn, NewJob("nobody.runs.this"))
        await conn.execute(
            "UPDATE holdfast.jobs SET state = 'running', attempt_id = gen_random_uuid(), attempt_no = 1, worker_id = %s, "
            "fence_token = 1, claimed_at = clock_timestamp() - interval '1 min' WHERE id = %s",
            [worker.id, made.id],
        )

        async def is_back() -> bool:
            return (await get_job(conn, made.id)).state == "pending"

        await until(is_back)

    found = await get_job(conn, made.id)
    assert (found.cause, found.crashes) == ("claim_unanswered", 0), "nothing had begun"


async def test_worker_without_schema_or_kinds_names_the_fix(database, conn):
    await conn.execute("DROP SCHEMA holdfast CASCADE")

    with pytest.raises(holdfast.HoldfastError, match="run `holdfast db migrate`"):
        await Worker(database, [a_kind(lambda: None, "test.nothing")], QUICK).run()
    with pytest.raises(holdfast.HoldfastError, match="knows no kinds"):
        await Worker(database, [], QUICK).run()


async def test_run_by_id_runs_the_job_and_refuses_what_cannot_be_claimed(database, conn):
    """K-42, K-49: one boundary, by the job's id; the handler is never called when the claim fails."""
    called: list[int] = []

    async def work(number: int) -> None:
        called.append(number)

    kind = a_kind(work, queue="of nobody")  # so that the worker does not find it by itself
    async with working(database, kind) as worker:
        made = await enqueue(conn, kind.new(number=1), hint=False)
        assert await worker.run_by_id(made.id)
        assert (await ended(conn, made.id)).state == "completed"
        assert not await worker.run_by_id(made.id)
        assert not await worker.run_by_id(10**9)

    assert called == [1]


def test_public_names_are_exactly_these():
    assert set(holdfast.__all__) == {name for name in holdfast.__all__ if hasattr(holdfast, name)}
    assert len(holdfast.__all__) <= 40
    assert registered() is not registered()


async def test_bulk_of_one_kind_is_validated_before_one_write(database, conn):
    async def note(number: int, text: str = "") -> None: ...

    kind = a_kind(note)
    nasty = 'quote " backslash \\ tab \t line \n end'

    made = await kind.using(tx=conn).enqueue_many({"number": n, "text": nasty} for n in range(120))
    with pytest.raises(holdfast.HoldfastError, match="number: Input should be a valid integer"):
        await kind.using(tx=conn).enqueue_many([{"number": 1}, {"number": "two"}])

    rows = await (await conn.execute("SELECT id, payload FROM holdfast.jobs ORDER BY id")).fetchall()
    assert [row[0] for row in rows] == [one.id for one in made]
    assert rows[7][1] == {"number": 7, "text": nasty}
    assert await kind.using(tx=conn).enqueue_many([]) == []
    async with holdfast.connect(database):
        assert len(await kind.enqueue_many([{"number": 1}, {"number": 2}])) == 2


async def test_bulk_of_a_kind_with_a_slot_merges_jobs_of_the_same_slot(conn):
    async def compute(year: int) -> None: ...

    kind = a_kind(compute, slot=lambda year: f"year {year}")

    made = await kind.using(tx=conn).enqueue_many([{"year": 2025}, {"year": 2026}, {"year": 2025}])

    assert [one.created for one in made] == [True, True, False]
    assert made[0].id == made[2].id


async def test_cancellation_during_the_finish_does_not_end_the_worker(database, conn):
    """The handler is done: what is interrupted then would be the write itself, and with it the lane and the worker."""
    publishing, go_on = asyncio.Event(), asyncio.Event()

    async def slow_to_publish(_: Any) -> None:
        publishing.set()
        await go_on.wait()

    async def publishes() -> Done:
        return Done(publish=slow_to_publish)

    async def simple() -> None: ...

    kinds = a_kind(publishes, "test.publishes_slowly"), a_kind(simple, "test.beside_it")
    async with working(database, *kinds) as worker:
        made = await enqueue(conn, NewJob("test.publishes_slowly"))
        await asyncio.wait_for(publishing.wait(), 60)
        worker._on_beat(_beat_that_cancels(worker.held()[0].attempt_id))
        await asyncio.sleep(0)
        go_on.set()

        assert (await ended(conn, made.id)).state == "completed"
        after = await enqueue(conn, NewJob("test.beside_it"))
        assert (await ended(conn, after.id)).state == "completed"


def _beat_that_cancels(attempt_id: str) -> Any:
    values: dict[str, Any] = {field.name: False for field in dataclasses.fields(Beat)}
    values |= {"known": True, "lost": [], "cancelled": [attempt_id], "strays": [], "next_due": None, "next_poll": None}
    return Beat(**values)
