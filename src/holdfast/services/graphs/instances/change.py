"""Change what an instance is called and how long it lives. Called by: the API."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from holdfast.errors import IllegalMove
from holdfast.services.graphs.durations import parse, written
from holdfast.services.graphs.instances import lifetimes
from holdfast.services.graphs.instances.rows import NoInstance, get

Conn = psycopg.AsyncConnection[Any]

RENAME = """
    UPDATE holdfast.graph_instances SET name = coalesce(%(name)s, name), description = coalesce(%(description)s, description)
    WHERE id = %(id)s AND state <> 'stopping'
"""


async def rename(conn: Conn, instance_id: int, *, name: str | None, description: str | None) -> None:
    """Set the name and the description; None keeps it."""
    await _changed(conn, RENAME, {"id": instance_id, "name": name, "description": description})


SET_LIFETIME = """
    UPDATE holdfast.graph_instances SET ttl = %(ttl)s, inactivity_timeout = %(inactivity_timeout)s
    WHERE id = %(id)s AND state <> 'stopping'
"""


async def set_lifetime(conn: Conn, instance_id: int, ttl: str | None, inactivity_timeout: str | None) -> None:
    """Set the TTL, counted from its creation, and the inactivity timeout; None: the default."""
    ttl, inactivity_timeout = await lifetimes.chosen(conn, ttl, inactivity_timeout)
    await _changed(conn, SET_LIFETIME, {"id": instance_id, "ttl": ttl, "inactivity_timeout": inactivity_timeout})


EXTEND = """
    UPDATE holdfast.graph_instances SET ttl = %(ttl)s, last_activity_at = clock_timestamp()
    WHERE id = %(id)s AND state <> 'stopping'
"""
HOLD_NOW = "SELECT clock_timestamp() FROM holdfast.graph_instances WHERE id = %(id)s FOR UPDATE"


async def extend(conn: Conn, instance_id: int, by: str) -> timedelta:
    """Let an instance live so much longer, up to the maximum TTL; its new TTL. Counts as activity."""
    async with conn.transaction():
        async with conn.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(HOLD_NOW, {"id": instance_id})
            row = await cursor.fetchone()
        if row is None:
            raise NoInstance(instance_id)
        held = await get(conn, instance_id)
        length = lifetimes.extended(held.created_at, held.expires_at, row[0], parse(by))
        await lifetimes.refuse_too_long(conn, length)
        await _changed(conn, EXTEND, {"id": instance_id, "ttl": written(length)})
    return length


async def _changed(conn: Conn, statement: str, parameters: dict[str, Any]) -> None:
    if not (await conn.execute(statement, parameters)).rowcount:
        await get(conn, parameters["id"])
        raise IllegalMove(f"graph instance {parameters['id']} is being deleted")


# At most every ten seconds, so that most queries do not write.
NOTE_ACTIVITY = """
    UPDATE holdfast.graph_instances SET last_activity_at = clock_timestamp()
    WHERE id = %(id)s AND state = 'running' AND last_activity_at < clock_timestamp() - interval '10 seconds'
"""


async def note_activity(conn: Conn, instance_id: int) -> None:
    """Restart the inactivity timeout, because somebody uses the instance."""
    await conn.execute(NOTE_ACTIVITY, {"id": instance_id})
