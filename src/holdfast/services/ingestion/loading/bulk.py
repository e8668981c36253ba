"""Settings for statements that read and write whole tables, in a transaction that also runs the kernel's statements.

The kernel runs on connections that never scan a table sequentially. What follows in the transaction gets their settings back.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import psycopg
from psycopg.rows import tuple_row

Conn = psycopg.AsyncConnection[Any]
BULK: Final = {"enable_seqscan": "on", "plan_cache_mode": "auto", "work_mem": "128MB"}

READ = "SELECT name, current_setting(name) FROM unnest(%(names)s::text[]) AS given(name)"
SET = "SELECT set_config(name, value, true) FROM unnest(%(names)s::text[], %(values)s::text[]) AS given(name, value)"


@asynccontextmanager
async def bulk(conn: Conn) -> AsyncIterator[None]:
    """The settings, for the length of a block within a transaction."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(READ, {"names": list(BULK)})
        before: dict[str, str] = dict(await cursor.fetchall())
    await _set(conn, BULK)
    yield
    await _set(conn, before)  # not after an error: the transaction is rolled back, and they with it


async def _set(conn: Conn, settings: dict[str, str]) -> None:
    await conn.execute(SET, {"names": list(settings), "values": list(settings.values())})
