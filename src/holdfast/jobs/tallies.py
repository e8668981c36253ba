"""Counters that are kept in the database, for `/metrics`. Written by: triggers, and loops that count what failed.

A row is only ever inserted, in the transaction of what it counts, so writers never wait for each other; `sum_up` makes one
row of many.
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
    """Count something."""
    await conn.execute(ADD, {"name": name, "count": count})


async def read_tallies(conn: psycopg.AsyncConnection[Any]) -> dict[str, int]:
    """Every counter."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(READ)
        return dict(await cursor.fetchall())


async def sum_up(conn: psycopg.AsyncConnection[Any]) -> None:
    """Make one row of the many of each counter. Who reads meanwhile sees the rows of before."""
    await conn.execute(SUM_UP)
