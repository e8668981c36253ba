"""Counters in the database, for `/metrics`. Written by: triggers, and loops that count failures.

Rows are only inserted, in the transaction of the counted event, so writers never wait for each other; `sum_up` merges the rows
of each counter into one.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.rows import tuple_row

ADD = "INSERT INTO holdfast.tallies (name, count) VALUES (%(name)s, %(count)s)"
READ = "SELECT name, sum(count)::bigint FROM holdfast.tallies GROUP BY name"
SUM_UP = """
    WITH gone AS (DELETE FROM holdfast.tallies RETURNING name, count)
    INSERT INTO holdfast.tallies (name, count) SELECT name, sum(count) FROM gone GROUP BY name
"""


async def add_tally(conn: psycopg.AsyncConnection[Any], name: str, count: int = 1) -> None:
    """Add to a counter."""
    await conn.execute(ADD, {"name": name, "count": count})


async def read_tallies(conn: psycopg.AsyncConnection[Any]) -> dict[str, int]:
    """The value of every counter."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(READ)
        return dict(await cursor.fetchall())


async def sum_up(conn: psycopg.AsyncConnection[Any]) -> None:
    """Merge the rows of each counter into one. Concurrent readers see the old rows until the commit."""
    await conn.execute(SUM_UP)
