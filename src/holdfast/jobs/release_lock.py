"""Release a lock whose holder has ended. Called by: the API."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.rows import tuple_row

from holdfast.errors import LockBusy, NotFound
from holdfast.jobs.locks import HOLD_KEYS, wake_waiters
from holdfast.jobs.model import JobId
from holdfast.jobs.states import ENDED

HOLDERS_NOW = """
    SELECT h.job_id, j.state FROM holdfast.lock_holders h JOIN holdfast.jobs j ON j.id = h.job_id
    WHERE h.key = %(key)s ORDER BY h.permit FOR UPDATE OF h
"""
RELEASE = """
    DELETE FROM holdfast.lock_holders h USING holdfast.jobs j
    WHERE h.key = %(key)s AND j.id = h.job_id AND j.state IN ('completed', 'failed', 'cancelled') RETURNING h.job_id
"""


async def release(conn: psycopg.AsyncConnection[Any], key: str) -> list[JobId]:
    """Release a lock from jobs that have ended without releasing it, which should never happen. `Refused` while a holder has
    not ended: the end of that job releases the lock, and two holders would be worse than waiting."""
    async with conn.transaction(), conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(HOLD_KEYS, {"keys": [key]})
        await cursor.execute(HOLDERS_NOW, {"key": key})
        holders = await cursor.fetchall()
        if not holders:
            raise NotFound(f"lock {key!r} is not held")
        alive = [job_id for job_id, state in holders if state not in ENDED]
        if alive:
            raise LockBusy(key, alive[0])
        await cursor.execute(RELEASE, {"key": key})
        freed = [JobId(row[0]) for row in await cursor.fetchall()]
        await wake_waiters(cursor, [key])
    return freed
