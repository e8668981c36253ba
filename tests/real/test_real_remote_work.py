"""Workers that die, stand still or are cancelled in the middle of a real action of Spark or Trino. Spark is reached over
Connect (`spark`) or over Thrift (`spark_thrift`).

The commit of the table is held by a lock on its row in the catalog, so the statement is certainly under way for as long as the
test wants. No other attempt may begin meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from lake_servers import SparkServer, fetch_client
from pyiceberg.catalog import Catalog
from trino_cluster import TrinoCluster

from factories import moves_of, state_of, value
from holdfast.jobs.cancel import cancel
from holdfast.jobs.rescue import rescue
from holdfast.services.maintenance.engines.actions import RewriteDataFiles
from holdfast.services.maintenance.engines.interface import TAG_PREFIX, Engine, TableRef
from holdfast.services.maintenance.run.request import Wanted
from holdfast.services.maintenance.run.submit import submit
from iceberg_tables import Row, create, end_threads, fill
from maintenance_factories import until

Conn = psycopg.AsyncConnection[Any]
Start = Callable[[str], subprocess.Popen[bytes]]
HOLD = "SELECT 1 FROM holdfast_iceberg.iceberg_tables WHERE table_name = %s FOR UPDATE"
WAITS = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query ILIKE '%%iceberg_tables%%'"
SILENCE = "UPDATE holdfast.workers SET lease_until = clock_timestamp() - interval '1 s'"
ATTEMPT = "SELECT attempt_id::text FROM holdfast.jobs WHERE id = %s"
QUICK = {"HOLDFAST_BEAT_SECONDS": "0.5", "HOLDFAST_LEASE_SECONDS": "600", "HOLDFAST_GRACE_SECONDS": "60"}
REFERENCE = "SELECT handle ->> 'work' FROM holdfast.effects WHERE tag = %s"
REMOTE, THRIFT = ("spark", "trino"), "spark_thrift"


@pytest.fixture(autouse=True)
def threads_of_pyiceberg() -> Iterator[None]:
    yield
    end_threads()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def start(
    lakes: dict[str, dict[str, str]], spark: SparkServer, cluster: TrinoCluster, tmp_path: Path, log: Path
) -> Iterator[Start]:
    """Starts `holdfast worker run` with both engines; killed after the test."""
    started: list[subprocess.Popen[bytes]] = []
    environment = {
        **os.environ,
        **QUICK,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(fetch_client()), os.environ.get("PYTHONPATH")))),
        "HOLDFAST_ICEBERG_CATALOGS": json.dumps({"embedded": lakes["embedded"]}),
        "HOLDFAST_TRINO_URL": cluster.url,
        "HOLDFAST_TRINO_USER": "maintenance",
        "HOLDFAST_TRINO_ROLE_REQUIRED": "false",
        "HOLDFAST_MAINTENANCE_TRINO_CATALOGS": '{"embedded": "pg"}',
    }

    def run(name: str) -> subprocess.Popen[bytes]:
        way = {"HOLDFAST_SPARK_THRIFT_URL": spark.thrift_url} if name == THRIFT else {"HOLDFAST_SPARK_CONNECT_URL": spark.url}
        words = ["worker", "run", "--import", "holdfast.services.maintenance.kinds", "--dsn", lakes[""]["url"]]
        with log.open("ab") as out:
            command = [sys.executable, "-m", "holdfast", *words]
            env = {**environment, **way}
            worker = subprocess.Popen(command, env=env, cwd=tmp_path, stdout=out, stderr=out, start_new_session=True)
        started.append(worker)
        return worker

    yield run
    for worker in started:
        with_executors(worker, signal.SIGKILL)
        worker.wait()


def with_executors(keeper: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to a keeper and its executors, each of which leads a process group of its own."""
    children = Path(f"/proc/{keeper.pid}/task/{keeper.pid}/children")
    for pid in (keeper.pid, *map(int, children.read_text().split())):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, number)


@pytest.fixture
async def conn(lakes: dict[str, dict[str, str]]) -> Any:
    async with await psycopg.AsyncConnection.connect(lakes[""]["url"], autocommit=True) as opened:
        yield opened


@pytest.fixture
async def holder(lakes: dict[str, dict[str, str]]) -> Any:
    """The connection that holds the table's row."""
    async with await psycopg.AsyncConnection.connect(lakes[""]["url"]) as opened:
        yield opened


@pytest.fixture
def table() -> TableRef:
    return TableRef("embedded", "sales", f"t{uuid.uuid4().hex[:8]}")


async def begun(conn: Conn, holder: Conn, writer: Catalog, table: TableRef, name: str) -> tuple[int, list[Row]]:
    """A job for a table whose commits stand still."""
    create(writer, table)
    there = await asyncio.to_thread(fill, writer, 6, ref=table)
    await holder.execute(HOLD, [table.name])
    async with conn.transaction():
        engine = name.removesuffix("_thrift")
        made = await submit(conn, Wanted(table, (RewriteDataFiles(),), engine), requested_by="test")
    return int(made.id), there


async def stands_in_its_commit(conn: Conn) -> None:
    await until(lambda: value(conn, WAITS), 120)


def events(log: Path, **fields: Any) -> list[str]:
    """The names of the events with these fields, in their order."""
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{") and line.endswith("}")]
    return [one["event"] for one in lines if fields.items() <= one.items()]


def has(log: Path, event: str, **fields: Any) -> Callable[[], Any]:
    async def look() -> bool:
        return event in await asyncio.to_thread(events, log, **fields)

    return look


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
@pytest.mark.parametrize("name", REMOTE)
async def test_work_of_a_lost_worker_is_found_and_stopped_before_the_next_begins(
    *, conn: Conn, holder: Conn, writers: dict[str, Catalog], lake_engines: dict[str, Engine], table: TableRef,
    start: Start, log: Path, name: str, how: signal.Signals,
):  # fmt: skip
    """E-50: with Spark the successor waits until the commit has ended. Trino reports the end of a cancelled query at once; if
    its commit still comes through, one of the two commits is refused. A frozen worker that goes on later changes nothing."""
    engine, writer = lake_engines[name], writers["embedded"]
    job_id, there = await begun(conn, holder, writer, table, name)
    first = start(name)
    await stands_in_its_commit(conn)
    tag = f"{TAG_PREFIX}{await value(conn, ATTEMPT, job_id)}"

    with_executors(first, how)
    assert await asyncio.to_thread(engine.find, tag) is not None, "the work goes on without its worker"
    await conn.execute(SILENCE)
    await rescue(conn)
    start(name)
    await until(has(log, "maintenance_remote_work_found", tag=tag), 120)
    if name == "spark":
        with pytest.raises(TimeoutError):  # the commit stands still, so the operation has not ended
            await until(has(log, "maintenance_remote_work_stopped", tag=tag), 5)
    await holder.rollback()
    await until(has(log, "maintenance_remote_work_stopped", tag=tag), 120)
    with_executors(first, signal.SIGCONT)
    await until(lambda: is_in(conn, job_id, "completed"), 180)

    assert await asyncio.to_thread(engine.find, tag) is None
    assert (await asyncio.to_thread(engine.stats, table)).data_files == 1
    assert await asyncio.to_thread(rows_of_table, writer, table) == sorted(there)
    assert (await moves_of(conn, job_id)).count("complete") == 1
    found, stopped, began = (f"maintenance_{event}" for event in ("remote_work_found", "remote_work_stopped", "action_started"))
    assert [event for event in events(log, job_id=job_id) if event in (found, stopped, began)] == [began, found, stopped, began]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
async def test_session_of_a_lost_worker_is_closed_before_the_next_attempt_begins(
    *, conn: Conn, holder: Conn, writers: dict[str, Catalog], lake_engines: dict[str, Engine], table: TableRef,
    start: Start, log: Path, how: signal.Signals,
):  # fmt: skip
    """E-50, over Thrift: the server closes the session of a killed worker itself; that of a frozen one is closed by the next
    attempt. The commit that had begun still comes through, so one of the two commits is refused."""
    engine, writer = lake_engines[THRIFT], writers["embedded"]
    job_id, there = await begun(conn, holder, writer, table, THRIFT)
    first = start(THRIFT)
    await stands_in_its_commit(conn)
    tag = f"{TAG_PREFIX}{await value(conn, ATTEMPT, job_id)}"
    reference = await value(conn, REFERENCE, tag)
    assert await asyncio.to_thread(engine.find, reference) == reference

    with_executors(first, how)
    if how is signal.SIGKILL:
        await until(lambda: is_gone(engine, reference), 60)
    await conn.execute(SILENCE)
    await rescue(conn)
    start(THRIFT)
    if how is signal.SIGSTOP:
        await until(has(log, "maintenance_remote_work_stopped", tag=tag), 120)
        assert await is_gone(engine, reference)
    await holder.rollback()
    with_executors(first, signal.SIGCONT)
    await until(lambda: is_in(conn, job_id, "completed"), 180)

    assert (await asyncio.to_thread(engine.stats, table)).data_files == 1
    assert await asyncio.to_thread(rows_of_table, writer, table) == sorted(there)
    assert (await moves_of(conn, job_id)).count("complete") == 1


@pytest.mark.parametrize("name", [*REMOTE, THRIFT])
async def test_cancel_inside_an_action_stops_the_work_in_the_engine(
    *, conn: Conn, holder: Conn, writers: dict[str, Catalog], lake_engines: dict[str, Engine], table: TableRef,
    start: Start, name: str,
):  # fmt: skip
    """K-62, E-53: the job has ended while the engine still stands in its commit, and nothing runs in the engine in the end."""
    engine, writer = lake_engines[name], writers["embedded"]
    job_id, there = await begun(conn, holder, writer, table, name)
    start(name)
    await stands_in_its_commit(conn)
    tag = f"{TAG_PREFIX}{await value(conn, ATTEMPT, job_id)}"
    reference = await value(conn, REFERENCE, tag)

    async with conn.transaction():
        await cancel(conn, job_id, actor="test", reason="wrong table")
    await until(lambda: is_in(conn, job_id, "cancelled"), 60)
    await holder.rollback()
    await until(lambda: is_gone(engine, reference), 120)

    assert await asyncio.to_thread(rows_of_table, writer, table) == sorted(there)


async def is_gone(engine: Engine, reference: str) -> bool:
    return await asyncio.to_thread(engine.find, reference) is None


async def is_in(conn: Conn, job_id: int, state: str) -> bool:
    return await state_of(conn, job_id) == state


def rows_of_table(writer: Catalog, table: TableRef) -> list[Row]:
    found = writer.load_table(table.identifier).scan().to_arrow().select(["id", "part", "text"])
    return sorted(zip(*(column.to_pylist() for column in found.columns), strict=True))
