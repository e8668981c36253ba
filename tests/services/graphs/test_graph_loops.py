"""The loops of graphs as the documents name them: their passes, events and metrics, in full."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest
import structlog

from factories import rows
from graph_factories import (
    a_tick,
    fail_exports,
    finish_exports,
    get,
    many_running,
    new_instance,
    ready_snapshot,
    running_instance,
    status,
    tell,
    until_status,
    worker,
)
from holdfast.api import metrics
from holdfast.schedule import tick as tick_module
from holdfast.schedule.tick import Place
from holdfast.services.graphs.instances import delete, resize
from holdfast.services.graphs.runtimes.interface import RuntimeFailed
from holdfast.settings import settings
from services.graphs.test_local_runtime import spec
from services.graphs.test_resource_monitor import sample
from workers import until

Client = httpx2.AsyncClient
Events = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Metrics of the database are read for each request, and snapshots may be removed."""
    monkeypatch.setattr(metrics, "GOOD_FOR", 0.0)
    monkeypatch.setenv("HOLDFAST_EXPORT_DIRS", str(tmp_path))
    settings.cache_clear()
    yield
    settings.cache_clear()


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> Events:
    """Every event that a tick logs, in order."""
    said: Events = []

    def keep(_: Any, level: str, event: Any) -> str:
        said.append({**event, "level": level})
        raise structlog.DropEvent

    recorder = structlog.wrap_logger(None, processors=[keep], wrapper_class=structlog.BoundLogger)
    monkeypatch.setattr(tick_module, "log", recorder)
    return said


async def served(ops: Client) -> dict[str, float]:
    """The metrics of this process and of the control plane, by name and labels."""
    text = (await ops.get("/metrics")).text
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def grown(before: dict[str, float], after: dict[str, float], *names: str) -> dict[str, float]:
    """By how much each metric has grown; a `KeyError` names one that is not served."""
    return {name: after[name] - before.get(name, 0.0) for name in names}


@pytest.mark.more
async def test_a_pass_of_reconciliation_fixes_all_and_has_the_events_and_metrics_of_the_documents(
    conn: Any, database: str, runtime: Any, says: Any, ops: Client, place: Place, mapping_id: int, events: Events
) -> None:
    """R-05, R-11, R-12: an orphan, a missing server and a drift are fixed in one pass, which says so by event and metrics."""
    missing = await running_instance(conn, database, mapping_id)
    drifted = await running_instance(conn, database, mapping_id)
    await runtime.ensure(spec(4711))
    await a_tick(conn, place, "reconciliation")  # the first pass that sees the orphan
    before = await served(ops)
    await runtime.remove(missing)
    tell(says, drifted, exit=3)

    async def has_ended() -> bool:
        return bool((await runtime.look(drifted)).phase == "failed")

    await until(has_ended)
    events.clear()

    await a_tick(conn, place, "reconciliation")

    assert [await status(conn, one) for one in (missing, drifted)] == ["failed", "failed"]
    assert await runtime.look(4711) is None
    assert [event["event"] for event in events] == ["reconciliation_job_started", "reconciliation_job_completed"]
    told = {name: events[1][name] for name in ("orphaned_pods_cleaned", "missing_pods_handled", "status_drift_fixed")}
    assert told == {"orphaned_pods_cleaned": 1, "missing_pods_handled": 1, "status_drift_fixed": 1}
    assert events[1]["duration_seconds"] > 0
    after = await served(ops)
    counted = grown(
        before,
        after,
        'reconciliation_passes_total{status="success"}',
        "reconciliation_pass_duration_seconds_count",
        "orphaned_pods_detected_total",
        "orphaned_pods_cleaned_total",
        "missing_pods_detected_total",
        "missing_pods_handled_total",
        "status_drift_detected_total",
        "status_drift_fixed_total",
    )
    assert set(counted.values()) == {1.0}, counted
    assert after["orphaned_pods_cleanup_failures_total"] == before["orphaned_pods_cleanup_failures_total"]
    assert (after["orphaned_pods_detected_current"], after["instances_without_pod_name"]) == (0, 0)


async def test_instances_without_a_pod_name_are_counted(conn: Any, ops: Client, mapping_id: int) -> None:
    """R-12, E-12 a: an instance that starts and has no graph server is visible."""
    await new_instance(conn, snapshot_id=await ready_snapshot(conn, mapping_id))

    assert (await served(ops))["instances_without_pod_name"] == 1


@pytest.mark.more
async def test_lifecycle_has_the_metrics_of_the_documents(
    conn: Any, database: str, ops: Client, place: Place, mapping_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L-08: instances by TTL and inactivity, snapshots, mappings, failures by type. One job in the documents."""
    snapshot_id = await ready_snapshot(conn, mapping_id)
    expired, idle, broken = [await new_instance(conn, snapshot_id=snapshot_id) for _ in range(3)]
    async with worker(database):
        for instance_id in (expired, idle, broken):
            await until_status(conn, instance_id, "running")
    await conn.execute("UPDATE holdfast.graph_instances SET created_at = now() - interval '2 days' WHERE id <> %s", [idle])
    await conn.execute(
        "UPDATE holdfast.graph_instances SET last_activity_at = now() - interval '9 hours' WHERE id = %s", [idle]
    )
    begin = delete.begin_if

    async def one_fails(tx: Any, number: int, *args: Any, **how: Any) -> Any:
        if number == broken:
            raise RuntimeError("no")
        return await begin(tx, number, *args, **how)

    before = await served(ops)
    with monkeypatch.context() as patch:
        patch.setattr(delete, "begin_if", one_fails)
        await a_tick(conn, place, "instance_lifecycle")
    await a_tick(conn, place, "instance_lifecycle")
    async with worker(database):
        for instance_id in (expired, idle, broken):
            await until_status(conn, instance_id, None)
    for table in ("snapshots", "mappings"):
        await conn.execute(f"UPDATE holdfast.{table} SET ttl = 'PT1H', created_at = now() - interval '2 hours'")
    await a_tick(conn, place, "lifecycle")

    assert grown(
        before,
        await served(ops),
        "lifecycle_passes_total",
        "lifecycle_pass_duration_seconds_count",
        'instance_lifecycle_passes_total{status="success"}',
        "ttl_instances_terminated_total",
        "inactive_instances_terminated_total",
        'lifecycle_termination_failures_total{resource_type="instance"}',
        "ttl_snapshots_deleted_total",
        "ttl_mappings_deleted_total",
        "snapshot_gcs_cleanup_failures_total",
    ) == {
        "lifecycle_passes_total": 1,
        "lifecycle_pass_duration_seconds_count": 1,
        'instance_lifecycle_passes_total{status="success"}': 2,
        "ttl_instances_terminated_total": 2,
        "inactive_instances_terminated_total": 1,
        'lifecycle_termination_failures_total{resource_type="instance"}': 1,
        "ttl_snapshots_deleted_total": 1,
        "ttl_mappings_deleted_total": 1,
        "snapshot_gcs_cleanup_failures_total": 0,
    }


@pytest.mark.more
async def test_orchestration_has_the_metrics_of_the_documents(
    conn: Any, database: str, ops: Client, runtime: Any, place: Place, mapping_id: int
) -> None:
    """O-11: transitions to starting; to failed by a snapshot that failed, was cancelled or is gone, and by no pod at all."""
    before = await served(ops)
    failed, cancelled, gone = [await new_instance(conn, mapping_id=mapping_id) for _ in range(3)]
    snapshots = [(await get(conn, one)).snapshot_id for one in (failed, cancelled, gone)]
    await fail_exports(conn, snapshots[0])
    assert (await ops.post(f"/api/snapshots/{snapshots[1]}/cancel", json={"reason": "test"})).status_code < 300
    await conn.execute("UPDATE holdfast.graph_instances SET snapshot_id = 999, job_id = 999999 WHERE id = %s", [gone])
    not_created = await new_instance(conn, snapshot_id=await ready_snapshot(conn, mapping_id))
    started = await new_instance(conn, mapping_id=mapping_id)
    await finish_exports(conn, (await get(conn, started)).snapshot_id)
    ensure_server = runtime.ensure

    async def refuses(given: Any) -> Any:
        if given.instance_id == not_created:
            raise RuntimeFailed("the quota is used up")
        return await ensure_server(given)

    runtime.ensure = refuses
    async with worker(database):
        for instance_id in (failed, cancelled, not_created):
            await until_status(conn, instance_id, "failed")
        await until_status(conn, started, "running")
    await a_tick(conn, place, "instance_orchestration")

    assert await status(conn, gone) == "failed"
    assert (await get(conn, not_created)).error == "the quota is used up"
    assert grown(
        before,
        await served(ops),
        'instance_orchestration_passes_total{status="success"}',
        "instance_orchestration_pass_duration_seconds_count",
        "instances_transitioned_to_starting_total",
        "instances_transitioned_to_failed_total",
    ) == {
        'instance_orchestration_passes_total{status="success"}': 1,
        "instance_orchestration_pass_duration_seconds_count": 1,
        "instances_transitioned_to_starting_total": 1,
        "instances_transitioned_to_failed_total": 4,
    }


async def test_the_resource_monitor_has_the_metrics_of_the_documents(
    conn: Any, ops: Client, place: Place, mapping_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M-02: passes, their duration, resizes by how urgent they were, and instances that could not be handled."""
    await many_running(conn, await ready_snapshot(conn, mapping_id), 3)
    ((proactive,), (urgent,), (broken,)) = await rows(conn, "SELECT id FROM holdfast.graph_instances ORDER BY id")
    await sample(conn, proactive, (120, 0.85), (60, 0.85), (0, 0.85))
    for instance_id in (urgent, broken):
        await sample(conn, instance_id, (60, 0.95), (0, 0.95))
    request = resize.request

    async def one_fails(tx: Any, number: int, **how: Any) -> Any:
        if number == broken:
            raise RuntimeError("no")
        return await request(tx, number, **how)

    monkeypatch.setattr(resize, "request", one_fails)
    before = await served(ops)

    await a_tick(conn, place, "resource_monitor")

    assert grown(
        before,
        await served(ops),
        'resource_monitor_passes_total{status="success"}',
        "resource_monitor_pass_duration_seconds_count",
        "resource_monitor_proactive_resizes_total",
        "resource_monitor_urgent_resizes_total",
        "resource_monitor_failures_total",
    ) == {
        'resource_monitor_passes_total{status="success"}': 1,
        "resource_monitor_pass_duration_seconds_count": 1,
        "resource_monitor_proactive_resizes_total": 1,
        "resource_monitor_urgent_resizes_total": 1,
        "resource_monitor_failures_total": 1,
    }


async def test_an_instance_that_names_no_snapshot_is_skipped_with_a_warning(
    conn: Any, place: Place, mapping_id: int, caplog: pytest.LogCaptureFixture
) -> None:
    """O-02: the database refuses such a row; one that got there all the same stops nothing, and is named in every pass."""
    wrong, other = [await new_instance(conn, mapping_id=mapping_id) for _ in range(2)]
    without = "UPDATE holdfast.graph_instances SET snapshot_id = NULL, job_id = 999999 WHERE id = %s"
    with pytest.raises(psycopg.errors.NotNullViolation):
        await conn.execute(without, [wrong])
    await conn.execute("ALTER TABLE holdfast.graph_instances ALTER snapshot_id DROP NOT NULL")
    await conn.execute(without, [wrong])
    await conn.execute("UPDATE holdfast.graph_instances SET job_id = 999999 WHERE id = %s", [other])

    with caplog.at_level("WARNING"):
        await a_tick(conn, place, "instance_orchestration")

    warned = [one for one in caplog.records if "instance_missing_pending_snapshot_id" in one.getMessage()]
    assert [(one.levelname, f"{wrong}" in one.getMessage()) for one in warned] == [("WARNING", True)]
    assert (await get(conn, wrong)).job_id == 999999, "it is skipped"
    assert (await get(conn, other)).job_id != 999999, "the other one is moved on"
