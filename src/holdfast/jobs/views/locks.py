"""List the locks that are held. Called by: the API."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import class_row

LIST_LOCKS = """
    SELECT h.key, count(*) AS holders, min(h.most) AS most, min(h.taken_at) AS taken_at,
        array_agg(h.job_id ORDER BY h.permit) AS jobs,
        (SELECT count(*) FROM (SELECT FROM holdfast.lock_wants w
                               WHERE w.key = h.key AND w.waiting LIMIT 1001) AS few) AS waiting
    FROM holdfast.lock_holders h
    WHERE h.key > %(after)s AND (%(key)s::text IS NULL OR h.key = %(key)s) GROUP BY h.key ORDER BY h.key LIMIT %(limit)s
"""


@dataclass(frozen=True, slots=True)
class LockView:
    """A lock that is held."""

    key: str
    holders: int
    most: int | None
    taken_at: datetime
    jobs: list[int]
    waiting: int  # jobs that wait for it, counted up to a cap


async def list_locks(
    conn: psycopg.AsyncConnection[Any], *, key: str | None = None, after: str = "", limit: int = 50
) -> list[LockView]:
    """Locks that are held, by key."""
    async with conn.cursor(row_factory=class_row(LockView)) as cursor:
        await cursor.execute(LIST_LOCKS, {"key": key, "after": after, "limit": limit})
        return await cursor.fetchall()
