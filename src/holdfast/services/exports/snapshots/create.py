"""Create a snapshot: its row, its export jobs and their rows, in one transaction. Called by: the API.

The payload of each job is complete, so later changes of the mapping do not affect it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import psycopg
from psycopg.rows import tuple_row
from psycopg.types.json import Jsonb

from holdfast.jobs.pipelines import Pipeline
from holdfast.services.exports.export.payload import ExportSpec, Runtime
from holdfast.services.exports.mappings import store
from holdfast.services.exports.mappings.definitions import Definition, NodeDefinition
from holdfast.services.exports.mappings.store import MappingHead, MappingVersion

Conn = psycopg.AsyncConnection[Any]


@dataclass(frozen=True, slots=True)
class NewSnapshot:
    """A snapshot to create. Without a version it uses the current version of the mapping."""

    mapping_id: int
    root: str  # the folder or address for all snapshots
    max_seconds: float
    mapping_version: int | None = None
    name: str | None = None
    description: str | None = None
    role: str | None = None
    runtime: Runtime = "auto"
    ttl: str | None = None
    inactivity_timeout: str | None = None


NEXT_ID = "SELECT nextval(pg_get_serial_sequence('holdfast.snapshots', 'id'))"
CREATE = """
    INSERT INTO holdfast.snapshots (id, mapping_id, mapping_version, owner, name, description, engine, role, location,
        pipeline_id, ttl, inactivity_timeout)
    VALUES (%(id)s, %(mapping_id)s, %(version)s, %(owner)s, %(name)s, %(description)s, %(engine)s, %(role)s, %(location)s,
        %(pipeline_id)s, %(ttl)s, %(inactivity_timeout)s)
"""
ADD_EXPORT = """
    INSERT INTO holdfast.exports (job_id, snapshot_id, job_type, entity_name, position, sql, columns, location)
    VALUES (%(job_id)s, %(snapshot_id)s, %(job_type)s, %(entity_name)s, %(position)s, %(sql)s, %(columns)s, %(location)s)
"""


async def create(conn: Conn, new: NewSnapshot, *, owner: str) -> int:
    """Create a snapshot with one export job per node and edge; its id. Call it in a transaction."""
    head = await store.note_use(conn, new.mapping_id)
    version = await store.get_version(conn, head.id, new.mapping_version or head.current_version)
    async with conn.transaction(), conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(NEXT_ID)
        ((snapshot_id,),) = await cursor.fetchall()
        location = location_of_snapshot(new.root, owner, head.id, version.version, snapshot_id)
        pipeline = Pipeline(f"snapshot {snapshot_id} of {head.name}", str(uuid4()))
        parameters = {
            "id": snapshot_id,
            "mapping_id": head.id,
            "version": version.version,
            "owner": owner,
            "name": new.name or f"{head.name} v{version.version}",
            "description": new.description,
            "engine": head.engine,
            "role": new.role,
            "location": location,
            "pipeline_id": pipeline.id,
            "ttl": new.ttl or head.ttl,
            "inactivity_timeout": new.inactivity_timeout or head.inactivity_timeout,
        }
        await cursor.execute(CREATE, parameters)
        await _add_exports(conn, pipeline, specs_of(new, head, version, snapshot_id, location))
    return int(snapshot_id)


async def _add_exports(conn: Conn, pipeline: Pipeline, specs: list[ExportSpec]) -> None:
    for spec in specs:
        pipeline.add(spec.job())
    made = await pipeline.enqueue(conn)
    lines = [
        {
            "job_id": job.id,
            "snapshot_id": spec.snapshot_id,
            "job_type": spec.job_type,
            "entity_name": spec.entity_name,
            "position": position,
            "sql": spec.sql,
            "columns": Jsonb(spec.columns),
            "location": spec.location,
        }
        for position, (job, spec) in enumerate(zip(made, specs, strict=True))
    ]
    async with conn.cursor() as cursor:
        await cursor.executemany(ADD_EXPORT, lines)


def specs_of(new: NewSnapshot, head: MappingHead, version: MappingVersion, snapshot_id: int, location: str) -> list[ExportSpec]:
    """One export per node and edge, nodes first. Pure."""
    graph = version.graph
    nodes = graph.by_label()

    def spec(definition: Definition) -> ExportSpec:
        is_node = isinstance(definition, NodeDefinition)
        columns = [{"name": one.name, "type": one.type} for one in definition.columns(nodes)]
        return ExportSpec(
            job_type="node" if is_node else "edge",
            entity_name=definition.name,
            engine=head.engine,
            sql=definition.sql,
            columns=columns,
            location=f"{location}/{'nodes' if is_node else 'edges'}/{definition.name}",
            snapshot_id=snapshot_id,
            catalog=definition.catalog,
            schema=definition.schema_name,
            role=new.role,
            runtime=new.runtime,
            max_seconds=new.max_seconds,
        )

    return [spec(definition) for _, definition in graph.parts()]


def location_of_snapshot(root: str, owner: str, mapping_id: int, version: int, snapshot_id: int) -> str:
    """The location of a snapshot. Characters of the owner's name that paths must not contain are replaced. Pure."""
    folder = re.sub(r"[^A-Za-z0-9_.@-]+", "_", owner).strip(".") or "_"
    return f"{root.rstrip('/')}/{folder}/{mapping_id}/v{version}/{snapshot_id}"
