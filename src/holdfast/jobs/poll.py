"""Ask an external engine how its work goes: submitted → running, as a fenced claim like any other.

Called by: the worker's loop. The moment of the next look is on the job's row, so it survives any crash. A poll that
ends without news goes back to `submitted` (`outcome.py`), with the next of the delays that stand there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from holdfast.jobs import locks
from holdfast.jobs.claim import SET_CLAIMED
from holdfast.jobs.model import CLAIM_COLUMNS, LOCKS, Claim, WorkerId

# The same claim as to run (claim.py), from the other side; `(SELECT …)` makes the clock one value for an index condition.
# What the attempt that submitted made outside goes over to the one that asks: the fence token on the row is still that of
# the last attempt, so what attempts before it left behind stays theirs.
CLAIM_TO_POLL = f"""
    WITH picked AS MATERIALIZED (
        SELECT id, fence_token FROM holdfast.jobs
        WHERE state = 'submitted' AND next_poll_at <= (SELECT clock_timestamp())
          AND kind = ANY (%(kinds)s) AND queue = ANY (%(queues)s)
        ORDER BY next_poll_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
    ), claimed AS (
        UPDATE holdfast.jobs j SET {SET_CLAIMED}
        FROM picked WHERE j.id = picked.id
        RETURNING {CLAIM_COLUMNS}
    ), taken_over AS (
        UPDATE holdfast.effects e SET attempt_id = c.attempt_id::uuid, fence_token = c.fence_token
        FROM claimed c JOIN picked p ON p.id = c.id
        WHERE c.ties & 8 <> 0 AND e.job_id = c.id AND e.fence_token = p.fence_token AND e.state IN ('planned', 'made')
    )
    SELECT * FROM claimed
"""


async def claim_to_poll(
    conn: psycopg.AsyncConnection[Any],
    worker_id: WorkerId,
    *,
    kinds: Sequence[str],
    queues: Sequence[str] = ("default",),
    limit: int = 50,
) -> list[Claim]:
    """Claim up to `limit` jobs whose engine is due to be asked. A job that has ended is never among them."""
    parameters = {"worker_id": worker_id, "kinds": list(kinds), "queues": list(queues), "limit": limit}
    async with conn.transaction(), conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(CLAIM_TO_POLL, parameters)
        claims = [Claim._make(row) for row in await cursor.fetchall()]
        await locks.take(cursor, locks.Admission(), {c.id: c.attempt_id for c in claims if c.ties & LOCKS})
    return claims
