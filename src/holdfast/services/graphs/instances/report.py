"""What graph servers report: activity, memory, progress. Every report names the instance and start, and changes nothing else.

The secret of a start is checked by the route before this is called. A report of an earlier start changes nothing.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import tuple_row
from psycopg.types.json import Jsonb

from holdfast.jobs.model import Json

Conn = psycopg.AsyncConnection[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a graph server says. Fields that are None are not changed."""

    start_token: str
    queries: int = 0  # since the last report
    last_activity_at: datetime | None = None
    pod_name: str | None = None  # as the graph server knows it; the name that its runtime gave comes first
    memory_bytes: int | None = None
    disk_bytes: int | None = None
    progress: Json = None


SECRET = "SELECT secret FROM holdfast.graph_secrets WHERE instance_id = %(id)s"  # noqa: S105 - a statement


async def is_secret_of(conn: Conn, instance_id: int, secret: str) -> bool:
    """Whether this is the secret of the current start of this instance. Takes the same time for every wrong one."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(SECRET, {"id": instance_id})
        row = await cursor.fetchone()
    return hmac.compare_digest((row[0] if row else "-" * 43).encode(), secret.encode()) and row is not None


# A clock of another machine is never believed beyond our own; activity never goes back.
STORE = """
    UPDATE holdfast.graph_instances SET
        reported_at = clock_timestamp(), runtime_name = coalesce(runtime_name, %(pod_name)s),
        query_count = query_count + %(queries)s,
        last_activity_at = CASE WHEN %(queries)s > 0 OR %(at)s::timestamptz IS NOT NULL
            THEN greatest(last_activity_at, least(coalesce(%(at)s::timestamptz, clock_timestamp()), clock_timestamp()))
            ELSE last_activity_at END,
        memory_bytes = coalesce(%(memory_bytes)s, memory_bytes), disk_bytes = coalesce(%(disk_bytes)s, disk_bytes),
        progress = CASE WHEN state IN ('starting', 'resuming') THEN coalesce(%(progress)s, progress) ELSE progress END
    WHERE id = %(id)s AND start_token = %(start_token)s AND state IN ('starting', 'running', 'resuming')
"""


async def store(conn: Conn, instance_id: int, report: Report) -> bool:
    """Store a report. False: the instance has moved on; the graph server is not needed any more."""
    parameters = {
        "id": instance_id,
        "start_token": report.start_token,
        "queries": report.queries,
        "at": report.last_activity_at,
        "pod_name": report.pod_name,
        "memory_bytes": report.memory_bytes,
        "disk_bytes": report.disk_bytes,
        "progress": None if report.progress is None else Jsonb(report.progress),
    }
    return (await conn.execute(STORE, parameters)).rowcount == 1
