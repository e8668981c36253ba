"""What exports offer to other services: snapshots. The only module of exports that another service may import.

    async with conn.transaction():
        snapshot_id = await offers.create_snapshot(conn, NewSnapshot(mapping_id=7), owner="token:ada")
        await offers.retain(conn, snapshot_id, "graphs/17")           # not deleted until `release`
    snapshot = await offers.read_snapshot(conn, snapshot_id)          # poll until `has_ended`
    for table in snapshot.tables: ...                                 # nodes first; `files` are there when it is ready

Every function works on the caller's connection and, where it writes, in the caller's transaction. None of them checks the
rights of a user: the calling service does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

import psycopg
from psycopg.rows import class_row, tuple_row

from holdfast.engines.port import MissingRole
from holdfast.jobs.config import value_of
from holdfast.jobs.model import JobId
from holdfast.services.exports import measures
from holdfast.services.exports.export.payload import Runtime
from holdfast.services.exports.limits import MAX_DURATION
from holdfast.services.exports.mappings import store
from holdfast.services.exports.mappings.definitions import EdgeDefinition, NodeDefinition
from holdfast.services.exports.setup import exports_here
from holdfast.services.exports.snapshots import change, create, read, uses
from holdfast.services.exports.snapshots.states import OPEN, SnapshotState
from holdfast.stores.opening import StoreOptions

__all__ = [
    "MappingHead",
    "NewSnapshot",
    "Snapshot",
    "SnapshotFile",
    "SnapshotHead",
    "SnapshotState",
    "SnapshotTable",
    "cancel_snapshot",
    "count_termination_failure",
    "create_snapshot",
    "delete_snapshot",
    "export_jobs",
    "mapping_versions",
    "newest_ready",
    "read_heads",
    "read_mapping_heads",
    "read_snapshot",
    "release",
    "retain",
    "snapshots_of_mapping",
    "store_options",
]

Conn = psycopg.AsyncConnection[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSnapshot:
    """A snapshot to create. Without a version it is of the mapping's current version."""

    mapping_id: int
    mapping_version: int | None = None
    name: str | None = None
    description: str | None = None
    role: str | None = None  # with which the engine runs the queries; there is no default
    runtime: Runtime = "auto"
    ttl: str | None = None  # default: the mapping's
    inactivity_timeout: str | None = None


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """A Parquet file. `url` is complete: file:///…, s3://… or gs://…, or an absolute path."""

    url: str
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class SnapshotTable:
    """A node or edge of a snapshot: its definition, and its published files. `rows` and `files` are for completed exports."""

    type: Literal["node", "edge"]
    name: str
    definition: NodeDefinition | EdgeDefinition
    status: str
    rows: int | None
    bytes: int | None
    files: tuple[SnapshotFile, ...]
    error: str | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot as it is now. `tables` come from the snapshot's own mapping version, in the order in which to load them."""

    id: int
    owner: str
    name: str
    mapping_id: int
    mapping_version: int
    state: SnapshotState
    error: str | None
    location: str
    progress: float  # 0 to 1
    size_bytes: int | None
    tables: tuple[SnapshotTable, ...]
    is_being_deleted: bool

    @property
    def has_ended(self) -> bool:
        return self.state not in OPEN

    @property
    def row_counts(self) -> dict[str, int]:
        """Rows per node and edge; complete when the snapshot is ready."""
        return {table.name: table.rows for table in self.tables if table.rows is not None}


@dataclass(frozen=True, slots=True)
class SnapshotHead:
    """A snapshot without its tables: enough to decide whether it can be used."""

    id: int
    name: str
    owner: str
    mapping_id: int
    mapping_version: int
    state: SnapshotState
    error: str | None
    size_bytes: int | None
    is_being_deleted: bool
    created_at: datetime


@dataclass(frozen=True, slots=True)
class MappingHead:
    """A mapping without its versions."""

    id: int
    name: str
    owner: str


async def create_snapshot(conn: Conn, new: NewSnapshot, *, owner: str) -> int:
    """Create a snapshot and its export jobs in the caller's transaction; its id. `MissingRole` if the engine needs a role."""
    here = exports_here()
    head = await store.get(conn, new.mapping_id)
    if new.role is None and head.engine in here.engines.names and here.engines.capabilities(head.engine).needs_role:
        raise MissingRole
    asked = create.NewSnapshot(
        mapping_id=new.mapping_id,
        root=here.root,
        max_seconds=float(await value_of(conn, MAX_DURATION)),
        mapping_version=new.mapping_version,
        name=new.name,
        description=new.description,
        role=new.role,
        runtime=new.runtime,
        ttl=new.ttl,
        inactivity_timeout=new.inactivity_timeout,
    )
    return await create.create(conn, asked, owner=owner)


async def read_snapshot(conn: Conn, snapshot_id: int) -> Snapshot:
    """A snapshot with its tables and files; `NotFound` if there is none."""
    found = await read.get(conn, snapshot_id)
    version = await store.get_version(conn, found.mapping_id, found.mapping_version)
    exports = {(one.job_type, one.entity_name): one for one in await read.exports_of(conn, snapshot_id)}
    tables = []
    for _, definition in version.graph.parts():
        kind: Literal["node", "edge"] = "node" if isinstance(definition, NodeDefinition) else "edge"
        export = exports[kind, definition.name]
        files = tuple(SnapshotFile(f"{export.location}/{f['path']}", f["rows"], f["bytes"]) for f in export.files or ())
        tables.append(
            SnapshotTable(
                type=kind,
                name=definition.name,
                definition=definition,
                status=export.status,
                rows=export.row_count,
                bytes=export.size_bytes,
                files=files,
                error=export.error_message,
            )
        )
    return Snapshot(
        id=found.id,
        owner=found.owner,
        name=found.name,
        mapping_id=found.mapping_id,
        mapping_version=found.mapping_version,
        state=SnapshotState(found.status),
        error=found.error_message,
        location=found.location,
        progress=read.progress_of(list(exports.values())).share,
        size_bytes=found.size_bytes,
        tables=tuple(tables),
        is_being_deleted=found.deleting_since is not None,
    )


HEADS = """
    SELECT id, name, owner, mapping_id, mapping_version, state, error, size_bytes, deleting_since IS NOT NULL, created_at
    FROM holdfast.snapshots WHERE
"""
HEADS_BY_ID = HEADS + " id = ANY (%(ids)s)"
HEADS_OF_MAPPING = HEADS + " mapping_id = %(mapping_id)s AND id > %(after)s ORDER BY id LIMIT %(limit)s"


async def read_heads(conn: Conn, snapshot_ids: Sequence[int]) -> dict[int, SnapshotHead]:
    """These snapshots by id, without their tables; those that do not exist are omitted."""
    found = await _heads(conn, HEADS_BY_ID, {"ids": list(snapshot_ids)})
    return {one.id: one for one in found}


async def snapshots_of_mapping(conn: Conn, mapping_id: int, *, after: int = 0, limit: int = 1000) -> list[SnapshotHead]:
    """Snapshots of a mapping, of all versions, by id. `NotFound` if there is no such mapping."""
    await store.get(conn, mapping_id)
    return await _heads(conn, HEADS_OF_MAPPING, {"mapping_id": mapping_id, "after": after, "limit": limit})


async def mapping_versions(conn: Conn, mapping_id: int) -> list[int]:
    """The versions of a mapping, oldest first. `NotFound` if there is no such mapping."""
    head = await store.get(conn, mapping_id)
    return list(range(1, head.current_version + 1))


MAPPING_HEADS = "SELECT id, name, owner FROM holdfast.mappings WHERE id = ANY (%(ids)s)"


async def read_mapping_heads(conn: Conn, mapping_ids: Sequence[int]) -> dict[int, MappingHead]:
    """These mappings by id; those that do not exist are omitted."""
    async with conn.cursor(row_factory=class_row(MappingHead)) as cursor:
        await cursor.execute(MAPPING_HEADS, {"ids": list(mapping_ids)})
        return {one.id: one for one in await cursor.fetchall()}


NEWEST_READY = HEADS + " owner = %(owner)s AND state = 'ready' AND deleting_since IS NULL ORDER BY id DESC LIMIT 1"


async def newest_ready(conn: Conn, owner: str) -> SnapshotHead | None:
    """The newest ready snapshot of an owner; None if there is none."""
    return next(iter(await _heads(conn, NEWEST_READY, {"owner": owner})), None)


async def _heads(conn: Conn, statement: str, parameters: dict[str, Any]) -> list[SnapshotHead]:
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(statement, parameters)
        found: list[tuple[Any, ...]] = await cursor.fetchall()
    return [replace(head, state=SnapshotState(head.state)) for head in (SnapshotHead(*row) for row in found)]


EXPORT_JOBS = "SELECT job_id FROM holdfast.exports WHERE snapshot_id = %(id)s ORDER BY job_id"


async def export_jobs(conn: Conn, snapshot_id: int) -> list[JobId]:
    """The jobs of a snapshot, so that another job can wait for their end."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(EXPORT_JOBS, {"id": snapshot_id})
        return [JobId(row[0]) for row in await cursor.fetchall()]


async def cancel_snapshot(conn: Conn, snapshot_id: int, *, actor: str, reason: str | None = None) -> int:
    """Stop the exports that have not ended; how many. `IllegalMove` if the snapshot has ended."""
    return await change.cancel(conn, snapshot_id, actor=actor, reason=reason)


async def delete_snapshot(conn: Conn, snapshot_id: int) -> int:
    """Delete a snapshot that has ended; the id of the job that removes its files. Refused while it is used."""
    return await change.delete(conn, snapshot_id)


async def retain(conn: Conn, snapshot_id: int, used_by: str) -> None:
    """Keep the snapshot until `release(…, used_by)`: neither users nor its TTL delete it. Call it in a transaction."""
    await uses.retain(conn, snapshot_id, used_by)


async def release(conn: Conn, snapshot_id: int, used_by: str) -> None:
    """End a use. The snapshot's inactivity timeout begins now."""
    await uses.release(conn, snapshot_id, used_by)


def count_termination_failure(resource_type: str) -> None:
    """Count an expired resource of the calling service that could not be deleted: one counter for all resource types."""
    measures.termination_failures.labels(resource_type).inc()


def store_options() -> StoreOptions:
    """The options to open the files of snapshots with, in this process (`holdfast.stores.opening.opened_store`)."""
    return exports_here().stores
