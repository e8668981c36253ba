"""Maintenance in real worker processes: SIGTERM with a blocked engine thread, cancel inside an action, SIGKILL.

The engine is blocked for real: the test locks the catalog's table, so the engine's thread stands in a query until the lock is
given back, which the test does only after it has seen what it wants to see.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import programs
from factories import holders_of, job, moves_of, state_of, value
from holdfast.jobs.rescue import rescue
from holdfast.services.maintenance.setup import Maintenance
from maintenance_factories import ORDERS, PATH, actions_of, make_table, read_ids, until
from programs import Started
from workers import doomed, until_gone

pytestmark = pytest.mark.processes

Conn = psycopg.AsyncConnection[Any]
Start = Callable[..., Started]
BLOCK = "LOCK TABLE holdfast_iceberg.iceberg_tables IN ACCESS EXCLUSIVE MODE"
IS_BLOCKED = "SELECT count(*) FROM pg_locks WHERE relation = 'holdfast_iceberg.iceberg_tables'::regclass AND NOT granted"
SILENCE = "UPDATE holdfast.workers SET lease_until = clock_timestamp() - interval '1 s'"
QUICK = {"HOLDFAST_BEAT_SECONDS": "0.2", "HOLDFAST_LEASE_SECONDS": "60", "HOLDFAST_GRACE_SECONDS": "60"}


@pytest.fixture
def start(database: str, here: Maintenance, tmp_path: Path) -> Iterator[Start]:
    """Starts `holdfast worker run` in a process group of its own, which is killed after the test."""
    started: list[Started] = []

    def run(*options: str, url: str = database, **environment: str) -> Started:
        words = ["worker", "run", "--import", "holdfast.services.maintenance.kinds", "--dsn", url, *options]
        env = {**os.environ, **QUICK, **environment}
        with (tmp_path / "log").open("ab") as log:
            worker = programs.start(*words, env=env, folder=tmp_path, out=log, err=log, session=True)
        started.append(worker)
        return worker

    yield run
    for worker in started:
        worker.kill_group()


async def blocked_run(ops: Any, conn: Conn, here: Maintenance, database: str, **asked: Any) -> int:
    """A run on a table of small files; the catalog is locked by the transaction that `conn` is in."""
    await asyncio.to_thread(make_table, here, database)
    made = await ops.post(PATH, json={"actions": ["rewrite_data_files", "rewrite_manifests"], **asked})
    await conn.execute(BLOCK)
    return int(made.json()["data"]["id"])


async def stands(observer: Conn) -> None:
    """The engine's thread waits for the catalog."""
    await until(lambda: value(observer, IS_BLOCKED))


@pytest.mark.more
async def test_sigterm_releases_the_job_while_the_engine_is_blocked_and_the_next_worker_finishes_it(
    ops: Any, connect: Any, here: Maintenance, database: str, start: Start
):
    """T-03, T-06, K-19, K-64, K-65, K-67, Z-08, E-51: the job goes back to the queue with its lock and uses no attempt, before
    the blocked engine comes back. A worker for one job then does the work once, and exits with 0."""
    observer, conn = await connect(), await connect()
    async with conn.transaction():
        job_id = await blocked_run(ops, conn, here, database)
        worker = start()
        await stands(observer)

        worker.terminate()
        await asyncio.to_thread(worker.wait)
        found = await job(observer, job_id)

        assert (found.state, found.errors) == ("pending", 0)
        assert await holders_of(observer, f"table:{ORDERS}") == [job_id], "nobody else gets the table"
        assert set((await actions_of(observer, job_id)).values()) == {"pending"}

    code = await asyncio.to_thread(start("--once").wait)

    assert code == 0
    assert (await job(observer, job_id)).state == "completed"
    assert await asyncio.to_thread(read_ids, here, database) == list(range(120))


@pytest.mark.more
async def test_sigterm_fails_the_job_as_document_001_says(
    ops: Any, connect: Any, here: Maintenance, database: str, start: Start
):
    """T-06, K-65, K-66, K-67, Z-08: with on_sigterm=fail the job has failed, the table is free and the exit code is 1, all
    before the blocked engine comes back. The end is written once."""
    observer, conn = await connect(), await connect()
    async with conn.transaction():
        job_id = await blocked_run(ops, conn, here, database, on_sigterm="fail")
        worker = start("--once")
        await stands(observer)

        worker.terminate()
        code = await asyncio.to_thread(worker.wait)
        found = await job(observer, job_id)

        assert (code, found.state, found.error) == (1, "failed", "Worker received SIGTERM")
        assert await holders_of(observer, f"table:{ORDERS}") == []
    assert await moves_of(observer, job_id) == ["fail"]


@pytest.mark.more
async def test_cancel_inside_an_action_ends_the_job_and_frees_the_table(
    ops: Any, connect: Any, here: Maintenance, database: str, start: Start
):
    """T-06, K-62, E-53: a cancel is seen inside an action, not only before the next one."""
    observer, conn = await connect(), await connect()
    async with conn.transaction():
        job_id = await blocked_run(ops, conn, here, database)
        start()
        await stands(observer)

        await ops.post(f"/api/jobs/{job_id}/cancel", json={"reason": "wrong table"})
        await until(lambda: _is_in(observer, job_id, "cancelled"))

        assert await holders_of(observer, f"table:{ORDERS}") == []
    assert set((await actions_of(observer, job_id)).values()) == {"cancelled"}
    engine = await here.engine_at("pyiceberg", observer)
    assert (await asyncio.to_thread(engine.stats, ORDERS)).data_files == 12, "nothing was committed after the cancel"


@pytest.mark.skipif("HOLDFAST_TEST_EVERYTHING" not in os.environ, reason="test_runs.py has the same with injected crashes")
async def test_worker_that_is_killed_inside_an_action_is_replaced(
    ops: Any, connect: Any, here: Maintenance, database: str, start: Start
):
    """K-24, E-52: after SIGKILL the lease decides, and the next worker goes on with the action that has not ended."""
    observer, conn = await connect(), await connect()
    async with conn.transaction():
        job_id = await blocked_run(ops, conn, here, database)
        worker = start(url=doomed(database))
        await stands(observer)
        worker.kill_group()

    await until_gone(observer)
    await observer.execute(SILENCE)
    await rescue(observer)
    start()
    await until(lambda: _is_in(observer, job_id, "completed"))

    assert (await job(observer, job_id)).attempt_no == 2
    assert await asyncio.to_thread(read_ids, here, database) == list(range(120))


async def _is_in(conn: Conn, job_id: int, state: str) -> bool:
    return await state_of(conn, job_id) == state
