"""An instance from its creation to its deletion, with real processes of the local runtime."""

from __future__ import annotations

import logging
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest

from export_factories import mapping
from factories import value
from graph_factories import (
    fail_exports,
    finish_exports,
    get,
    new_instance,
    ready_snapshot,
    running_instance,
    status,
    tell,
    until_status,
    worker,
)
from holdfast.jobs.cancel import cancel
from holdfast.jobs.config import set_value
from holdfast.jobs.model import JobId
from holdfast.jobs.rerun import rerun
from holdfast.services.exports import offers
from holdfast.services.graphs import limits
from holdfast.services.graphs.plan import LoadPlan
from workers import until

Client = httpx2.AsyncClient


@pytest.mark.more
async def test_an_instance_of_a_mapping_waits_for_its_snapshot_then_loads_and_runs(
    analyst: Client, conn: Any, database: str, runtime: Any, mapping_id: int, caplog: pytest.LogCaptureFixture
) -> None:
    """I-01, I-03, O-01, O-04, O-12: created before the snapshot exists; it starts at once when the last export has ended, and
    is `starting` in the database before there is a graph server. A worker that has other work does not start it earlier."""
    ensure, when_made = runtime.ensure, []

    async def noted(given: Any) -> Any:
        when_made.append((given.instance_id, await status(conn, given.instance_id)))
        return await ensure(given)

    runtime.ensure = noted
    other = await new_instance(conn, mapping_id=mapping_id)
    asked = await analyst.post("/api/instances", json={"name": "bank", "mapping_id": mapping_id})
    made = asked.json()["data"]

    assert (asked.status_code, asked.headers["Location"]) == (202, f"/api/instances/{made['id']}")
    assert (made["status"], made["owner"], made["wrapper_type"]) == ("waiting_for_snapshot", "token:analyst", "ladybug")
    assert (made["pending_snapshot_id"], made["instance_url"]) == (made["snapshot_id"], None)
    with caplog.at_level(logging.INFO):
        async with worker(database):
            assert (await analyst.delete(f"/api/instances/{other}")).status_code == 204
            assert (await status(conn, made["id"]), await runtime.observe()) == ("waiting_for_snapshot", [])
            await finish_exports(conn, made["snapshot_id"])
            await until_status(conn, made["id"], "running")

    assert set(when_made) == {(made["id"], "starting")}
    (told_once,) = [one for one in caplog.records if "transitioning_instance_to_starting" in one.getMessage()]
    assert f"instance_id={made['id']} snapshot_id={made['snapshot_id']} " in told_once.getMessage()
    shown = (await analyst.get(f"/api/instances/{made['id']}")).json()["data"]
    assert shown["instance_url"] == f"/api/instances/{made['id']}/graph"
    assert (shown["status"], shown["pending_snapshot_id"]) == ("running", None)
    assert shown["pod_name"].startswith("pid ")
    health = (await analyst.get(f"/api/instances/{made['id']}/health")).json()["data"]
    assert (health["runtime"], health["server"], health["healthy"]) == ("running", "ready", True)
    told = (await analyst.get(f"/api/instances/{made['id']}/events")).json()["data"]
    assert [one["event_type"] for one in told] == ["started", "created"]


def size_of(path: str) -> int:
    return Path(path).stat().st_size


async def test_an_instance_loads_the_mapping_version_of_its_snapshot(
    ops: Client, conn: Any, database: str, runtime: Any, mapping_id: int
) -> None:
    """E-18, O-08: a change of the mapping between the export and the start does not matter. The runtime gets what names the
    instance, its owner, its engine, its snapshot and the place of the files."""
    ensure, given = runtime.ensure, []

    async def noted(spec: Any) -> Any:
        given.append(spec)
        return await ensure(spec)

    runtime.ensure = noted
    snapshot_id = await ready_snapshot(conn, mapping_id)
    changed = {"change_description": "accounts only", "nodes": [mapping()["nodes"][1]], "edges": []}
    assert (await ops.put(f"/api/mappings/{mapping_id}", json=changed)).status_code == 200
    instance_id = await new_instance(conn, snapshot_id=snapshot_id)

    async with worker(database):
        await until_status(conn, instance_id, "running")

    (folder,) = runtime.folders.starts(instance_id)
    plan = LoadPlan.from_json((folder.path / "plan.json").read_text())
    assert (plan.mapping_version, [one.label for one in plan.nodes]) == (1, ["Customer", "Account"])
    assert [(one.type, one.from_node, one.to_node, one.rows) for one in plan.edges] == [("OWNS", "Customer", "Account", 100)]
    assert plan.nodes[0].primary_key.name == "id"
    assert [one.name for one in plan.nodes[0].properties] == ["name", "age"]
    assert all(size_of(file.path) == file.bytes for table in plan.tables for file in table.files)
    assert (plan.instance_id, plan.start_token) == (instance_id, (await get(conn, instance_id)).start_token)
    *_, spec = given  # a call without an answer in time is repeated
    assert spec.labels == {"mapping-id": f"{mapping_id}", "mapping-version": "1", "snapshot-id": f"{snapshot_id}"}
    assert (spec.instance_id, spec.owner, spec.engine) == (instance_id, "token:analyst", "ladybug")
    assert spec.plan.location == await value(conn, "SELECT location FROM holdfast.snapshots WHERE id = %s", snapshot_id)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("failed", "Snapshot failed: node Customer: no such table"),
        ("cancelled", "Snapshot creation was cancelled"),
        ("gone", "Pending snapshot was deleted before it could complete"),
    ],
)
async def test_an_instance_fails_if_its_snapshot_does(
    conn: Any, database: str, here: Any, mapping_id: int, how: str, message: str
) -> None:
    """I-07, O-03, O-05, O-06: with DATA_LOAD_ERROR, as soon as the last export has ended."""
    instance_id = await new_instance(conn, mapping_id=mapping_id)
    snapshot_id = (await get(conn, instance_id)).snapshot_id
    if how == "failed":
        await fail_exports(conn, snapshot_id)
    elif how == "cancelled":
        await offers.cancel_snapshot(conn, snapshot_id, actor="test")
    else:
        await finish_exports(conn, snapshot_id)
        await conn.execute("DELETE FROM holdfast.snapshot_uses")
        await conn.execute("DELETE FROM holdfast.snapshots WHERE id = %s", [snapshot_id])

    async with worker(database):
        await until_status(conn, instance_id, "failed")

    found = await get(conn, instance_id)
    assert (found.error_code, found.error) == ("DATA_LOAD_ERROR", message)
    assert await value(conn, "SELECT sum(count) FROM holdfast.tallies WHERE name = 'instances_transitioned_to_failed'") == 1


async def test_a_snapshot_in_use_cannot_be_deleted(ops: Client, conn: Any, database: str, mapping_id: int) -> None:
    instance_id = await running_instance(conn, database, mapping_id)
    snapshot_id = (await get(conn, instance_id)).snapshot_id

    answer = await ops.delete(f"/api/snapshots/{snapshot_id}")

    assert answer.status_code == 409
    assert f"used by graphs/{instance_id}" in answer.json()["detail"]


async def test_a_load_that_fails_has_its_code_message_and_log(
    analyst: Client, conn: Any, database: str, says: Path, runtime: Any, mapping_id: int
) -> None:
    """No process is left, and the end of its log is kept."""
    snapshot_id = await ready_snapshot(conn, mapping_id)
    instance_id = await new_instance(conn, snapshot_id=snapshot_id)
    tell(says, instance_id, phase="failed", error_code="DATA_LOAD_ERROR", error="Customer has 99 rows, 100 were expected")

    async with worker(database):
        await until_status(conn, instance_id, "failed")
        await until(lambda: _is_empty(runtime))

    shown = (await analyst.get(f"/api/instances/{instance_id}")).json()["data"]
    assert (shown["error_code"], shown["error_message"]) == ("DATA_LOAD_ERROR", "Customer has 99 rows, 100 were expected")
    lines = (await analyst.get(f"/api/instances/{instance_id}/logs")).json()["data"]["lines"]
    assert lines[0] == "the double listens"


async def _is_empty(runtime: Any) -> bool:
    return await runtime.observe() == []


async def test_a_process_that_vanishes_during_its_start_is_started_again(
    conn: Any, database: str, says: Path, runtime: Any, mapping_id: int
) -> None:
    snapshot_id = await ready_snapshot(conn, mapping_id)
    instance_id = await new_instance(conn, snapshot_id=snapshot_id)
    tell(says, instance_id, phase="loading")
    async with worker(database):
        await until(lambda: _has_server(runtime, instance_id))
    await runtime.remove(instance_id)  # while no worker looks: one that looked would see a process that ends
    tell(says, instance_id, phase="ready")

    async with worker(database):
        await until_status(conn, instance_id, "running")

    assert len(await runtime.observe()) == 1


async def _has_server(runtime: Any, instance_id: int) -> bool:
    seen = await runtime.look(instance_id)
    return seen is not None and seen.address is not None


async def test_a_load_that_takes_too_long_fails(conn: Any, database: str, says: Path, runtime: Any, mapping_id: int) -> None:
    """E-12: a start has a deadline; what it had started is removed."""
    snapshot_id = await ready_snapshot(conn, mapping_id)
    instance_id = await new_instance(conn, snapshot_id=snapshot_id, longest_start=timedelta(seconds=1))
    tell(says, instance_id, phase="loading")

    async with worker(database):
        await until_status(conn, instance_id, "failed")
        await until(lambda: _is_empty(runtime))

    found = await get(conn, instance_id)
    assert (found.error_code, found.error) == ("STARTUP_FAILED", "its engine had it for longer than max_runtime")


async def test_a_cancelled_start_job_fails_its_instance_and_a_rerun_starts_it(
    conn: Any, database: str, says: Path, runtime: Any, mapping_id: int
) -> None:
    """Whoever ends the job ends the start, in the same transaction."""
    snapshot_id = await ready_snapshot(conn, mapping_id)
    instance_id = await new_instance(conn, snapshot_id=snapshot_id)
    job_id = (await get(conn, instance_id)).job_id

    await cancel(conn, JobId(job_id), actor="ops", reason="not now")
    cancelled = await get(conn, instance_id)
    await rerun(conn, JobId(job_id), actor="ops", reason="now", grant=1)

    assert (cancelled.status, cancelled.error_code, cancelled.error) == ("failed", "STARTUP_FAILED", "not now")
    assert (await get(conn, instance_id)).status == "starting"
    async with worker(database):
        await until_status(conn, instance_id, "running")


@pytest.mark.more
async def test_no_worker_lane_is_held_while_a_graph_loads(
    conn: Any, database: str, says: Path, here: Any, mapping_id: int
) -> None:
    """The job is submitted and polled. Its lock stays with it, so no other job of the instance runs."""
    await set_value(conn, limits.PER_OWNER, 20, by="test")
    snapshot_id = await ready_snapshot(conn, mapping_id)
    made = [await new_instance(conn, snapshot_id=snapshot_id) for _ in range(10)]
    for instance_id in made:
        tell(says, instance_id, phase="loading")

    async with worker(database):  # it has eight lanes

        async def all_load() -> bool:
            return await value(conn, "SELECT count(*) FROM holdfast.jobs WHERE handle IS NOT NULL") == 10

        await until(all_load)
        assert await value(conn, "SELECT count(*) FROM holdfast.lock_holders WHERE key LIKE 'graph:%%'") == 10
        for instance_id in made:
            tell(says, instance_id, phase="ready")
        for instance_id in made:
            await until_status(conn, instance_id, "running")


@pytest.mark.more
async def test_memory_follows_the_size_of_the_snapshot_unless_it_was_chosen(
    conn: Any, database: str, here: Any, mapping_id: int
) -> None:
    """E-12 f, E-17: at the start, within the limits."""
    chosen = await new_instance(conn, mapping_id=mapping_id, memory_mb=1024)
    sized = await new_instance(conn, mapping_id=mapping_id)
    limited = await new_instance(conn, mapping_id=mapping_id, owner="token:other")
    await new_instance(conn, mapping_id=mapping_id, owner="token:other", memory_mb=4096)
    for instance_id in (chosen, sized, limited):
        snapshot_id = (await get(conn, instance_id)).snapshot_id
        await finish_exports(conn, snapshot_id)
        await conn.execute("UPDATE holdfast.snapshots SET size_bytes = 3 * 1024 ^ 3 WHERE id = %s", [snapshot_id])
    await set_value(conn, limits.OWNER_MEMORY, 8, by="test")

    async with worker(database):
        for instance_id in (chosen, sized, limited):
            await until_status(conn, instance_id, "running")

    assert [(await get(conn, one)).memory_mb for one in (chosen, sized, limited)] == [1024, 7 * 1024, 1024]
