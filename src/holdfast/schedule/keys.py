"""Keys of a reconciler that failed: how often, and when each may be tried again. Called by: `reconcile.py`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import psycopg
from psycopg.rows import tuple_row

READ_FAILED = """
    SELECT key, failures, retry_at > clock_timestamp() FROM holdfast.loop_keys WHERE name = %(name)s AND key = ANY (%(keys)s)
"""
NOTE_FAILED = """
    INSERT INTO holdfast.loop_keys (name, key, failures, retry_at, error)
    VALUES (%(name)s, %(key)s, 1, clock_timestamp() + %(delay)s, %(error)s)
    ON CONFLICT (name, key) DO UPDATE
    SET failures = loop_keys.failures + 1, retry_at = excluded.retry_at, error = excluded.error
"""
FORGET_FAILED = "DELETE FROM holdfast.loop_keys WHERE name = %(name)s AND key = %(key)s"


async def read_failed(conn: psycopg.AsyncConnection[Any], name: str, keys: Sequence[str]) -> dict[str, tuple[int, bool]]:
    """The keys that failed last time: how often, and whether it is too early to retry."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(READ_FAILED, {"name": name, "keys": list(keys)})
        return {key: (failures, waits) for key, failures, waits in await cursor.fetchall()}


async def note_failed(conn: psycopg.AsyncConnection[Any], name: str, key: str, error: str, delay: timedelta) -> None:
    """The key failed; retry it after `delay` at the earliest."""
    await conn.execute(NOTE_FAILED, {"name": name, "key": key, "error": error, "delay": delay})


async def forget_failed(conn: psycopg.AsyncConnection[Any], name: str, key: str) -> None:
    """The key succeeded: delete its failures."""
    await conn.execute(FORGET_FAILED, {"name": name, "key": key})
