"""An instance as data: read it, or lock its row. Called by: every operation on instances.

The lock order is the same everywhere: first the row of the job that moves the instance, then the row of the instance, then the
lock on the limits, because the end of a job locks its row before its follower changes the instance.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from secrets import token_urlsafe
from typing import Any, Literal, overload

import psycopg
from psycopg.rows import class_row, tuple_row

from holdfast.errors import NotFound
from holdfast.jobs.model import Json
from holdfast.services.graphs.durations import end_of
from holdfast.services.graphs.states import InstanceState

Conn = psycopg.AsyncConnection[Any]


@dataclass(frozen=True, slots=True)
class Instance:
    """A graph instance. `secret` is never shown."""

    id: int
    owner: str
    name: str
    description: str | None
    status: InstanceState
    engine: str
    mapping_id: int
    mapping_version: int
    snapshot_id: int
    made_snapshot: bool
    job_id: int
    start_token: str
    starts: int
    secret: str = field(repr=False)
    address: str | None
    runtime_name: str | None
    memory_mb: int
    cpu: float
    memory_is_fixed: bool
    wanted_memory_mb: int | None
    wanted_cpu: float | None
    memory_bytes: int | None
    disk_bytes: int | None
    reported_at: datetime | None
    progress: Json
    error_code: str | None
    error: str | None
    ttl: str | None
    inactivity_timeout: str | None
    created_at: datetime
    updated_at: datetime
    state_since: datetime
    started_at: datetime | None
    suspended_at: datetime | None
    last_activity_at: datetime | None
    resume_count: int
    query_count: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "status", InstanceState(self.status))

    @property
    def expires_at(self) -> datetime | None:
        """By its TTL."""
        return end_of(self.created_at, self.ttl)

    @property
    def inactive_at(self) -> datetime | None:
        """By its inactivity timeout, if nobody queries it before."""
        return end_of(self.last_activity_at or self.created_at, self.inactivity_timeout)


COLUMNS = """id, owner, name, description, state AS status, engine, mapping_id, mapping_version, snapshot_id, made_snapshot,
    job_id, start_token::text, starts, (SELECT secret FROM holdfast.graph_secrets WHERE instance_id = id) AS secret,
    address, runtime_name, memory_mb, cpu, memory_is_fixed, wanted_memory_mb, wanted_cpu, memory_bytes, disk_bytes, reported_at,
    progress, error_code, error, ttl, inactivity_timeout, created_at, updated_at, state_since, started_at, suspended_at,
    last_activity_at, resume_count, query_count"""
READ = f"SELECT {COLUMNS} FROM holdfast.graph_instances WHERE id = %(id)s"
HOLD = READ + " FOR UPDATE"


class NoInstance(NotFound):
    """There is no such instance."""

    def __init__(self, instance_id: int) -> None:
        super().__init__(f"there is no graph instance {instance_id}")


async def find(conn: Conn, instance_id: int) -> Instance | None:
    """An instance, or None."""
    async with conn.cursor(row_factory=class_row(Instance)) as cursor:
        await cursor.execute(READ, {"id": instance_id})
        return await cursor.fetchone()


async def get(conn: Conn, instance_id: int) -> Instance:
    """An instance, or `NoInstance`."""
    found = await find(conn, instance_id)
    if found is None:
        raise NoInstance(instance_id)
    return found


HOLD_JOB = "SELECT FROM holdfast.jobs WHERE id = %(job_id)s FOR UPDATE"


@overload
async def hold(conn: Conn, instance_id: int) -> Instance: ...
@overload
async def hold(conn: Conn, instance_id: int, *, or_none: Literal[True]) -> Instance | None: ...
async def hold(conn: Conn, instance_id: int, *, or_none: bool = False) -> Instance | None:
    """Lock an instance and the job that moves it until the transaction ends. `NoInstance` if there is none."""
    while True:
        seen = await find(conn, instance_id)
        if seen is not None:
            await conn.execute(HOLD_JOB, {"job_id": seen.job_id})
        async with conn.cursor(row_factory=class_row(Instance)) as cursor:
            await cursor.execute(HOLD, {"id": instance_id})
            held = await cursor.fetchone()
        if held is None and not or_none:
            raise NoInstance(instance_id)
        if held is None or (seen is not None and held.job_id == seen.job_id):
            return held  # otherwise another job moves it since we looked


RENEW = """
    INSERT INTO holdfast.graph_secrets (instance_id, secret) VALUES (%(id)s, %(secret)s)
    ON CONFLICT (instance_id) DO UPDATE SET secret = excluded.secret
"""


async def set_secret(conn: Conn, instance_id: int) -> None:
    """A new secret for the graph server of a new start."""
    await conn.execute(RENEW, {"id": instance_id, "secret": token_urlsafe(32)})


async def owner_of(conn: Conn, instance_id: int) -> str:
    """The owner of an instance, or `NoInstance`."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute("SELECT owner FROM holdfast.graph_instances WHERE id = %(id)s", {"id": instance_id})
        row = await cursor.fetchone()
    if row is None:
        raise NoInstance(instance_id)
    return str(row[0])
