"""The rows of mappings that can expire: read them, and delete those without snapshots. Called by: `delete.py`, the loop."""

from __future__ import annotations

from typing import Any, Final

import psycopg
from psycopg.rows import class_row, tuple_row

from holdfast.api import audit
from holdfast.errors import NotFound
from holdfast.services.exports.lifecycle.decide import Life, decide
from holdfast.services.exports.lifecycle.snapshots import SYSTEM
from holdfast.services.exports.mappings import store

Conn = psycopg.AsyncConnection[Any]
NAME: Final = "mapping"

LIVES = """
    SELECT m.id, m.owner, m.name, m.created_at, greatest(m.created_at, m.updated_at, m.last_used_at) AS used_at, m.ttl,
           m.inactivity_timeout, clock_timestamp() AS now,
           (SELECT count(*) FROM holdfast.snapshots s WHERE s.mapping_id = m.id)::int AS users
    FROM holdfast.mappings m
"""
PAGE = (
    LIVES
    + """ WHERE m.id > %(after)s AND (m.ttl IS NOT NULL OR m.inactivity_timeout IS NOT NULL)
    ORDER BY m.id LIMIT %(limit)s"""
)


async def read_page(conn: Conn, *, after: int, limit: int) -> list[Life]:
    """Mappings with a TTL or inactivity timeout, ordered by id, with the number of their snapshots."""
    async with conn.cursor(row_factory=class_row(Life)) as cursor:
        await cursor.execute(PAGE, {"after": after, "limit": limit})
        return await cursor.fetchall()


COUNT = "SELECT count(*) FROM holdfast.mappings"


async def count(conn: Conn) -> int:
    """How many mappings there are."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(COUNT)
        ((found,),) = await cursor.fetchall()
    return int(found)


READ = LIVES + " WHERE m.id = %(id)s"


async def remove_row(conn: Conn, mapping_id: int) -> bool:
    """Delete an expired mapping with its versions; False if it was deleted, is in use, or has not expired any more.

    The row is locked before it is read. Creating a snapshot locks the same row, so a new snapshot is either counted here
    or finds that its mapping was deleted. Call it in a transaction.
    """
    try:
        await store.get(conn, mapping_id, hold=True)
    except NotFound:
        return False
    async with conn.cursor(row_factory=class_row(Life)) as cursor:
        await cursor.execute(READ, {"id": mapping_id})
        life = await cursor.fetchone()
    verdict = None if life is None else decide(life)
    if life is None or verdict is None or verdict.blocked_by:
        return False
    await store.delete(conn, mapping_id)
    detail = {"owner": life.owner, "name": life.name, "ttl": life.ttl, "inactivity_timeout": life.inactivity_timeout}
    await audit.write(conn, SYSTEM, "mappings.change", f"mapping/{mapping_id}", reason="it has expired", detail=detail)
    return True
