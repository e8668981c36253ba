"""Events of instances: what has happened to one, for people and for the resource monitor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import psycopg
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

Conn = psycopg.AsyncConnection[Any]
EventType = Literal[
    "created", "started", "suspended", "resumed", "failed", "restarted", "memory_upgraded", "cpu_updated", "oom_recovered",
    "resize_failed",
]  # fmt: skip

ADD = """
    INSERT INTO holdfast.graph_events (instance_id, event_type, details) VALUES (%(instance_id)s, %(event_type)s, %(details)s)
"""


async def add(conn: Conn, instance_id: int, event_type: EventType, details: Mapping[str, Any] | None = None) -> None:
    """Add an event, in the transaction of what it describes."""
    parameters = {"instance_id": instance_id, "event_type": event_type, "details": Jsonb(dict(details or {}))}
    await conn.execute(ADD, parameters)


@dataclass(frozen=True, slots=True)
class InstanceEvent:
    """One event."""

    id: int
    instance_id: int
    event_type: str
    details: dict[str, Any]
    created_at: datetime


PAGE = """
    SELECT id, instance_id, event_type, details, created_at FROM holdfast.graph_events
    WHERE instance_id = %(instance_id)s AND (%(before)s::bigint IS NULL OR id < %(before)s) ORDER BY id DESC LIMIT %(limit)s
"""


async def listed(conn: Conn, instance_id: int, *, limit: int, before: int | None = None) -> list[InstanceEvent]:
    """Events of an instance, newest first; one more than `limit` if there are more."""
    async with conn.cursor(row_factory=class_row(InstanceEvent)) as cursor:
        await cursor.execute(PAGE, {"instance_id": instance_id, "before": before, "limit": limit + 1})
        return await cursor.fetchall()
