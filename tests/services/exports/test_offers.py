"""What exports offer to other services: a snapshot in the caller's transaction, its manifest, and uses that keep it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest

from export_factories import exports, mapping
from factories import end, take, value
from holdfast.engines.port import MissingRole
from holdfast.errors import IllegalMove, NotFound
from holdfast.jobs.config import set_value
from holdfast.jobs.outcome import Done
from holdfast.schedule.context import Held, Pass
from holdfast.schedule.registry import Loop
from holdfast.services.exports import offers
from holdfast.services.exports.lifecycle import loop
from holdfast.services.exports.limits import MAX_DURATION
from holdfast.services.exports.mappings.store import HasDependencies
from holdfast.services.exports.offers import NewSnapshot, SnapshotState
from loop_factories import LONG, taken

Client = httpx2.AsyncClient
FILES = [{"path": "attempt-1/part-00000.parquet", "rows": 3, "bytes": 10}]
WRITTEN = {"rows": 3, "bytes": 10, "files": FILES, "columns": [], "runtime": "direct"}


@pytest.fixture
async def ctx(conn: Any, connect: Any, database: str) -> Any:
    """One pass of the loop `lifecycle`, under a term of its own."""

    @asynccontextmanager
    async def borrow() -> Any:
        yield await connect()

    made = Loop(loop.NAME, loop.enforce, every=loop.EVERY, first_run="at_once")
    return Pass(await taken(conn, made), Held(LONG), borrow, database)


@pytest.fixture
async def mapping_id(ops: Client) -> int:
    answer = await ops.post("/api/mappings", json=mapping())
    assert answer.status_code == 201, answer.text
    return int(answer.json()["data"]["id"])


async def ready(conn: Any, mapping_id: int, **fields: Any) -> int:
    """A snapshot whose exports have completed."""
    snapshot_id = await offers.create_snapshot(conn, NewSnapshot(mapping_id=mapping_id, **fields), owner="ada")
    jobs = await conn.execute("SELECT job_id FROM holdfast.exports WHERE snapshot_id = %s ORDER BY position", [snapshot_id])
    for (job_id,) in await jobs.fetchall():
        await end(conn, await take(conn, job_id), Done(WRITTEN))
    return snapshot_id


async def test_a_snapshot_and_its_jobs_are_created_in_the_callers_transaction_or_not_at_all(conn: Any, mapping_id: int) -> None:
    async with conn.transaction() as outer:
        await offers.create_snapshot(conn, NewSnapshot(mapping_id=mapping_id), owner="ada")
        raise psycopg.Rollback(outer)

    assert await value(conn, "SELECT count(*) FROM holdfast.snapshots") == 0
    assert await value(conn, "SELECT count(*) FROM holdfast.jobs") == 0

    async with conn.transaction():
        snapshot_id = await offers.create_snapshot(conn, NewSnapshot(mapping_id=mapping_id), owner="ada")

    found = await offers.read_snapshot(conn, snapshot_id)
    assert (found.state, found.has_ended, found.owner, found.progress) == (SnapshotState.PENDING, False, "ada", 0.0)
    assert [table.status for table in found.tables] == ["pending"] * 3


async def test_the_configured_maximum_duration_limits_the_exports(conn: Any, mapping_id: int) -> None:
    await set_value(conn, MAX_DURATION, 77, by="test")

    await offers.create_snapshot(conn, NewSnapshot(mapping_id=mapping_id), owner="ada")

    assert await value(conn, "SELECT DISTINCT (payload ->> 'max_seconds')::float FROM holdfast.jobs") == 77


async def test_a_ready_snapshot_names_the_files_and_rows_of_each_table_of_its_own_version(
    ops: Client, conn: Any, mapping_id: int
) -> None:
    snapshot_id = await ready(conn, mapping_id)
    changed = mapping()
    changed["nodes"] = changed["nodes"][:1]
    asked = {"nodes": changed["nodes"], "edges": [], "change_description": "accounts are gone"}
    assert (await ops.put(f"/api/mappings/{mapping_id}", json=asked)).status_code in (200, 201)

    found = await offers.read_snapshot(conn, snapshot_id)

    assert (found.state, found.mapping_version, found.has_ended) == (SnapshotState.READY, 1, True)
    assert [(table.type, table.name) for table in found.tables] == [("node", "Customer"), ("node", "Account"), ("edge", "OWNS")]
    assert found.row_counts == {"Customer": 3, "Account": 3, "OWNS": 3}
    (file,) = found.tables[0].files
    assert file.url == f"{found.location}/nodes/Customer/attempt-1/part-00000.parquet"
    assert found.tables[2].definition.from_node == "Customer"  # type: ignore[union-attr]


async def test_a_snapshot_that_is_used_is_deleted_neither_by_a_user_nor_by_its_ttl(
    ops: Client, conn: Any, ctx: Any, mapping_id: int
) -> None:
    snapshot_id = await ready(conn, mapping_id, ttl="PT1H")
    async with conn.transaction():
        await offers.retain(conn, snapshot_id, "graphs/17")
        await offers.retain(conn, snapshot_id, "graphs/17")
    await conn.execute("UPDATE holdfast.snapshots SET created_at = created_at - interval '2 hours'")

    await loop.enforce(ctx)
    with pytest.raises(HasDependencies, match="used by graphs/17"):
        await offers.delete_snapshot(conn, snapshot_id)
    refused = await ops.delete(f"/api/snapshots/{snapshot_id}")

    assert (refused.status_code, refused.json()["code"]) == (409, "RESOURCE_HAS_DEPENDENCIES")
    assert not (await offers.read_snapshot(conn, snapshot_id)).is_being_deleted

    await offers.release(conn, snapshot_id, "graphs/17")
    await offers.release(conn, snapshot_id, "graphs/17")
    await loop.enforce(ctx)

    with pytest.raises(NotFound):
        await offers.read_snapshot(conn, snapshot_id)


async def test_a_snapshot_that_is_being_deleted_cannot_be_used(conn: Any, mapping_id: int) -> None:
    snapshot_id = await ready(conn, mapping_id)
    await conn.execute("UPDATE holdfast.snapshots SET deleting_since = clock_timestamp()")

    with pytest.raises(IllegalMove, match="is being deleted"):
        await offers.retain(conn, snapshot_id, "graphs/17")
    with pytest.raises(NotFound):
        await offers.retain(conn, snapshot_id + 1, "graphs/17")


async def test_a_snapshot_is_cancelled_and_then_deleted(conn: Any, mapping_id: int) -> None:
    snapshot_id = await offers.create_snapshot(conn, NewSnapshot(mapping_id=mapping_id), owner="ada")

    assert await offers.cancel_snapshot(conn, snapshot_id, actor="graphs", reason="its instance is gone") == 3
    assert (await offers.read_snapshot(conn, snapshot_id)).state is SnapshotState.CANCELLED
    removal = await offers.delete_snapshot(conn, snapshot_id)

    assert await value(conn, "SELECT kind FROM holdfast.jobs WHERE id = %s", removal) == "exports.remove"


async def test_an_engine_that_needs_a_role_refuses_a_snapshot_without_one(
    conn: Any, engine: Any, mapping_id: int, tmp_path: Path
) -> None:
    exports(engine, need_role=["duckdb"], root=str(tmp_path)).share()

    with pytest.raises(MissingRole):
        await offers.create_snapshot(conn, NewSnapshot(mapping_id=mapping_id), owner="ada")
    assert await offers.create_snapshot(conn, NewSnapshot(mapping_id=mapping_id, role="risk"), owner="ada")
