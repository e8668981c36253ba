"""Create an instance, with its snapshot if it comes from a mapping, and the job that starts it, in one transaction.

The start job waits for the export jobs of the snapshot and runs as soon as the last one has ended. The loop
`instance_orchestration` repairs what this misses.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
from psycopg.rows import tuple_row

from holdfast.errors import IllegalMove, NotFound, UsageError
from holdfast.jobs.enqueue import enqueue
from holdfast.services.exports import offers
from holdfast.services.exports.offers import NewSnapshot, SnapshotHead, SnapshotState
from holdfast.services.graphs.instances import admission, events, lifetimes
from holdfast.services.graphs.instances.jobs import start_job
from holdfast.services.graphs.instances.rows import set_secret
from holdfast.services.graphs.states import InstanceState

Conn = psycopg.AsyncConnection[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewInstance:
    """An instance to create, from a mapping or from a ready snapshot."""

    name: str
    engine: str
    default_memory_mb: int
    longest_start: timedelta
    mapping_id: int | None = None
    mapping_version: int | None = None
    snapshot_id: int | None = None
    description: str | None = None
    ttl: str | None = None
    inactivity_timeout: str | None = None
    memory_mb: int | None = None  # None: as much as its snapshot needs
    cpu: float = 1.0
    role: str | None = None  # with which the engine runs the queries of the snapshot


NEXT_ID = "SELECT nextval(pg_get_serial_sequence('holdfast.graph_instances', 'id'))"
CREATE = """
    INSERT INTO holdfast.graph_instances (id, owner, name, description, engine, mapping_id, mapping_version, snapshot_id,
        made_snapshot, state, job_id, start_token, memory_mb, cpu, memory_is_fixed, ttl, inactivity_timeout)
    VALUES (%(id)s, %(owner)s, %(name)s, %(description)s, %(engine)s, %(mapping_id)s, %(mapping_version)s, %(snapshot_id)s,
        %(made_snapshot)s, %(state)s, %(job_id)s, %(start_token)s, %(memory_mb)s, %(cpu)s, %(memory_is_fixed)s,
        %(ttl)s, %(inactivity_timeout)s)
"""


async def create(conn: Conn, new: NewInstance, *, owner: str) -> int:
    """Create an instance; its id. `LimitExceeded` if the owner or all owners have too many."""
    memory_mb = new.memory_mb or new.default_memory_mb
    async with conn.transaction():
        await _refuse_too_large(conn, memory_mb)
        await admission.refuse_hopeless(conn, owner, count=1, memory_mb=memory_mb)
        ttl, inactivity_timeout = await lifetimes.chosen(conn, new.ttl, new.inactivity_timeout)
        instance_id, start_token = await _next_id(conn), str(uuid4())
        snapshot = await _snapshot(conn, new, owner)
        await offers.retain(conn, snapshot.id, user_of(instance_id))
        is_ready = snapshot.state is SnapshotState.READY
        waits_for = [] if is_ready else await offers.export_jobs(conn, snapshot.id)
        job = await enqueue(conn, start_job(instance_id, start_token, longest=new.longest_start, after=waits_for))
        await admission.admit(conn, owner, count=1, memory_mb=memory_mb)
        parameters = {
            "id": instance_id,
            "owner": owner,
            "name": new.name,
            "description": new.description,
            "engine": new.engine,
            "mapping_id": snapshot.mapping_id,
            "mapping_version": snapshot.mapping_version,
            "snapshot_id": snapshot.id,
            "made_snapshot": new.snapshot_id is None,
            "state": InstanceState.STARTING if is_ready else InstanceState.WAITING_FOR_SNAPSHOT,
            "job_id": job.id,
            "start_token": start_token,
            "memory_mb": memory_mb,
            "cpu": new.cpu,
            "memory_is_fixed": new.memory_mb is not None,
            "ttl": ttl,
            "inactivity_timeout": inactivity_timeout,
        }
        await conn.execute(CREATE, parameters)
        await set_secret(conn, instance_id)
        await events.add(conn, instance_id, "created", {"snapshot_id": snapshot.id, "job_id": job.id, "memory_mb": memory_mb})
    return instance_id


async def _snapshot(conn: Conn, new: NewInstance, owner: str) -> SnapshotHead:
    """The snapshot to load: a new one of the mapping, or the given one, which must be ready."""
    if new.snapshot_id is None:
        assert new.mapping_id is not None, "the API refuses a request without both"
        asked = NewSnapshot(mapping_id=new.mapping_id, mapping_version=new.mapping_version, role=new.role)
        made = await offers.create_snapshot(conn, asked, owner=owner)
        return (await offers.read_heads(conn, [made]))[made]
    found = (await offers.read_heads(conn, [new.snapshot_id])).get(new.snapshot_id)
    if found is None:
        raise NotFound(f"there is no snapshot {new.snapshot_id}")
    if found.state is not SnapshotState.READY:
        raise IllegalMove(f"snapshot {found.id} is {found.state}; only a ready snapshot can be loaded")
    return found


async def _refuse_too_large(conn: Conn, memory_mb: int) -> None:
    most = await admission.largest_instance_mb(conn)
    if memory_mb > most:
        raise UsageError(f"an instance may have at most {most // 1024} GiB of memory, not {memory_mb / 1024:g}; ask for less")


async def _next_id(conn: Conn) -> int:
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(NEXT_ID)
        ((made,),) = await cursor.fetchall()
    return int(made)


def user_of(instance_id: int) -> str:
    """The name of an instance as a user of its snapshot."""
    return f"graphs/{instance_id}"
