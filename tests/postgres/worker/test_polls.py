"""Polls of external engines, in a worker with one lane or two: all jobs are polled, and polls do not block lanes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from factories import hold, rows, submit, value
from holdfast import Context, Done, Retry, Submitted, Worker, WorkerOptions
from holdfast.errors import HoldfastError
from holdfast.jobs.enqueue import enqueue, enqueue_many
from holdfast.jobs.renew import Beat
from holdfast.worker.kinds import Job, job
from holdfast.worker.options import POLL_LANES
from holdfast.worker.sweeps import Sweeps
from holdfast.worker.transports.direct import Direct
from workers import beside, until

MOMENT = timedelta(milliseconds=20)
# Nothing but the first beat tells this worker anything: what it knows later it knows by itself.
SELDOM = WorkerOptions(concurrency=1, beat=timedelta(hours=1), lease=timedelta(hours=3), grace=timedelta(seconds=5))
ENDED = "SELECT count(*) FROM holdfast.jobs WHERE kind = %s AND state = 'completed'"


def a_kind(function: Callable[..., Any]) -> Job[..., Any]:
    return job(f"looks.{function.__name__}")(function)


def working(database: str, *kinds: Job[..., Any], options: WorkerOptions = SELDOM) -> AbstractAsyncContextManager[Worker]:
    return beside(Worker(database, kinds, options))


@pytest.mark.more
async def test_w_23_more_than_fifty_jobs_are_polled_while_the_only_lane_is_busy(database: str, conn: Any):
    """W-23, W-25: an hour of work in the lane is no reason for an engine to give up what nobody asks about.

    500 concurrent jobs are measured by `benchmarks/submitted.py`.
    """
    may_end, begun, asked = asyncio.Event(), asyncio.Event(), Counter[int]()
    count = POLL_LANES + 20
    assert POLL_LANES >= 50
    assert count > 50

    async def exported(ctx: Context) -> Submitted | Done:
        asked[ctx.job.id] += begun.is_set()
        seldom = MOMENT * (1 if begun.is_set() else 20)  # the looks before that are not counted
        return Done("ready") if asked[ctx.job.id] == 3 else Submitted({"query": 1}, poll_after=seldom)

    async def long() -> None:
        begun.set()
        await may_end.wait()

    kinds = [a_kind(exported), a_kind(long)]
    await enqueue_many(conn, [kinds[0].new() for _ in range(count)])
    async with working(database, *kinds):
        await until(lambda: _is(conn, "SELECT count(*) = 0 FROM holdfast.jobs WHERE state = 'pending'"))
        await enqueue(conn, kinds[1].new())
        await begun.wait()
        await until(lambda: _is(conn, "SELECT count(*) = %s FROM holdfast.jobs WHERE state = 'completed'", count))
        assert await rows(conn, "SELECT kind FROM holdfast.jobs WHERE state = 'running'") == [("looks.long",)]
        may_end.set()
    assert set(asked.values()) == {3}


async def test_w_23_unresponsive_engine_does_not_block_lanes(database: str, conn: Any):
    """W-23: as many looks hang as there may be, and more are due."""
    answered, asking = asyncio.Event(), 0

    async def hangs(ctx: Context) -> Submitted | Done:
        nonlocal asking
        if not ctx.job.is_poll:
            return Submitted({"query": 1}, poll_after=MOMENT)
        asking += 1
        await answered.wait()
        return Done()

    async def small() -> None: ...

    kinds = [a_kind(hangs), a_kind(small)]
    await enqueue_many(conn, [kinds[0].new() for _ in range(POLL_LANES + 10)])
    async with working(database, *kinds):
        await until(lambda: _now(asking == POLL_LANES))
        await enqueue_many(conn, [kinds[1].new() for _ in range(5)])
        await until(lambda: _is(conn, f"SELECT ({ENDED}) = 5", "looks.small"))
        assert asking == POLL_LANES  # those that wait are nobody's: another worker may ask about them
        assert await value(conn, "SELECT count(*) FROM holdfast.jobs WHERE state = 'submitted'") == 10
        answered.set()
        await until(lambda: _is(conn, f"SELECT ({ENDED}) = %s", "looks.hangs", POLL_LANES + 10))


async def test_successive_due_times_are_all_kept(database: str, conn: Any):
    """The second look, and the second retry, do not wait for the beat because the first is sooner."""

    async def later(ctx: Context, milliseconds: int) -> Submitted | Done:
        return Done() if ctx.job.is_poll else Submitted({"query": 1}, poll_after=timedelta(milliseconds=milliseconds))

    async def again(ctx: Context, milliseconds: int) -> Retry | None:
        return None if ctx.job.attempt_no > 1 else Retry("not yet", timedelta(milliseconds=milliseconds))

    kinds = [a_kind(later), a_kind(again)]
    await enqueue_many(conn, [kind.new(milliseconds) for kind in kinds for milliseconds in (300, 700, 1100)])
    async with working(database, *kinds, options=WorkerOptions(concurrency=6, beat=SELDOM.beat, lease=SELDOM.lease)):
        await until(lambda: _is(conn, "SELECT count(*) = 6 FROM holdfast.jobs WHERE state = 'completed'"))


async def test_w_02_failed_poll_is_logged_and_repeated(
    database: str, conn: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """W-02: claim, then poll; what fails is repeated with the next heartbeat and not before, and nothing of it is lost."""
    failures = iter([psycopg.OperationalError("the connection was lost"), HoldfastError("not now")])
    claim, claim_to_poll, act_on = Direct.claim, Direct.claim_to_poll, Sweeps.act_on
    done: list[str] = []

    async def claiming(self: Direct, *given: Any) -> Any:
        done.append("claim")
        return await claim(self, *given)

    async def failing(self: Direct, *given: Any) -> Any:
        done.append("poll")
        for failure in failures:
            raise failure
        return await claim_to_poll(self, *given)

    def told(self: Sweeps, beat: Beat) -> None:
        done.append("beat")
        act_on(self, beat)

    async def later() -> None: ...

    monkeypatch.setattr(Direct, "claim", claiming)
    monkeypatch.setattr(Direct, "claim_to_poll", failing)
    monkeypatch.setattr(Sweeps, "act_on", told)
    kind = a_kind(later)
    await submit(conn, await hold(conn, kind.kind), poll_after=timedelta(0))
    await enqueue(conn, kind.new())
    async with working(database, kind) as worker:
        for failed in (1, 2):
            await until(lambda failed=failed: _now(caplog.text.count("sweep_failed") >= failed and is_at_rest(worker)))
            worker._heartbeat.beat_now()
        await until(lambda: _is(conn, f"SELECT ({ENDED}) = 2", kind.kind))
    assert done.index("claim") < done.index("poll")
    for count in range(1, len(done) + 1):
        assert done[:count].count("poll") <= done[:count].count("beat"), done
    assert caplog.text.count("sweep_failed") == 2


def is_at_rest(worker: Worker) -> bool:
    """Its sweeps do nothing before the next heartbeat."""
    return worker._sweeps.is_idle and not any(one._timers for one in worker._sweeps._planned.values())


async def _is(conn: Any, statement: str, *parameters: Any) -> bool:
    return bool(await value(conn, statement, *parameters))


async def _now(found: bool) -> bool:
    return found
