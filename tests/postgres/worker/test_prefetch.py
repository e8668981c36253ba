"""What a worker holds ahead of its lanes: short jobs only, and only for a moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any

import pytest

from factories import HOUR, column, lose, moves_of, rows, start_worker
from holdfast import Context, Worker, WorkerOptions
from holdfast.jobs.claim import claim_plain
from holdfast.jobs.enqueue import enqueue, enqueue_many
from holdfast.jobs.model import Claim
from holdfast.worker import loop
from holdfast.worker.kinds import Job, job
from holdfast.worker.transports.direct import Direct
from workers import beside, ended, until

QUICK = WorkerOptions(concurrency=2, beat=timedelta(milliseconds=100), grace=timedelta(seconds=5))
PATIENT = WorkerOptions(concurrency=2, beat=timedelta(minutes=5), lease=timedelta(hours=1), grace=timedelta(seconds=5))


def a_kind(function: Callable[..., Any], **policy: Any) -> Job[..., Any]:
    return job(f"prefetch.{function.__name__}", **policy)(function)


def working(worker: Worker, *short: Job[..., Any]) -> AbstractAsyncContextManager[Worker]:
    """A worker that has seen many jobs of these kinds, all of them short."""
    for kind in short:
        for _ in range(200):
            worker._prefetch.note_ended(kind.kind, 0.0001)
    return beside(worker)


async def true(condition: bool) -> bool:
    return condition


class Gate:
    """Jobs that run until the test lets them go."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.began: list[int] = []

    async def __call__(self, number: int) -> None:
        self.began.append(number)
        await self.open.wait()

    def kind(self, name: str, **policy: Any) -> Job[..., Any]:
        async def wait(number: int) -> None:
            await self(number)

        return job(f"prefetch.{name}", **policy)(wait)


async def noop() -> None:
    """Nothing."""


async def test_long_jobs_are_not_prefetched_after_many_short_ones(database: str, conn: Any) -> None:
    gate, short = Gate(), a_kind(noop)
    long = gate.kind("long")
    first, second = Worker(database, [short, long], QUICK), Worker(database, [short, long], QUICK)
    await enqueue_many(conn, [short.new() for _ in range(200)])

    async with working(first, short):
        await until(lambda: true(first.completed == 200))
        await enqueue_many(conn, [long.new(number=n) for n in range(30)])
        first.nudge()
        await until(lambda: true(len(gate.began) == 2))
        async with working(second, short):
            await until(lambda: true(len(gate.began) == 4))
            assert (len(first.held()), len(second.held())) == (2, 2)
            gate.open.set()


async def test_prefetched_jobs_of_a_long_kind_are_released_at_the_next_heartbeat(
    database: str, conn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "LONGEST_WAIT", 3600.0)  # the worker also beats when it listens
    gate = Gate()
    kind = gate.kind("moody", max_runtime=HOUR)
    first, second = Worker(database, [kind], PATIENT), Worker(database, [kind], QUICK)
    await enqueue_many(conn, [kind.new(number=n) for n in range(30)])

    async with working(first, kind):
        await until(lambda: true(len(gate.began) == 2))
        await until(lambda: true(len(first.held()) == 30))
        for one in first._lanes.attempts():
            one.started -= 1.0  # a job of this kind takes long; if it had just begun, the others would be claimed again
        monkeypatch.setattr(loop, "LONGEST_WAIT", 0.0)
        first._heartbeat.beat_now()
        await until(lambda: true(len(first.held()) == 2))
        async with working(second):
            await until(lambda: true(len(second.held()) == 2))
            await until(lambda: true(len(gate.began) == 4))
            gate.open.set()
            await until(lambda: true(first.completed + second.completed == 30))

    assert await rows(conn, "SELECT DISTINCT state, crashes, errors FROM holdfast.jobs") == [("completed", 0, 0)]


async def test_briefly_waiting_prefetched_jobs_are_kept(database: str, conn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "LONGEST_WAIT", 3600.0)
    gate = Gate()
    kind = gate.kind("kept")
    worker = Worker(database, [kind], PATIENT)
    await enqueue_many(conn, [kind.new(number=n) for n in range(30)])

    async with working(worker, kind):
        await until(lambda: true(len(gate.began) == 2 and len(worker.held()) == 30))

        assert worker._lanes.take_back(longer_than=3600.0) == []
        assert len(worker._lanes.take_back(longer_than=0.0)) == 28
        gate.open.set()


async def test_heartbeat_writes_the_start_of_a_long_job(database: str, conn: Any) -> None:
    gate = Gate()
    kind = gate.kind("counted", max_runtime=HOUR)
    worker = Worker(database, [kind], QUICK)
    made = await enqueue(conn, kind.new(number=1))

    async with working(worker):
        await until(lambda: column(conn, made.id, "begun_at"))
        assert await column(conn, made.id, "deadline_at") is not None
        async with conn.transaction():  # in one: the worker itself rescues what it sees, and its beat would renew the lease
            await lose(conn, *worker.held())
        gate.open.set()

    assert await column(conn, made.id, "crashes") == 1


async def test_start_of_a_suspect_is_written_before_its_handler_runs(database: str, conn: Any) -> None:
    """No beat is needed: a job that kills its process at once is known to have begun."""
    seen = []

    async def suspect(ctx: Context) -> None:
        async with ctx.connection() as mine:
            seen.append(await column(mine, ctx.job.id, "begun_at"))

    kind = a_kind(suspect)
    made = await enqueue(conn, kind.new())
    await conn.execute("UPDATE holdfast.jobs SET confirm_start = true")

    async with working(Worker(database, [kind], PATIENT)) as worker:
        await ended(conn, made.id)

    assert seen != [None]
    assert seen == [await column(conn, made.id, "begun_at")]
    assert worker.completed == 1


async def test_lost_suspect_does_not_run(database: str, conn: Any, connect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ran, other = [], await connect()

    async def stale() -> None:
        ran.append(1)

    async def begin_too_late(self: Direct, claim: Claim) -> None:
        monkeypatch.undo()  # for the second attempt, which may begin as soon as the rescue commits
        async with other.transaction():  # in one: the worker itself rescues what it sees, and its beat would renew the lease
            await lose(other, claim)
        await self.begin(claim)

    monkeypatch.setattr(Direct, "begin", begin_too_late)
    kind = a_kind(stale)
    made = await enqueue(conn, kind.new())
    await conn.execute("UPDATE holdfast.jobs SET confirm_start = true, priority = 0")

    worker = Worker(database, [kind], PATIENT)
    async with working(worker):
        await until(lambda: _rescued(conn, made.id))
        worker.nudge()  # the hint of the rescue may have come before the worker listened
        await ended(conn, made.id)

    assert ran == [1], "the second attempt ran, and the first did not"


async def _rescued(conn: Any, job_id: int) -> bool:
    return "rescue" in await moves_of(conn, job_id)


async def test_job_unlocked_by_another_claim_is_claimed_without_a_hint_or_heartbeat(
    database: str, conn: Any, connect: Any
) -> None:
    """A claim of one job locks the first of every kind. Who is told of both meanwhile finds neither."""
    ran: list[str] = []

    async def one() -> None:
        ran.append("one")

    async def other() -> None:
        ran.append("other")

    kinds = [a_kind(one), a_kind(other)]
    greedy = await connect()
    made = [await enqueue(conn, kind.new()) for kind in kinds]
    worker = Worker(database, kinds, PATIENT)

    async with greedy.transaction():
        taken = await claim_plain(greedy, await start_worker(greedy), kinds=[kind.kind for kind in kinds], limit=1)
        running = working(worker)
        await running.__aenter__()
        await until(lambda: true(worker._claiming._pause > 0))
    try:
        left = next(one.id for one in made if one.id != taken.claims[0].id)
        await ended(conn, left)
    finally:
        await running.__aexit__(None, None, None)

    assert len(ran) == 1


async def test_idle_worker_needs_one_claim_per_job(database: str, conn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another worker was quicker: nothing is there, and nothing is locked."""
    kind = a_kind(noop)
    asked: list[int] = []
    claim = Direct.claim

    async def counted(self: Direct, *given: Any) -> Any:
        found = await claim(self, *given)
        asked.append(len(found.claims))
        return found

    monkeypatch.setattr(Direct, "claim", counted)
    worker = Worker(database, [kind], PATIENT)
    async with working(worker):
        await until(lambda: true(len(asked) > 0))
        before = len(asked)

        worker.nudge()
        await until(lambda: true(len(asked) > before))

        assert worker._claiming._pause == 0.0, "no further claim is planned"
