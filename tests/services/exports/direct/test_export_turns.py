"""Turns of exports: so many stream through a process, and who gets none goes back to the queue, for whoever has one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import fake_engine
import psycopg
import pytest
from fake_engine import FakeEngine

from factories import add, job
from holdfast.engines import registry
from holdfast.jobs.cancel import cancel
from holdfast.jobs.outcome import Backoff
from holdfast.jobs.views.read import JobView
from holdfast.services.exports.export import turns
from holdfast.services.exports.export.run import KIND, run
from holdfast.settings import settings
from holdfast.worker.loop import Worker
from workers import beside, until

Conn = psycopg.AsyncConnection[Any]


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeEngine]:
    """An engine that never ends, behind workers that have one turn each."""
    monkeypatch.setitem(registry.ENGINES, "fake", "fake_engine")
    monkeypatch.setattr(fake_engine, "current", FakeEngine(ends=False))
    monkeypatch.setenv("HOLDFAST_EXPORT_STREAMS", "1")
    monkeypatch.setattr(turns, "PATIENCE", 0.01)
    settings.cache_clear()
    yield fake_engine.current
    settings.cache_clear()


async def two_exports(conn: Conn, folder: Path, **fields: Any) -> list[int]:
    payloads = [{"sql": "SELECT 1", "to": str(folder / name), "engine": "fake"} for name in ("first", "second")]
    return [await add(conn, KIND, payload=payload, **fields) for payload in payloads]


async def seen(conn: Conn, jobs: list[int]) -> tuple[JobView, JobView]:
    """The one that streams, and the one that waits."""

    async def parted() -> tuple[JobView, JobView] | None:
        one, other = [await job(conn, job_id) for job_id in jobs]
        if {one.state, other.state} != {"running", "pending"} or not (one.error or other.error):
            return None
        return (one, other) if other.state == "pending" else (other, one)

    found: tuple[JobView, JobView] = await until(parted)
    return found


async def cancelled(conn: Conn, jobs: list[int]) -> None:
    for job_id in jobs:
        await cancel(conn, job_id, actor="ada", reason="enough")

    async def all_over() -> bool:
        return {(await job(conn, job_id)).state for job_id in jobs} == {"cancelled"}

    await until(all_over)


async def test_who_gets_no_turn_is_given_back_and_has_spent_nothing(
    database: str, conn: Conn, folder: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(turns, "COMES_BACK", Backoff.fixed(timedelta(hours=1)))
    jobs = await two_exports(conn, folder, max_attempts=1)
    async with beside(Worker(database, [run])):
        streams, waits = await seen(conn, jobs)

        assert (waits.errors, waits.cause, waits.run_after is not None) == (0, "snooze", True)
        assert waits.error == "waits for a turn: this worker streams as many exports as it may (HOLDFAST_EXPORT_STREAMS=1)"
        await asyncio.wait_for(engine.running.wait(), 60)
        assert engine.tries == 1  # no engine was opened for the one that waits
        await cancelled(conn, [waits.id, streams.id])
    assert engine.tries == 1


async def test_another_worker_takes_what_the_first_cannot_run(
    database: str, conn: Conn, folder: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(turns, "COMES_BACK", Backoff.fixed(timedelta(milliseconds=10)))
    jobs = await two_exports(conn, folder, max_attempts=1)
    async with beside(Worker(database, [run])):
        await seen(conn, jobs)
        second, loop = Worker(database, [run]), asyncio.new_event_loop()  # turns are a loop's, so it has its own
        elsewhere = asyncio.create_task(asyncio.to_thread(lambda: loop.run_until_complete(second.run())))

        async def both_stream() -> bool:
            return engine.tries == 2

        try:
            await until(both_stream)
            running = [await job(conn, job_id) for job_id in jobs]
            assert {one.state for one in running} == {"running"}
            assert len({one.worker_id for one in running}) == 2
            assert [one.errors for one in running] == [0, 0]
            await cancelled(conn, jobs)
        finally:
            loop.call_soon_threadsafe(second.stop)
            await elsewhere
            loop.close()


async def test_a_turn_that_is_free_soon_is_waited_for(
    database: str, conn: Conn, folder: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
):
    """Most exports are short: a job that goes back for each of them would be slower than one that waits a moment."""
    monkeypatch.setattr(turns, "PATIENCE", 60.0)
    engine.ends = True
    jobs = await two_exports(conn, folder)

    await Worker(database, [run]).run(until_empty=True)

    assert [((await job(conn, one)).state, (await job(conn, one)).attempt_no) for one in jobs] == [("completed", 1)] * 2


def test_who_has_come_often_comes_back_later():
    delays = [turns.COMES_BACK.delay(times, chance=1).total_seconds() for times in range(6)]

    assert delays == [2, 4, 8, 16, 20, 20]
