"""The crash table of document 002, row by row: a worker process gets a real SIGKILL, and what it had begun comes to its end.

The engine is a coordinator that speaks Trino's protocol. A point is armed by HOLDFAST_CRASH_AT; it kills the executor, and the
one that follows goes on. The last row kills the whole pod.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import duckdb
import httpx2
import pyarrow.parquet as pq
import pytest

import programs
from export_factories import CUSTOMER, TABLES, exports, mapping
from factories import rows, value
from holdfast.engines.trino import TrinoOptions, open_trino
from holdfast.jobs.rescue import rescue
from holdfast.services.exports.setup import Exports
from holdfast.settings import settings
from programs import Started
from services.exports.test_trino_exports import ROLE, UNLOAD, warehouse
from trino_server import TrinoServer
from workers import doomed, until_gone

pytestmark = pytest.mark.processes

Client = httpx2.AsyncClient
PATIENCE = 180.0
QUICK = {"HOLDFAST_POLL_SECONDS": "0.3", "HOLDFAST_BEAT_SECONDS": "1"}  # moved rows give no hint, so workers look often
SILENCE = "UPDATE holdfast.workers SET lease_until = clock_timestamp() - interval '1 s'"
POLL_NOW = "UPDATE holdfast.jobs SET next_poll_at = clock_timestamp() WHERE state = 'submitted'"


@pytest.fixture
async def coordinator() -> AsyncIterator[TrinoServer]:
    with duckdb.connect() as connection:
        connection.execute(TABLES)
        async with TrinoServer(warehouse(connection)) as made:
            yield made


@pytest.fixture
async def here(tmp_path: Path, coordinator: TrinoServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Exports]:
    """Settings by the names of the document, for this process and the workers that it starts."""
    monkeypatch.setenv("HOLDFAST_EXPORT_DIRS", str(tmp_path))
    monkeypatch.setenv("HOLDFAST_TRINO_URL", coordinator.url)
    monkeypatch.setenv("HOLDFAST_TRINO_USER", "export")
    settings.cache_clear()
    made = exports(open_trino(TrinoOptions.from_settings(settings())), need_role=["trino"], root=str(tmp_path / "snapshots"))
    yield made
    await made.close()
    settings.cache_clear()


@asynccontextmanager
async def worker(database: str, log: Path, **environment: str) -> AsyncIterator[Started]:
    """`holdfast worker run` in a process group of its own, which is killed at the end."""
    words = ["worker", "run", "--import", "holdfast.services.exports.kinds", "--dsn", database]
    with log.open("ab") as said:
        env = {**os.environ, **QUICK, **environment}
        process = programs.start(*words, env=env, folder=log.parent, out=said, err=said, session=True)
    try:
        yield process
    finally:
        process.kill_group()


def said_in(log: Path) -> str:
    return log.read_text()


async def until(reached: Callable[[], Awaitable[Any]], what: str, log: Path) -> None:
    try:
        async with asyncio.timeout(PATIENCE):
            while not await reached():
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"{what} never happened; the workers said:\n{said_in(log)[-3000:]}") from None


async def begin(ops: Client, runtime: str) -> int:
    """A snapshot of one node."""
    made = await ops.post("/api/mappings", json=mapping(nodes=[CUSTOMER], edges=[]), headers=ROLE)
    asked = {"mapping_id": made.json()["data"]["id"], "runtime": runtime}
    return int((await ops.post("/api/snapshots", json=asked, headers=ROLE)).json()["data"]["snapshot"]["id"])


async def has_ended(conn: Any) -> bool:
    """Time is moved by moving rows."""
    await conn.execute(POLL_NOW)
    return bool(await value(conn, "SELECT finished_at IS NOT NULL FROM holdfast.snapshots"))


async def every_row_is_there_once(ops: Client, snapshot_id: int) -> None:
    found = (await ops.get(f"/api/snapshots/{snapshot_id}")).json()["data"]
    assert (found["snapshot"]["status"], found["snapshot"]["node_counts"]) == ("ready", {"Customer": 100}), found
    (export,) = found["exports"]
    table = pq.read_table([Path(export["gcs_path"]) / file["path"] for file in export["files"]], partitioning=None)
    assert sorted(table.column("id").to_pylist()) == list(range(1, 101))


TABLE = {
    "after claim, before submit": ("claim.after_commit", "unload"),
    "with the submit written down and not yet sent": ("submit.after_intent", "unload"),
    "after submit, before it is persisted": ("submit.after_reply_before_persist", "unload"),
    "after submit, before the first poll": ("complete.after_commit_before_ack", "unload"),
    "after the engine has finished, before the job knows": ("poll.after_reply_before_persist", "unload"),
    "in the transaction that completes the job and ends the snapshot": ("complete.in_tx_after_update", "direct"),
    "after the job has completed": ("complete.after_commit_before_ack", "direct"),
}


@pytest.mark.more
@pytest.mark.parametrize(("point", "runtime"), TABLE.values(), ids=TABLE)
async def test_w_19_a_worker_is_killed_and_every_row_is_there_once(
    ops: Client, conn: Any, database: str, coordinator: TrinoServer, tmp_path: Path, point: str, runtime: str
) -> None:
    """W-18, W-19, E-07: and no query that writes counts beside another."""
    log = tmp_path / "log"
    snapshot_id = await begin(ops, runtime)

    async with worker(database, log, HOLDFAST_CRASH_AT=point):
        await until(lambda: has_ended(conn), "the end of the snapshot", log)
        await until(lambda: asyncio.sleep(0, '"executor_died"' in said_in(log)), "the death of an executor", log)

    await every_row_is_there_once(ops, snapshot_id)
    writing = [one for one in coordinator.queries.values() if one.began and UNLOAD.search(one.request.sql)]
    assert len([one for one in writing if one.error is None]) == (1 if runtime == "unload" else 0)


async def test_w_19_the_pod_that_submitted_is_gone_and_another_polls(
    ops: Client, conn: Any, database: str, coordinator: TrinoServer, tmp_path: Path
) -> None:
    """W-01, W-19, X-06, mid-polling: the address of the next answer is on the row, and whoever takes it goes on from there."""
    log = tmp_path / "log"
    snapshot_id = await begin(ops, "unload")
    coordinator.hold = True

    async def has_been_polled() -> bool:
        await conn.execute(POLL_NOW)
        return bool(await value(conn, "SELECT coalesce(max(poll_count), 0) >= 2 FROM holdfast.jobs WHERE state = 'submitted'"))

    async with worker(doomed(database), log) as first:
        await until(has_been_polled, "a poll", log)
        first.kill_group()
    await until_gone(conn)
    await conn.execute(SILENCE)
    await rescue(conn)
    assert await rows(conn, "SELECT state, handle IS NOT NULL FROM holdfast.jobs") == [("submitted", True)]
    coordinator.hold = False
    for query in coordinator.queries.values():
        query.may_end.set()
    async with worker(database, log):
        await until(lambda: has_ended(conn), "the end of the snapshot", log)

    await every_row_is_there_once(ops, snapshot_id)
    assert len([one for one in coordinator.queries.values() if UNLOAD.search(one.request.sql)]) == 1, "submitted once"
