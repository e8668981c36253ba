"""Short words for the tests of graphs: a snapshot with real files, an instance, a runtime with a quick graph server."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
from psycopg_pool import AsyncConnectionPool

from export_factories import TABLES, mapping
from factories import end, rows, take
from holdfast import Worker, WorkerOptions
from holdfast.jobs.outcome import Done, Fail
from holdfast.schedule.context import Held, Pass
from holdfast.schedule.term import ensure
from holdfast.schedule.tick import Place, tick
from holdfast.services.exports import loops as export_loops
from holdfast.services.exports import offers
from holdfast.services.exports.offers import NewSnapshot
from holdfast.services.exports.settings import ExportsSettings
from holdfast.services.graphs.instances import rows as instance_rows
from holdfast.services.graphs.instances.create import NewInstance, create
from holdfast.services.graphs.instances.rows import Instance
from holdfast.services.graphs.kinds import KINDS
from holdfast.services.graphs.loops import loops
from holdfast.services.graphs.proxy import Proxy
from holdfast.services.graphs.runtimes.interface import Runtime
from holdfast.services.graphs.runtimes.local.runtime import LocalRuntime
from holdfast.services.graphs.settings import GraphsSettings
from holdfast.services.graphs.setup import Graphs
from loop_factories import LONG, make_due, taken
from workers import beside, until

DOUBLE = Path(__file__).parent / "services" / "graphs" / "graph_double.py"
QUERIES = {one["label"]: one["sql"] for one in mapping()["nodes"]} | {one["type"]: one["sql"] for one in mapping()["edges"]}
SECOND = timedelta(seconds=1)


def quick_runtime(root: Path, says: Path) -> LocalRuntime:
    """The real local runtime with a graph server that starts quickly and says what the files in `says` tell it."""
    says.mkdir(exist_ok=True)
    return LocalRuntime(root, program=(sys.executable, "-I", "-S", str(DOUBLE), str(says)), grace_seconds=1.0)


def tell(says: Path, instance_id: int, **said: Any) -> None:
    """Let the graph server of this instance behave so from now on."""
    (says / f"{instance_id}.new").write_text(json.dumps(said))
    (says / f"{instance_id}.new").replace(says / str(instance_id))


def graphs(runtime: Runtime, **given: Any) -> Graphs:
    """What the routes, handlers and loops of graphs need, with this runtime."""
    settled = {"default_memory_mb": 1024, "min_age": timedelta(0), "longest_delete": timedelta(seconds=60)}
    return Graphs(runtime=runtime, proxy=Proxy(), **(settled | given))


# ---------------------------------------------------------------------------------------------------------------------
# Snapshots
# ---------------------------------------------------------------------------------------------------------------------


async def new_mapping(ops: Any, **changes: Any) -> int:
    answer = await ops.post("/api/mappings", json=mapping(**changes))
    assert answer.status_code == 201, answer.text
    return int(answer.json()["data"]["id"])


async def snapshot_of(conn: Any, mapping_id: int, owner: str = "token:analyst") -> int:
    """A snapshot whose exports have not begun."""
    return await offers.create_snapshot(conn, NewSnapshot(mapping_id=mapping_id), owner=owner)


async def finish_exports(conn: Any, snapshot_id: int) -> None:
    """Write the files of every export and complete it, as a worker would."""
    found = await rows(
        conn,
        "SELECT job_id, entity_name, location FROM holdfast.exports WHERE snapshot_id = %s AND outcome IS NULL ORDER BY 1",
        snapshot_id,
    )
    with duckdb.connect() as database:
        database.execute(TABLES)
        for job_id, name, location in found:
            claim = await take(conn, job_id)
            file = Path(location) / f"attempt-{claim.attempt_id}" / "part-00000.parquet"
            file.parent.mkdir(parents=True)
            database.execute(f"COPY ({QUERIES[name]}) TO '{file}' (FORMAT parquet)")
            (count,) = database.execute(f"SELECT count(*) FROM '{file}'").fetchone() or (0,)
            size = file.stat().st_size
            files = [{"path": f"{file.parent.name}/{file.name}", "rows": count, "bytes": size}]
            await end(conn, claim, Done({"rows": count, "bytes": size, "files": files, "columns": [], "runtime": "direct"}))


async def fail_exports(conn: Any, snapshot_id: int, error: str = "no such table") -> None:
    """Every export fails."""
    for (job_id,) in await rows(conn, "SELECT job_id FROM holdfast.exports WHERE snapshot_id = %s ORDER BY 1", snapshot_id):
        await end(conn, await take(conn, job_id), Fail(error))


async def ready_snapshot(conn: Any, mapping_id: int, owner: str = "token:analyst") -> int:
    snapshot_id = await snapshot_of(conn, mapping_id, owner)
    await finish_exports(conn, snapshot_id)
    return snapshot_id


# ---------------------------------------------------------------------------------------------------------------------
# Instances
# ---------------------------------------------------------------------------------------------------------------------


async def new_instance(conn: Any, *, owner: str = "token:analyst", **fields: Any) -> int:
    """An instance, created as the API does it."""
    given = {"name": "bank", "engine": "ladybug", "default_memory_mb": 1024, "longest_start": timedelta(minutes=5)}
    async with conn.transaction():
        return await create(conn, NewInstance(**(given | fields)), owner=owner)


async def get(conn: Any, instance_id: int) -> Instance:
    return await instance_rows.get(conn, instance_id)


async def status(conn: Any, instance_id: int) -> str | None:
    found = await instance_rows.find(conn, instance_id)
    return None if found is None else str(found.status)


async def until_status(conn: Any, instance_id: int, wanted: str | None) -> None:
    """Wait until the instance has this status; None: until it is gone."""

    async def reached() -> bool:
        found = await status(conn, instance_id)
        if found == "failed" and wanted not in ("failed", None):
            failed = await get(conn, instance_id)
            raise AssertionError(f"instance {instance_id} failed: {failed.error_code}: {failed.error}")
        return found == wanted

    await until(reached)


@asynccontextmanager
async def worker(database: str) -> AsyncIterator[Worker]:
    """A worker for the jobs of graphs, beside the test."""
    options = WorkerOptions(concurrency=8, beat=SECOND, poll=SECOND / 5, lease=30 * SECOND, grace=SECOND, name="graphs worker")
    async with beside(Worker(database, KINDS, options)) as running:
        yield running


async def running_instance(conn: Any, database: str, mapping_id: int, **fields: Any) -> int:
    """An instance that runs."""
    snapshot_id = await ready_snapshot(conn, mapping_id)
    instance_id = await new_instance(conn, snapshot_id=snapshot_id, **fields)
    async with worker(database):
        await until_status(conn, instance_id, "running")
    return instance_id


async def many_running(conn: Any, snapshot_id: int, count: int) -> None:
    """Rows of instances that should run."""
    await conn.execute(
        """INSERT INTO holdfast.graph_instances (owner, name, engine, mapping_id, mapping_version, snapshot_id, state, job_id,
            start_token, memory_mb, cpu, address, started_at, runtime_name, ttl, inactivity_timeout, last_activity_at)
        SELECT 'o', 'g' || n, 'ladybug', 1, 1, %(snapshot)s, 'running', 1, gen_random_uuid(), 1024, 1,
            'http://127.0.0.1:1', now(), 'pid ' || n, 'PT24H', 'PT4H', now() FROM generate_series(1, %(count)s) n""",
        {"snapshot": snapshot_id, "count": count},
    )


async def a_pass(conn: Any, database: str, name: str, *, manual: bool = False) -> Any:
    """Run one pass of a loop of graphs, under a term of its own."""
    loop = next(one for one in loops(GraphsSettings()) if one.name == name)
    await conn.execute("DELETE FROM holdfast.loops WHERE name = %s", [name])
    term = await taken(conn, dataclasses.replace(loop, first_run="at_once"))
    async with AsyncConnectionPool(database, min_size=1, max_size=3, kwargs={"autocommit": True}) as pool:
        ctx = Pass(dataclasses.replace(term, trigger="manual") if manual else term, Held(LONG), pool.connection, database)
        return await loop.function(ctx)  # type: ignore[misc]


async def a_tick(conn: Any, place: Place, name: str) -> None:
    """Run one tick of a loop of graphs or exports, as a scheduler does it."""
    every = [*loops(GraphsSettings()), *export_loops.loops(ExportsSettings())]
    loop = dataclasses.replace(next(one for one in every if one.name == name), first_run="at_once")
    await ensure(conn, [loop])
    await make_due(conn, name)
    await tick(loop, place)
