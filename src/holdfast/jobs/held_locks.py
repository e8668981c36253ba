"""Locks as people see them: who holds which, and the release of one whose holder has ended. Called by: the API, the CLI."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import class_row, tuple_row

from holdfast.errors import LockBusy, NotFound
from holdfast.jobs.locks import HOLD_KEYS, wake_waiters
from holdfast.jobs.model import JobId
from holdfast.jobs.states import ENDED

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


HOLDERS_NOW = """
    SELECT h.job_id, j.state FROM holdfast.lock_holders h JOIN holdfast.jobs j ON j.id = h.job_id
    WHERE h.key = %(key)s ORDER BY h.permit FOR UPDATE OF h
"""
RELEASE = """
    DELETE FROM holdfast.lock_holders h USING holdfast.jobs j
    WHERE h.key = %(key)s AND j.id = h.job_id AND j.state IN ('completed', 'failed', 'cancelled') RETURNING h.job_id
"""


async def release(conn: psycopg.AsyncConnection[Any], key: str) -> list[JobId]:
    """Free the places of jobs that have ended without giving them back, which should never be. `Refused` while a holder
    lives: its end is what releases the lock, and two owners would be worse than a wait."""
    async with conn.transaction(), conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(HOLD_KEYS, {"keys": [key]})
        await cursor.execute(HOLDERS_NOW, {"key": key})
        holders = await cursor.fetchall()
        if not holders:
            raise NotFound(f"nobody holds lock {key!r}")
        alive = [job_id for job_id, state in holders if state not in ENDED]
        if alive:
            raise LockBusy(key, alive[0])
        await cursor.execute(RELEASE, {"key": key})
        freed = [JobId(row[0]) for row in await cursor.fetchall()]
        await wake_waiters(cursor, [key])
    return freed
