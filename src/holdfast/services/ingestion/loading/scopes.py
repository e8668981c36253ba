"""What is due for each data entry type and year. A scope is one row; who changes its data locks the row first.

`changes` counts what changed, `recalculated` how much of it the emissions include, `aggregated` how much the statistics
include. The counters are compared, never times: a change that commits while a recalculation reads is not lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg.rows import tuple_row

Conn = psycopg.AsyncConnection[Any]

CHANGED = """
    INSERT INTO holdfast.emission_scopes AS s (det_id, year, changes, structure)
    SELECT det_id, %(year)s, 1, CASE WHEN %(structure)s THEN 1 ELSE 0 END
    FROM (SELECT unnest(%(det_ids)s::integer[]) AS det_id ORDER BY 1) AS given
    ON CONFLICT (det_id, year) DO UPDATE SET changes = s.changes + 1, structure = s.structure + excluded.structure,
        changed_at = clock_timestamp()
"""


async def changed(conn: Conn, det_ids: Sequence[int], year: int, *, structure: bool) -> None:
    """Note a change of entries or factors in the transaction that makes it. Locks the scopes until it ends.

    `structure`: entries or factors were added, removed or classified anew, so emissions have to be added or removed."""
    if det_ids:
        await conn.execute(CHANGED, {"det_ids": list(det_ids), "year": year, "structure": structure})


LOCK = """
    SELECT det_id, changes, structure > restructured FROM holdfast.emission_scopes
    WHERE det_id = ANY (%(det_ids)s) AND year = %(year)s ORDER BY det_id FOR UPDATE
"""


async def lock(conn: Conn, det_ids: Sequence[int], year: int) -> dict[int, tuple[int, bool]]:
    """Lock scopes until the transaction ends: their number of changes, and whether emissions have to be added or removed."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(LOCK, {"det_ids": list(det_ids), "year": year})
        return {det_id: (changes, restructure) for det_id, changes, restructure in await cursor.fetchall()}


RECALCULATED = """
    UPDATE holdfast.emission_scopes SET recalculated = changes, restructured = structure, recalculated_at = clock_timestamp()
    WHERE det_id = %(det_id)s AND year = %(year)s
"""
AGGREGATED = """
    UPDATE holdfast.emission_scopes SET aggregated = recalculated, aggregated_at = clock_timestamp()
    WHERE det_id = ANY (%(det_ids)s) AND year = %(year)s
"""


async def recalculated(conn: Conn, det_id: int, year: int) -> None:
    """The emissions include every change so far. The caller holds the lock."""
    await conn.execute(RECALCULATED, {"det_id": det_id, "year": year})


async def aggregated(conn: Conn, det_ids: Sequence[int], year: int) -> None:
    """The statistics include every emission so far. The caller holds the locks."""
    await conn.execute(AGGREGATED, {"det_ids": list(det_ids), "year": year})


DUE = """
    SELECT det_id FROM holdfast.emission_scopes
    WHERE year = %(year)s AND changes > recalculated AND (%(det_ids)s::integer[] IS NULL OR det_id = ANY (%(det_ids)s))
    ORDER BY det_id
"""


async def due(conn: Conn, year: int, det_ids: Sequence[int] | None = None) -> list[int]:
    """The types whose emissions do not include every change."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(DUE, {"year": year, "det_ids": None if det_ids is None else list(det_ids)})
        return [det_id for (det_id,) in await cursor.fetchall()]
