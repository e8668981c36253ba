"""A plain worker is enough for `@job(cron=…)`: no scheduler runs in these tests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest

from factories import rows, value
from holdfast import job
from holdfast.jobs.client import connect as connect_client
from holdfast.jobs.periodic.read import get_periodic
from holdfast.testing import harness
from holdfast.worker import kinds
from holdfast.worker.loop import Worker
from holdfast.worker.options import WorkerOptions

Conn = psycopg.AsyncConnection[Any]
MAKE_DUE = "UPDATE holdfast.periodic_jobs SET next_due_at = clock_timestamp() RETURNING pg_notify('holdfast', '@')"


@pytest.fixture(autouse=True)
def own_kinds() -> Iterator[None]:
    before = dict(kinds._kinds)
    yield
    kinds._kinds.clear()
    kinds._kinds.update(before)


async def until(conn: Conn, statement: str) -> None:
    async with asyncio.timeout(60):
        while not await value(conn, statement):
            await asyncio.sleep(0.01)


async def test_two_workers_run_each_due_time_once(database: str, conn: Conn) -> None:
    ran: list[datetime] = []

    @job("test.hourly", every=timedelta(hours=1))
    async def hourly(due_at: datetime) -> None:
        ran.append(due_at)

    workers = [Worker(database, [hourly], WorkerOptions(concurrency=1)) for _ in range(2)]
    running = [asyncio.create_task(worker.run()) for worker in workers]
    try:
        await until(conn, "SELECT count(*) = 1 FROM holdfast.periodic_jobs")
        for number in (1, 2, 3):
            await conn.execute(MAKE_DUE)
            await until(conn, f"SELECT count(*) = {number} FROM holdfast.jobs WHERE state = 'completed'")
    finally:
        for worker in workers:
            worker.stop()
        await asyncio.gather(*running)

    assert len(ran) == len(set(ran)) == 3
    assert await rows(conn, "SELECT count(*) FROM holdfast.jobs") == [(3,)]
    assert (await get_periodic(conn, "test.hourly")).last_state == "completed"


async def test_the_harness_moves_time_and_runs_what_is_due(database: str) -> None:
    ran: list[str] = []

    @job("test.nightly", cron="0 2 * * *", timezone="Europe/Zurich", args={"region": "eu"})
    async def nightly(region: str) -> None:
        ran.append(region)

    async with harness(database, [nightly]) as h, connect_client(database) as client:
        await h.drain()
        assert ran == []
        await h.move_time(timedelta(days=1))
        await h.drain()
        assert ran == ["eu"]
        assert (await client.periodic.get("test.nightly")).last_state == "completed"
