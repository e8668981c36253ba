"""The state and progress of snapshots and exports. The row of an export has its outcome, the row of its job its progress."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import class_row, tuple_row

from holdfast.errors import NotFound
from holdfast.jobs.model import Json
from holdfast.jobs.states import State
from holdfast.services.exports.durations import end_of
from holdfast.services.exports.snapshots.states import STATUS_OF, STATUSES

Conn = psycopg.AsyncConnection[Any]


@dataclass(frozen=True, slots=True)
class SnapshotView:
    """A snapshot, without its exports."""

    id: int
    mapping_id: int
    mapping_version: int
    owner: str
    name: str
    description: str | None
    status: str
    engine: str
    role: str | None
    location: str
    pipeline_id: str
    error_message: str | None
    cancel_requested_at: datetime | None
    node_counts: dict[str, int] | None
    edge_counts: dict[str, int] | None
    size_bytes: int | None
    ttl: str | None
    inactivity_timeout: str | None
    last_used_at: datetime | None
    created_at: datetime
    updated_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    deleting_since: datetime | None  # set if it has expired and its files are being removed
    expires_at: datetime | None = field(default=None, kw_only=True)  # by its TTL
    inactive_at: datetime | None = field(default=None, kw_only=True)  # by its inactivity timeout, if it is not used before

    def __post_init__(self) -> None:
        object.__setattr__(self, "expires_at", end_of(self.created_at, self.ttl))
        if self.finished_at is not None:  # a snapshot that is being created is in use
            used_at = max(self.finished_at, self.last_used_at or self.finished_at)
            object.__setattr__(self, "inactive_at", end_of(used_at, self.inactivity_timeout))


@dataclass(frozen=True, slots=True)
class ExportView:
    """One export with its status and progress."""

    id: int  # of its job
    snapshot_id: int
    job_type: str
    entity_name: str
    status: str
    location: str  # the folder or address of its files
    gcs_path: str  # the same, under the name of document 002
    sql: str | None  # null if the caller may not see it
    column_names: list[str]
    starburst_catalog: str | None
    starburst_role: str | None
    claimed_by: str | None
    claimed_at: datetime | None
    starburst_query_id: str | None
    next_uri: str | None
    next_poll_at: datetime | None
    poll_count: int
    submitted_at: datetime | None
    completed_at: datetime | None
    row_count: int | None
    size_bytes: int | None
    error_message: str | None
    runtime: str | None
    attempts: int
    progress: float | None
    message: str | None
    queue_position: int | None
    files: Json
    schema: Json


SNAPSHOT = """id, mapping_id, mapping_version, owner, name, description, state AS status, engine, role, location,
    pipeline_id::text, error AS error_message, cancel_requested_at, node_counts, edge_counts, size_bytes, ttl,
    inactivity_timeout, last_used_at, created_at, updated_at, started_at, finished_at, deleting_since"""
READ = f"SELECT {SNAPSHOT} FROM holdfast.snapshots WHERE id = %(id)s"


async def get(conn: Conn, snapshot_id: int) -> SnapshotView:
    """One snapshot."""
    async with conn.cursor(row_factory=class_row(SnapshotView)) as cursor:
        await cursor.execute(READ, {"id": snapshot_id})
        found = await cursor.fetchone()
    if found is None:
        raise NotFound(f"there is no snapshot {snapshot_id}")
    return found


READ_OWNER = "SELECT owner FROM holdfast.snapshots WHERE id = %(id)s"


async def owner_of(conn: Conn, snapshot_id: int) -> str | None:
    """The owner of a snapshot; None if it does not exist."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(READ_OWNER, {"id": snapshot_id})
        row = await cursor.fetchone()
    return None if row is None else row[0]


LIST = "SELECT {columns} FROM holdfast.snapshots WHERE {filters} ORDER BY id DESC LIMIT %(limit)s"
FILTERS = {
    "before": "id < %(before)s",
    "owner": "owner = %(owner)s",
    "mapping_id": "mapping_id = %(mapping_id)s",
    "status": "state = %(status)s",
}


async def listed(conn: Conn, *, limit: int, **filters: Any) -> list[SnapshotView]:
    """Snapshots, newest first; one more than `limit` if there are more."""
    given = {name: value for name, value in filters.items() if value is not None}
    statement = LIST.format(columns=SNAPSHOT, filters=" AND ".join(FILTERS[name] for name in given) or "true")
    async with conn.cursor(row_factory=class_row(SnapshotView)) as cursor:
        await cursor.execute(statement, given | {"limit": limit + 1})
        return await cursor.fetchall()


# The job of an old export may have been pruned. The queue position is counted up to 1,000.
EXPORTS = """
    SELECT e.job_id AS id, e.snapshot_id, e.job_type, e.entity_name,
           coalesce(e.outcome, CASE WHEN j.state = 'running' AND j.handle IS NOT NULL THEN 'submitted'
                                    WHEN j.state = 'running' THEN 'claimed' WHEN j.state = 'blocked' THEN 'pending'
                                    ELSE coalesce(j.state, 'pending') END) AS status,
           e.location, e.location AS gcs_path, e.sql,
           ARRAY(SELECT c ->> 'name' FROM jsonb_array_elements(e.columns) AS c) AS column_names,
           j.payload ->> 'catalog' AS starburst_catalog, j.payload ->> 'role' AS starburst_role,
           w.name AS claimed_by, CASE WHEN j.state = 'running' THEN j.claimed_at END AS claimed_at,
           j.handle #>> '{query,query_id}' AS starburst_query_id, j.handle #>> '{query,next_uri}' AS next_uri,
           j.next_poll_at, coalesce(j.poll_count, 0) AS poll_count, j.submitted_at, e.finished_at AS completed_at,
           e.row_count, e.size_bytes, e.error AS error_message, e.runtime, coalesce(j.attempt_no, e.attempt_no, 0) AS attempts,
           CASE WHEN e.outcome = 'completed' THEN 1.0 ELSE j.progress END AS progress, j.message,
           CASE WHEN j.state = 'pending' THEN
               (SELECT count(*) + 1 FROM (SELECT FROM holdfast.jobs q WHERE q.state = 'pending' AND q.run_after IS NULL
                    AND q.queue = j.queue AND q.kind = j.kind AND (q.priority, q.id) < (j.priority, j.id) LIMIT 1000) AS ahead)
           END AS queue_position,
           e.files, e.schema
    FROM holdfast.exports e
    LEFT JOIN holdfast.jobs j ON j.id = e.job_id
    LEFT JOIN holdfast.workers w ON w.id = j.worker_id
"""
OF_SNAPSHOT = EXPORTS + " WHERE e.snapshot_id = %(snapshot_id)s ORDER BY e.position LIMIT 2000"


async def exports_of(conn: Conn, snapshot_id: int) -> list[ExportView]:
    """The exports of a snapshot, nodes first."""
    async with conn.cursor(row_factory=class_row(ExportView)) as cursor:
        await cursor.execute(OF_SNAPSHOT, {"snapshot_id": snapshot_id})
        return await cursor.fetchall()


ONE_EXPORT = EXPORTS + " WHERE e.job_id = %(id)s"


async def get_export(conn: Conn, job_id: int) -> ExportView:
    """One export."""
    async with conn.cursor(row_factory=class_row(ExportView)) as cursor:
        await cursor.execute(ONE_EXPORT, {"id": job_id})
        found = await cursor.fetchone()
    if found is None:
        raise NotFound(f"there is no export job {job_id}")
    return found


EXPORT_FILTERS = {
    "before": "e.job_id < %(before)s",
    "owner": "s.owner = %(owner)s",
    "snapshot_id": "e.snapshot_id = %(snapshot_id)s",
    "states": "coalesce(e.outcome, j.state) = ANY (%(states)s)",
}
LIST_EXPORTS = (
    EXPORTS + " JOIN holdfast.snapshots s ON s.id = e.snapshot_id WHERE {filters} ORDER BY e.job_id DESC LIMIT %(limit)s"
)


async def list_exports(conn: Conn, *, limit: int, status: str | None = None, **filters: Any) -> list[ExportView]:
    """Exports of all snapshots, newest first; one more than `limit` if there are more."""
    states = None if status is None else [state.value for state in State if STATUS_OF[state] == status]
    given = {name: value for name, value in {**filters, "states": states}.items() if value is not None}
    statement = LIST_EXPORTS.replace("{filters}", " AND ".join(EXPORT_FILTERS[name] for name in given) or "true")
    async with conn.cursor(row_factory=class_row(ExportView)) as cursor:
        await cursor.execute(statement, given | {"limit": limit + 1})
        return await cursor.fetchall()


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a snapshot."""

    share: float  # 0 to 1: the mean over its exports; an ended export counts as 1
    jobs: dict[str, int]  # by status
    rows: int
    bytes: int


def progress_of(exports: list[ExportView]) -> Progress:
    """Compute the progress of a snapshot from its exports. Pure."""
    jobs = {status: sum(one.status == status for one in exports) for status in STATUSES}
    parts = [1.0 if one.status in ("completed", "failed", "cancelled") else (one.progress or 0.0) for one in exports]
    return Progress(
        share=round(sum(parts) / len(parts), 4) if parts else 0.0,
        jobs=jobs,
        rows=sum(one.row_count or 0 for one in exports),
        bytes=sum(one.size_bytes or 0 for one in exports),
    )
