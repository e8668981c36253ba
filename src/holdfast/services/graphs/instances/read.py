"""Instances for people: lists with filters, the view without secrets, progress by phase."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import class_row, tuple_row

from holdfast.jobs.model import Json
from holdfast.services.exports import offers
from holdfast.services.graphs.instances.rows import COLUMNS, Instance
from holdfast.services.graphs.states import InstanceState

Conn = psycopg.AsyncConnection[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceView:
    """An instance as the API shows it. Field names are those of document 000 where it has them."""

    id: int
    owner: str
    name: str
    description: str | None
    status: InstanceState
    wrapper_type: str
    mapping_id: int
    mapping_version: int
    snapshot_id: int
    pending_snapshot_id: int | None
    instance_url: str | None  # the path at the control plane that passes requests on to its graph server
    pod_name: str | None
    cpu_cores: float
    memory_gb: float
    memory_usage_bytes: int | None
    disk_usage_bytes: int | None
    error_code: str | None
    error_message: str | None
    ttl: str | None
    inactivity_timeout: str | None
    expires_at: datetime | None
    inactive_at: datetime | None
    created_at: datetime
    updated_at: datetime
    started_at: datetime | None
    suspended_at: datetime | None
    last_activity_at: datetime | None
    resume_count: int
    query_count: int
    job_id: int


def view_of(one: Instance) -> InstanceView:
    """What people see. Pure."""
    waits = one.status is InstanceState.WAITING_FOR_SNAPSHOT
    return InstanceView(
        id=one.id,
        owner=one.owner,
        name=one.name,
        description=one.description,
        status=one.status,
        wrapper_type=one.engine,
        mapping_id=one.mapping_id,
        mapping_version=one.mapping_version,
        snapshot_id=one.snapshot_id,
        pending_snapshot_id=one.snapshot_id if waits else None,
        instance_url=f"/api/instances/{one.id}/graph" if one.status is InstanceState.RUNNING else None,
        pod_name=one.runtime_name,
        cpu_cores=one.cpu,
        memory_gb=one.memory_mb / 1024,
        memory_usage_bytes=one.memory_bytes,
        disk_usage_bytes=one.disk_bytes,
        error_code=one.error_code,
        error_message=one.error,
        ttl=one.ttl,
        inactivity_timeout=one.inactivity_timeout,
        expires_at=one.expires_at,
        inactive_at=one.inactive_at,
        created_at=one.created_at,
        updated_at=one.updated_at,
        started_at=one.started_at,
        suspended_at=one.suspended_at,
        last_activity_at=one.last_activity_at,
        resume_count=one.resume_count,
        query_count=one.query_count,
        job_id=one.job_id,
    )


LIST = f"SELECT {COLUMNS} FROM holdfast.graph_instances WHERE {{filters}} ORDER BY id DESC LIMIT %(limit)s"
FILTERS = {
    "before": "id < %(before)s",
    "owner": "owner = %(owner)s",
    "status": "state = %(status)s",
    "mapping_id": "mapping_id = %(mapping_id)s",
    "snapshot_id": "snapshot_id = %(snapshot_id)s",
    "search": "(position(lower(%(search)s) IN lower(name)) > 0 OR position(lower(%(search)s) IN lower(description)) > 0)",
    "name_prefix": "starts_with(name, %(name_prefix)s)",
    "older_than": "created_at <= clock_timestamp() - %(older_than)s",
}


async def listed(conn: Conn, *, limit: int, **filters: Any) -> list[Instance]:
    """Instances, newest first; one more than `limit` if there are more."""
    given = {name: value for name, value in filters.items() if value is not None}
    where = " AND ".join(FILTERS[name] for name in given) or "true"
    async with conn.cursor(row_factory=class_row(Instance)) as cursor:
        await cursor.execute(LIST.format(filters=where), given | {"limit": limit + 1})
        return await cursor.fetchall()


LOG_TAIL = "SELECT log_tail FROM holdfast.graph_instances WHERE id = %(id)s"


async def log_tail(conn: Conn, instance_id: int) -> str:
    """The last lines of a graph server that failed; "" if there are none."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(LOG_TAIL, {"id": instance_id})
        row = await cursor.fetchone()
    return "" if row is None else row[0] or ""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceProgress:
    """How far the start of an instance is: the export first, then the load."""

    status: InstanceState
    phase: str
    share: float  # 0 to 1, of all phases
    export_share: float
    steps: Json  # per table, as the graph server says it
    error_code: str | None
    error_message: str | None


async def progress_of(conn: Conn, one: Instance) -> InstanceProgress:
    """The progress of an instance by phase."""
    exported = 1.0
    if one.status is InstanceState.WAITING_FOR_SNAPSHOT:
        exported = (await offers.read_snapshot(conn, one.snapshot_id)).progress
    loaded = load_share(one.progress)
    phases = {
        InstanceState.WAITING_FOR_SNAPSHOT: ("exporting", 0.5 * exported),
        InstanceState.STARTING: ("loading", 0.5 + 0.5 * loaded),
        InstanceState.RESUMING: ("loading", 0.5 + 0.5 * loaded),
        InstanceState.RUNNING: ("ready", 1.0),
    }
    phase, share = phases.get(one.status, (str(one.status), 0.0))
    return InstanceProgress(
        status=one.status,
        phase=phase,
        share=share,
        export_share=exported,
        steps=one.progress,
        error_code=one.error_code,
        error_message=one.error,
    )


def load_share(progress: Json) -> float:
    """How much a graph server has loaded, from 0 to 1, from what it said last; 0 if it said nothing. Pure."""
    share = progress.get("share") if isinstance(progress, dict) else None
    return min(1.0, max(0.0, float(share))) if isinstance(share, int | float) else 0.0
