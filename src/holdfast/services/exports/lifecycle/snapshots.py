"""Snapshots that have expired: marked in one transaction, their files removed, their row removed in another.

The files go first and the row last. Whatever stops it in between (a crash, a store that fails), the row stays, marked, and the
next pass goes on with it; removing files twice does no harm. With the row first, the only record of the files would be gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import psycopg
from psycopg.rows import class_row, dict_row, tuple_row

from holdfast.api import audit
from holdfast.api.plane import Principal
from holdfast.crashpoints import crashpoint
from holdfast.errors import UsageError
from holdfast.schedule.context import Pass
from holdfast.services.exports import measures
from holdfast.services.exports.export.remove import remove_place
from holdfast.services.exports.lifecycle.decide import Life, decide
from holdfast.services.exports.mappings import store
from holdfast.services.exports.snapshots.steer import hold_jobs
from holdfast.services.exports.stores.paths import location_of
from holdfast.telemetry.log import log

Conn = psycopg.AsyncConnection[Any]
NAME: Final = "snapshot"
SYSTEM: Final = Principal("loop:lifecycle", "loop", None)
LONGEST_REMOVAL: Final = 300.0  # seconds for the files of one snapshot; the next pass goes on with the rest

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
    """Snapshots with a limit to their life, by their ids."""
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(PAGE, {"after": after, "limit": limit})
        found = await cursor.fetchall()
    counts = await instance_counts(conn, [row["id"] for row in found])
    return [Life(**row, users=counts.get(row["id"], 0)) for row in found]


async def instance_counts(conn: Conn, snapshot_ids: Sequence[int]) -> dict[int, int]:
    """How many graph instances use each of these snapshots; one that is in use is not deleted.

    Graph instances plug in here. Whoever starts one must hold the snapshot's row and refuse one with `deleting_since`.
    """
    return {}


COUNT = "SELECT count(*) FROM holdfast.snapshots"


async def count(conn: Conn) -> int:
    """How many snapshots there are."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(COUNT)
        ((found,),) = await cursor.fetchall()
    return int(found)


async def delete(ctx: Pass, snapshot_id: int) -> bool:
    """Delete one that has expired; False if by now it has not, or is gone."""
    async with ctx.transaction() as conn:
        location = await mark(conn, snapshot_id)
    if location is None:
        return False
    crashpoint("lifecycle.marked")
    ctx.check()
    await _remove_files(snapshot_id, location)
    crashpoint("lifecycle.files_removed")
    async with ctx.transaction() as conn:
        return await remove_row(conn, snapshot_id)


HOLD = LIVES + " WHERE id = %(id)s FOR UPDATE"
MARK = """
    UPDATE holdfast.snapshots SET deleting_since = coalesce(deleting_since, clock_timestamp()), updated_at = clock_timestamp()
    WHERE id = %(id)s RETURNING location
"""


async def mark(conn: Conn, snapshot_id: int) -> str | None:
    """Decide once more with the row held, and mark it; where its files are. None: it is not to be deleted.

    Its jobs are held first, as in every act on a snapshot, so that no retry begins between the decision and the mark.
    """
    await hold_jobs(conn, snapshot_id)
    async with conn.cursor(row_factory=class_row(Life)) as cursor:
        await cursor.execute(HOLD, {"id": snapshot_id})
        life = await cursor.fetchone()
    if life is None:
        return None
    users = (await instance_counts(conn, [snapshot_id])).get(snapshot_id, 0)
    verdict = decide(life)
    if verdict is None or verdict.blocked_by or users:
        return None
    async with conn.cursor(row_factory=tuple_row) as rows:
        await rows.execute(MARK, {"id": snapshot_id})
        ((location,),) = await rows.fetchall()
    return str(location)


async def _remove_files(snapshot_id: int, location: str) -> None:
    """Remove everything at the place of a snapshot. A place that is not the snapshot's own folder is left alone."""
    try:
        if location_of(location).prefix.rpartition("/")[2] != str(snapshot_id):
            raise UsageError(f"{location} is not the folder of snapshot {snapshot_id}; correct its location")
        async with asyncio.timeout(LONGEST_REMOVAL):
            await remove_place(location)
    except Exception as error:
        measures.cleanup_failures.inc()
        log.error("snapshot_cleanup_failed", snapshot_id=snapshot_id, location=location, error=str(error) or repr(error))
        raise


REMOVE = """
    DELETE FROM holdfast.snapshots WHERE id = %(id)s AND deleting_since IS NOT NULL
    RETURNING owner, name, mapping_id, ttl, inactivity_timeout
"""


async def remove_row(conn: Conn, snapshot_id: int) -> bool:
    """Remove the row of a snapshot whose files are gone; False if a person was first."""
    await hold_jobs(conn, snapshot_id)
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(REMOVE, {"id": snapshot_id})
        gone = await cursor.fetchone()
    if gone is None:
        return False
    await store.note_use(conn, gone["mapping_id"])
    await audit.write(conn, SYSTEM, "snapshots.change", f"snapshot/{snapshot_id}", reason="it has expired", detail=gone)
    return True
