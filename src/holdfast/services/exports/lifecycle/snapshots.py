"""The rows of snapshots that can expire: read, mark before the files are removed, delete after. Called by: `delete.py`, the
loop."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import psycopg
from psycopg.rows import class_row, dict_row, tuple_row

from holdfast.api import audit
from holdfast.api.plane import Principal
from holdfast.services.exports.lifecycle.decide import Life, decide
from holdfast.services.exports.mappings import store
from holdfast.services.exports.snapshots import uses
from holdfast.services.exports.snapshots.change import hold_jobs

Conn = psycopg.AsyncConnection[Any]
NAME: Final = "snapshot"
SYSTEM: Final = Principal("loop:lifecycle", "loop", None)

LIVES = """
    SELECT id, owner, name, created_at, greatest(created_at, finished_at, last_used_at) AS used_at, ttl, inactivity_timeout,
           clock_timestamp() AS now, state IN ('pending', 'creating') AS is_open, deleting_since
    FROM holdfast.snapshots
"""
PAGE = (
    LIVES
    + """ WHERE id > %(after)s AND (ttl IS NOT NULL OR inactivity_timeout IS NOT NULL OR deleting_since IS NOT NULL)
    ORDER BY id LIMIT %(limit)s"""
)


async def read_page(conn: Conn, *, after: int, limit: int) -> list[Life]:
    """Snapshots with a TTL or inactivity timeout, ordered by id."""
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(PAGE, {"after": after, "limit": limit})
        found = await cursor.fetchall()
    counts = await uses.counts(conn, [row["id"] for row in found])
    return [Life(**row, users=counts.get(row["id"], 0)) for row in found]


COUNT = "SELECT count(*) FROM holdfast.snapshots"


async def count(conn: Conn) -> int:
    """How many snapshots there are."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(COUNT)
        ((found,),) = await cursor.fetchall()
    return int(found)


HOLD = LIVES + " WHERE id = %(id)s FOR UPDATE"
MARK = """
    UPDATE holdfast.snapshots SET deleting_since = coalesce(deleting_since, clock_timestamp()), updated_at = clock_timestamp()
    WHERE id = %(id)s RETURNING location
"""


async def mark(conn: Conn, snapshot_id: int) -> str | None:
    """Lock the row, decide again and mark it; the location of its files. None if it is not to be deleted.

    Its jobs are locked first, as in every change of a snapshot, so that no retry starts between the decision and the mark.
    """
    await hold_jobs(conn, snapshot_id)
    async with conn.cursor(row_factory=class_row(Life)) as cursor:
        await cursor.execute(HOLD, {"id": snapshot_id})
        life = await cursor.fetchone()
    if life is None:
        return None
    life = replace(life, users=(await uses.counts(conn, [snapshot_id])).get(snapshot_id, 0))
    verdict = decide(life)
    if verdict is None or verdict.blocked_by:
        return None
    async with conn.cursor(row_factory=tuple_row) as rows:
        await rows.execute(MARK, {"id": snapshot_id})
        ((location,),) = await rows.fetchall()
    return str(location)


REMOVE = """
    DELETE FROM holdfast.snapshots WHERE id = %(id)s AND deleting_since IS NOT NULL
    RETURNING owner, name, mapping_id, ttl, inactivity_timeout
"""


async def remove_row(conn: Conn, snapshot_id: int) -> bool:
    """Delete the row of a snapshot whose files were removed; False if a user has already deleted it."""
    await hold_jobs(conn, snapshot_id)
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(REMOVE, {"id": snapshot_id})
        gone = await cursor.fetchone()
    if gone is None:
        return False
    await store.note_use(conn, gone["mapping_id"])
    await audit.write(conn, SYSTEM, "snapshots.change", f"snapshot/{snapshot_id}", reason="it has expired", detail=gone)
    return True
