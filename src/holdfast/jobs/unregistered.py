"""Jobs that are held by a worker without a row in `workers`: lost in an asynchronous failover, or deleted by hand.

Called by: `rescue.py` and `renew.py`. Dead workers are found by their rows, so a missing row is replaced by a placeholder. A
worker that is alive can register again until the placeholder's lease expires; after that, the rescue treats the row as any
other dead worker. The placeholder counts as stopped, so the worker's next heartbeat fails and it registers again.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.rows import tuple_row

from holdfast.jobs.model import WorkerId

# A skip scan of the index `jobs_held`: one index lookup per worker (the next larger worker_id), not one per job.
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

# The length of the lease is taken from the live workers, or 30 s (the default) if there are none. It counts from the newest
# claim, at which the worker was alive. At least a third of it remains: a live worker sends several heartbeats per lease.
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
    """Insert placeholder rows for workers that hold jobs and have no row. Returns the ids of these workers."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(REGISTER_MISSING)
        return [WorkerId(row[0]) for row in await cursor.fetchall()]
