"""What a worker counts: waiting and running by kind and outcome, ends, leases, refusals, and what it is at right now."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from factories import add, make_due, take
from holdfast import Done, Permanent, Worker, WorkerOptions
from holdfast.jobs.model import NewJob
from holdfast.jobs.rescue import rescue_worker
from holdfast.jobs.views.read import get_job
from holdfast.telemetry.durations import BOUNDS, Durations
from holdfast.telemetry.metrics import REGISTRY
from holdfast.telemetry.names import METRICS
from holdfast.threads import in_thread
from holdfast.worker.kinds import Job, Policy

Conn = psycopg.AsyncConnection[Any]


def kind(name: str, function: Any) -> Job[..., Any]:
    return Job(name, function, Policy())


def count(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


async def run(database: str, *kinds: Job[..., Any]) -> None:
    await asyncio.wait_for(Worker(database, kinds, WorkerOptions(concurrency=2)).run(until_empty=True), 60)


async def test_wait_and_run_times_are_counted_by_kind_and_outcome(conn: Conn, database: str):
    """V-06: how much, how long, how often it fails."""

    async def metered() -> None: ...

    async def failing() -> None:
        raise Permanent("no")

    async def parent() -> Done:
        return Done(then=[NewJob("m.good")])

    for _ in range(3):
        await add(conn, "m.good")
    await add(conn, "m.bad")
    await add(conn, "m.parent")
    await conn.execute("UPDATE holdfast.jobs SET created_at = created_at - interval '20 s' WHERE kind = 'm.bad'")
    await run(database, kind("m.good", metered), kind("m.bad", failing), kind("m.parent", parent))

    assert count("holdfast_attempt_run_seconds_count", kind="m.good", outcome="complete") == 4
    assert count("holdfast_attempt_run_seconds_count", kind="m.bad", outcome="fail") == 1
    assert count("holdfast_attempts_total", kind="m.good", outcome="complete") == 4
    assert count("holdfast_attempts_total", kind="m.parent", outcome="complete") == 1
    assert count("holdfast_attempts_total", kind="m.bad", outcome="fail") == 1
    assert count("holdfast_attempt_wait_seconds_count", kind="m.good") == 3  # the child was never claimed: it was taken along
    assert count("holdfast_attempt_wait_seconds_bucket", kind="m.bad", le="10.0") == 0
    assert count("holdfast_attempt_wait_seconds_bucket", kind="m.bad", le="+Inf") == 1
    assert count("holdfast_attempt_wait_seconds_sum", kind="m.bad") >= 20


async def test_only_the_first_claim_counts_as_wait(conn: Conn, database: str):
    async def twice() -> None:
        raise RuntimeError("again")

    await add(conn, "m.twice", max_attempts=2)
    worker = Worker(database, [kind("m.twice", twice)], WorkerOptions(concurrency=1))
    running = asyncio.create_task(worker.run())
    async with asyncio.timeout(60):
        while count("holdfast_attempts_total", kind="m.twice", outcome="fail") == 0:
            await conn.execute("UPDATE holdfast.jobs SET run_after = NULL WHERE state = 'pending'")
            worker.nudge()
            await asyncio.sleep(0.02)
    worker.stop()
    await running

    assert count("holdfast_attempt_run_seconds_count", kind="m.twice", outcome="retry") == 1
    assert count("holdfast_attempt_wait_seconds_count", kind="m.twice") == 1


async def test_gauges_are_read_at_scrape(conn: Conn, database: str):
    """V-06: saturation of a worker: its jobs, connections and event loop."""
    may_end = asyncio.Event()

    async def endless() -> None:
        await may_end.wait()

    for _ in range(2):
        await add(conn, "m.endless")
    before = count("holdfast_lease_renewals_total", outcome="renewed")
    worker = Worker(database, [kind("m.endless", endless)], WorkerOptions(concurrency=3, beat=timedelta(seconds=0.1)))
    running = asyncio.create_task(worker.run())
    async with asyncio.timeout(60):
        while count("holdfast_worker_jobs", state="running") < 2:
            await asyncio.sleep(0.02)
        while count("holdfast_lease_renewals_total", outcome="renewed") == before:
            await asyncio.sleep(0.02)

    assert count("holdfast_worker_jobs", state="waiting") == 0
    assert count("holdfast_worker_connections", state="open") >= 1
    assert REGISTRY.get_sample_value("holdfast_worker_loop_lag_seconds") is not None
    may_end.set()
    worker.stop()
    await running
    assert REGISTRY.get_sample_value("holdfast_worker_jobs", {"state": "running"}) is None  # a worker that left is not there


async def test_refused_write_is_counted_by_operation(conn: Conn, database: str):
    """K-18."""
    began, may_end = asyncio.Event(), asyncio.Event()

    async def slow() -> Done:
        began.set()
        await may_end.wait()
        return Done(then=[NewJob("m.never"), NewJob("m.never", step="2")])  # an end of its own, not one of a batch

    job_id = await add(conn, "m.slow")
    before = count("holdfast_stale_writebacks_total", operation="complete")
    worker = Worker(
        database,
        [kind("m.slow", slow)],
        WorkerOptions(concurrency=1, beat=timedelta(hours=1), poll=timedelta(hours=1), lease=timedelta(hours=3)),
    )
    running = asyncio.create_task(worker.run())
    async with asyncio.timeout(60):
        await began.wait()
        await rescue_worker(conn, worker.id, cause="crash", error="said to be gone", actor="test")
        await make_due(conn, job_id)
        await take(conn, job_id)
        may_end.set()
        while count("holdfast_stale_writebacks_total", operation="complete") == before:
            await asyncio.sleep(0.02)
    worker.stop()
    await running

    assert count("holdfast_attempts_total", kind="m.slow", outcome="complete") == 0
    assert str((await get_job(conn, job_id)).state) == "running"


@pytest.mark.parametrize("seconds", [0.0, 0.001, 0.0011, 3600.0, 1e9])
def test_duration_is_counted_in_every_larger_bucket(seconds: float, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(REGISTRY, "register", lambda _: None)
    made = Durations(next(iter(METRICS)), "kind")

    made.observe(("k",), seconds)

    (family,) = made.collect()
    found = {sample.labels["le"]: sample.value for sample in family.samples if "le" in sample.labels}
    assert found == {**{str(le): float(seconds <= le) for le in BOUNDS}, "+Inf": 1.0}


async def test_f_19_thread_that_outlives_its_timeout_is_counted_until_it_ends(conn: Conn, database: str):
    """Nobody can stop a thread: the job is done with, and its handler is still there."""
    began, may_end = threading.Event(), threading.Event()

    def deaf() -> None:
        began.set()
        may_end.wait(600)

    left = "holdfast_handler_threads_left_behind"
    job = await add(conn, "m.deaf", max_runtime=timedelta(seconds=0.2), max_attempts=1)
    try:
        await run(database, kind("m.deaf", deaf))

        assert (await get_job(conn, job)).state == "failed"
        assert await in_thread(lambda: began.wait(60)), "it may start after its limit on a machine that is busy"
        assert count(left) == 1
    finally:
        may_end.set()
    async with asyncio.timeout(60):
        while count(left):
            await asyncio.sleep(0.01)


async def test_awaited_thread_is_not_counted_as_abandoned(conn: Conn, database: str):
    seen: list[float] = []

    def looks() -> None:
        seen.append(count("holdfast_handler_threads_left_behind"))

    await add(conn, "m.looks")
    await run(database, kind("m.looks", looks))

    assert seen == [0]
