"""How far an API was read, for each type and year. Written in the transaction that loads the rows."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.rows import tuple_row

Conn = psycopg.AsyncConnection[Any]

READ = "SELECT cursor FROM holdfast.ingestion_cursors WHERE det_id = %(det_id)s AND year = %(year)s"
MOVE = """
    INSERT INTO holdfast.ingestion_cursors AS c (det_id, year, cursor, pages)
    VALUES (%(det_id)s, %(year)s, %(cursor)s, %(pages)s)
    ON CONFLICT (det_id, year) DO UPDATE SET cursor = excluded.cursor, pages = c.pages + excluded.pages,
        updated_at = clock_timestamp()
"""


async def read(conn: Conn, det_id: int, year: int) -> str | None:
    """The cursor of the next page; None: from the beginning."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(READ, {"det_id": det_id, "year": year})
        row = await cursor.fetchone()
    return None if row is None else row[0]


async def move(conn: Conn, det_id: int, year: int, *, cursor: str | None, pages: int) -> None:
    """The next read begins here."""
    await conn.execute(MOVE, {"det_id": det_id, "year": year, "cursor": cursor, "pages": pages})
