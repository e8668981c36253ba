"""One handler that enqueues without a transaction, under everything that runs handlers on a database."""

from __future__ import annotations

import asyncio
import contextvars
import os
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import enqueuing_kinds as kinds
import pytest

import holdfast
import programs
from factories import rows, value
from holdfast import Worker, WorkerOptions
from holdfast.jobs import client
from holdfast.jobs.current import current_client
from holdfast.jobs.enqueue import enqueue
from holdfast.testing import harness
from holdfast.worker.kinds import Job, job
from holdfast.worker.transports.direct import Direct
from workers import PATIENCE, beside, ended, until

pytestmark = pytest.mark.processes

LONG = timedelta(minutes=5)
QUICK = WorkerOptions(concurrency=2, beat=timedelta(milliseconds=200), lease=timedelta(seconds=60), grace=timedelta(seconds=5))
CALM = WorkerOptions(concurrency=2, beat=LONG, poll=LONG, lease=timedelta(hours=1), grace=timedelta(seconds=5))
"""Nobody looks by itself within the time of a test."""

OPEN = "SELECT count(*) FROM holdfast.jobs WHERE finished_at IS NULL"


async def in_a_worker(database: str, conn: Any) -> None:
    await asyncio.wait_for(Worker(database, kinds.OURS, QUICK).run(until_empty=True), PATIENCE)


async def under_a_keeper(database: str, conn: Any) -> None:
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    words = ("worker", "run", "--import", "enqueuing_kinds", "--dsn", database, "--drain")
    ended = await asyncio.to_thread(programs.run, *words, env={**os.environ, "PYTHONPATH": path}, folder=Path(__file__).parent)
    assert ended.returncode == 0, ended.stderr


async def beside_routes(database: str, conn: Any) -> None:
    async def is_done() -> bool:
        return bool(await value(conn, OPEN) == 0)

    async with holdfast.lifespan(database, kinds=kinds.OURS, options=QUICK, run=True)(object()):
        await until(is_done)


async def in_the_harness(database: str, conn: Any) -> None:
    async with harness(database, kinds.OURS) as h:  # often in a fixture, of whose context a test inherits nothing
        await asyncio.create_task(h.drain(), context=contextvars.Context())


RUNNERS = [in_a_worker, under_a_keeper, beside_routes, in_the_harness]


@pytest.mark.parametrize("run", RUNNERS)
async def test_handler_can_enqueue_in_every_runner(
    database: str, conn: Any, run: Callable[[str, Any], Awaitable[None]]
) -> None:
    """K-44: a handler does not know what dispatched it; neither in the event loop, in a thread nor in a process of its own."""
    for kind in (kinds.here, kinds.in_thread, kinds.alone):
        await enqueue(conn, kind.new(note=kind.kind))

    await run(database, conn)

    assert await rows(conn, "SELECT kind, error FROM holdfast.jobs WHERE state <> 'completed'") == []
    followed = "SELECT payload->>'note', count(*) FROM holdfast.jobs WHERE kind = 'enqueuing.follow' GROUP BY 1 ORDER BY 1"
    assert await rows(conn, followed) == [("enqueuing.alone", 2), ("enqueuing.here", 2), ("enqueuing.in_thread", 2)]
    with pytest.raises(holdfast.HoldfastError, match="no database to enqueue into"):
        current_client()  # what is outside of a handler is none of the worker's business


async def test_handler_enqueues_into_the_database_of_its_job(database: str, fresh_database: str, conn: Any) -> None:
    """Two workers in one process, on two databases, inside a `connect` to one of them."""
    async with holdfast.connect(fresh_database) as other:
        there, here = await kinds.here.enqueue(note="there"), await enqueue(conn, kinds.here.new(note="here"))
        async with beside(Worker(database, [kinds.here], QUICK)), beside(Worker(fresh_database, [kinds.here], QUICK)):
            assert (await ended(conn, here.id)).state == "completed"
            async with other.pool.connection() as other_conn:
                assert (await ended(other_conn, there.id)).state == "completed"

        notes = "SELECT DISTINCT payload->>'note' FROM holdfast.jobs WHERE kind = 'enqueuing.follow'"
        async with other.pool.connection() as other_conn:
            assert (await rows(conn, notes), await rows(other_conn, notes)) == ([("here",)], [("there",)])


async def test_sync_handler_with_its_own_event_loop_gets_advice(database: str, conn: Any) -> None:
    """The connections of the worker are waited for in another loop: it would work until two need one at once."""
    made = await enqueue(conn, kinds.in_another_loop.new(note="lost"))
    async with beside(Worker(database, kinds.OURS, QUICK)):
        found = await ended(conn, made.id)

    assert found.state == "failed"
    assert "in a plain function say ctx.wait(kind.enqueue(...))" in found.error


async def test_job_enqueued_by_a_handler_starts_without_a_hint(
    database: str, conn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed, may_end = asyncio.Event(), asyncio.Event()

    async def deaf(self: Direct, wake: Callable[[str], None]) -> None:
        await asyncio.Event().wait()

    async def has_beaten() -> bool:
        return bool(await value(conn, "SELECT bool_or(beat_at > started_at) FROM holdfast.workers"))

    monkeypatch.setattr(Direct, "listen", deaf)

    async def second() -> None:
        followed.set()

    follow: Job[..., Any] = job("enqueuing.second")(second)

    async def first() -> None:
        await follow.enqueue()
        await may_end.wait()  # its end would be a reason to look as well

    kind: Job[..., Any] = job("enqueuing.first")(first)
    async with beside(Worker(database, [kind, follow], CALM)) as worker:
        await until(has_beaten)  # the first beat is a reason to look too
        await enqueue(conn, kind.new())
        worker.nudge()
        await asyncio.wait_for(followed.wait(), PATIENCE)
        may_end.set()


async def test_worker_sends_pending_hints_before_it_exits(database: str, conn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second enqueue within a moment owes its hint, and the worker must not close its connections before that is paid."""
    monkeypatch.setattr(client, "HINT_EVERY", 0.5)

    async def enqueues_twice() -> None:
        await kinds.follow.using(queue="at once").enqueue(note="1")
        await kinds.follow.using(queue="later").enqueue(note="2")

    kind: Job[..., Any] = job("enqueuing.twice")(enqueues_twice)
    await enqueue(conn, kind.new())
    await conn.execute("LISTEN holdfast")

    await asyncio.wait_for(Worker(database, [kind], QUICK).run(until_empty=True), PATIENCE)

    await conn.execute("NOTIFY holdfast, 'last'")
    heard = []
    async for notice in conn.notifies(timeout=PATIENCE):
        heard.append(notice.payload)
        if notice.payload == "last":
            break
    assert [hint for hint in heard if hint in ("at once", "later")] == ["at once", "later"]
