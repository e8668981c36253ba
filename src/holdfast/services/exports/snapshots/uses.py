"""Uses of snapshots by other services. A used snapshot is not deleted. Called by: `offers.py`, deletion, the loop `lifecycle`.

`retain` and every deletion lock the row of the snapshot, so a deletion either sees a use or the use is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from holdfast.errors import IllegalMove
from holdfast.services.exports.snapshots import read

Conn = psycopg.AsyncConnection[Any]

RETAIN = """
    INSERT INTO holdfast.snapshot_uses (snapshot_id, used_by)
    SELECT id, %(used_by)s FROM (
        SELECT id FROM holdfast.snapshots WHERE id = %(id)s AND deleting_since IS NULL FOR UPDATE) AS held
    ON CONFLICT (snapshot_id, used_by) DO UPDATE SET since = snapshot_uses.since
"""


async def retain(conn: Conn, snapshot_id: int, used_by: str) -> None:
    """Keep a snapshot until `release`. Idempotent for the same user. Call it in a transaction."""
    if not (await conn.execute(RETAIN, {"id": snapshot_id, "used_by": used_by})).rowcount:
        await read.get(conn, snapshot_id)
        raise IllegalMove(f"snapshot {snapshot_id} has expired and is being deleted; create a new snapshot")


RELEASE = "DELETE FROM holdfast.snapshot_uses WHERE snapshot_id = %(id)s AND used_by = %(used_by)s"
NOTE_USE = "UPDATE holdfast.snapshots SET last_used_at = clock_timestamp() WHERE id = %(id)s"


async def release(conn: Conn, snapshot_id: int, used_by: str) -> None:
    """End a use; the inactivity timeout of the snapshot starts now. No error if there was none."""
    if (await conn.execute(RELEASE, {"id": snapshot_id, "used_by": used_by})).rowcount:
        await conn.execute(NOTE_USE, {"id": snapshot_id})


COUNT = """
    SELECT snapshot_id, count(*) FROM holdfast.snapshot_uses WHERE snapshot_id = ANY (%(ids)s) GROUP BY snapshot_id
"""


async def counts(conn: Conn, snapshot_ids: Sequence[int]) -> dict[int, int]:
    """The number of users of each of these snapshots; snapshots without users are omitted."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(COUNT, {"ids": list(snapshot_ids)})
        return dict(await cursor.fetchall())


USERS = "SELECT used_by FROM holdfast.snapshot_uses WHERE snapshot_id = %(id)s ORDER BY used_by LIMIT 100"


async def users(conn: Conn, snapshot_id: int) -> list[str]:
    """The users of a snapshot."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(USERS, {"id": snapshot_id})
        return [row[0] for row in await cursor.fetchall()]
