"""Jobs that are held by a worker without a row in `workers`: lost in an asynchronous failover, or deleted by hand.

Called by: `rescue.py` and `renew.py`. Everything that finds dead workers starts from their rows, so a missing row is
replaced by one that stands for it. Its lease is the time in which the worker, if it lives, can register again; if it does
not, the lease ends and the rescue finds the row like that of any other dead worker. The row counts as stopped: the worker's own
beat does not accept it, and registers.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.rows import tuple_row

from holdfast.jobs.model import WorkerId

# One step of the index `jobs_held` per worker, not per job and never the table: each step asks for the next larger worker_id.
UNREGISTERED = """
    WITH RECURSIVE holders (id) AS (
        (SELECT worker_id FROM holdfast.jobs WHERE worker_id IS NOT NULL ORDER BY worker_id LIMIT 1)
        UNION ALL
        SELECT (SELECT j.worker_id FROM holdfast.jobs j WHERE j.worker_id > holders.id ORDER BY j.worker_id LIMIT 1)
        FROM holders WHERE holders.id IS NOT NULL
    )
    SELECT holders.id FROM holders
    WHERE holders.id IS NOT NULL AND NOT EXISTS (SELECT FROM holdfast.workers w WHERE w.id = holders.id)
"""

# How long a lease is, the living workers say; 30 s, the default, if none lives. It is counted from the newest claim, which
# shows that the worker lived. A third of it is left in any case: a living worker beats several times in a lease.
REGISTER_MISSING = f"""
    INSERT INTO holdfast.workers (id, name, host, pid, version, concurrency, beat_at, lease_until, stopped_at)
    SELECT missing.id, 'unregistered ' || left(missing.id::text, 8), 'unknown', 0, 'unknown', 1, lived.at,
           greatest(lived.at + usual.lease, clock_timestamp() + usual.lease / 3), clock_timestamp()
    FROM ({UNREGISTERED}) AS missing
    CROSS JOIN (SELECT coalesce(max(w.lease_until - w.beat_at), interval '30 seconds') AS lease FROM holdfast.workers w
                WHERE w.stopped_at IS NULL AND w.lease_until > clock_timestamp()) AS usual
    CROSS JOIN LATERAL (SELECT max(j.claimed_at) AS at FROM holdfast.jobs j WHERE j.worker_id = missing.id) AS lived
    WHERE lived.at IS NOT NULL
    ON CONFLICT (id) DO NOTHING
    RETURNING id::text
"""


async def register_missing(conn: psycopg.AsyncConnection[Any]) -> list[WorkerId]:
    """Make the rows of workers that hold jobs and have none; the ids of those workers."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(REGISTER_MISSING)
        return [WorkerId(row[0]) for row in await cursor.fetchall()]
