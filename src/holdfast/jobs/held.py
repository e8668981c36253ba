"""Read the claim of an attempt by its id. Called by: the HTTP API, to which a remote worker sends only that id.

The claim is read from the database and not from the request. A principal may act only for workers that it registered itself,
because the ids of workers and attempts are visible to every principal that may read jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from holdfast.database import arrays
from holdfast.errors import ClaimLost, NotFound, NotOwnWorker
from holdfast.jobs.model import CLAIM_COLUMNS, AttemptId, Claim, JobId, WorkerId

# A remote worker without an owner was registered before owners were recorded. A missing row belongs to no owner.
IS_OTHERS = "w.owner IS DISTINCT FROM %(owner)s AND NOT (w.owner IS NULL AND w.runner = 'remote')"
READ_HELD = f"""
    SELECT w.id IS NOT NULL AND {IS_OTHERS}, {CLAIM_COLUMNS}
    FROM holdfast.jobs j LEFT JOIN holdfast.workers w ON w.id = j.worker_id
    WHERE j.id = %(id)s AND j.attempt_id = %(attempt_id)s
"""


async def held(
    conn: psycopg.AsyncConnection[Any], job_id: JobId, attempt_id: AttemptId, operation: str, *, owner: str
) -> Claim:
    """The claim of this attempt on the job; `ClaimLost` if it has none. Every later write checks the row again."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(READ_HELD, {"id": job_id, "attempt_id": attempt_id, "owner": owner})
        row = await cursor.fetchone()
    if row is None:
        raise ClaimLost(job_id, attempt_id, operation)
    is_others, *columns = row
    claim = Claim._make(columns)
    if is_others:
        raise NotOwnWorker(claim.worker_id)
    return claim


READ_WORKER = f"SELECT {IS_OTHERS} FROM holdfast.workers w WHERE w.id = %(worker_id)s"


async def is_known(conn: psycopg.AsyncConnection[Any], worker_id: WorkerId, *, owner: str) -> bool:
    """Whether there is such a worker; `NotOwnWorker` if another principal registered it."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(READ_WORKER, {"worker_id": worker_id, "owner": owner})
        row = await cursor.fetchone()
    if row is not None and row[0]:
        raise NotOwnWorker(worker_id)
    return row is not None


async def require_worker(conn: psycopg.AsyncConnection[Any], worker_id: WorkerId, *, owner: str) -> None:
    """Check before a claim that the worker is registered: jobs of an unregistered worker are rescued late."""
    if not await is_known(conn, worker_id, owner=owner):
        raise NotFound(f"there is no worker {worker_id}; register it before it claims")


FIND_OTHERS = f"""
    SELECT w.id::text FROM unnest(%(ids)s::bigint[], %(attempts)s::uuid[]) AS mine(id, attempt_id)
    JOIN holdfast.jobs j ON j.id = mine.id AND j.attempt_id = mine.attempt_id
    JOIN holdfast.workers w ON w.id = j.worker_id
    WHERE {IS_OTHERS} LIMIT 1
"""


async def require_own(conn: psycopg.AsyncConnection[Any], claims: Sequence[Claim], *, owner: str) -> None:
    """Check before a batch of completions that workers of this owner hold all attempts. The worker of an attempt never
    changes."""
    ids, attempts = (arrays.of_words(claim.id for claim in claims), arrays.of_words(claim.attempt_id for claim in claims))
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(FIND_OTHERS, {"ids": ids, "attempts": attempts, "owner": owner})
        row = await cursor.fetchone()
    if row is not None:
        raise NotOwnWorker(row[0])


# After its end, the worker of an attempt is in the history only.
FIND_OTHER = f"""
    SELECT w.id::text FROM (
        SELECT worker_id FROM holdfast.history WHERE job_id = %(id)s AND attempt_id = %(attempt_id)s
        UNION ALL SELECT worker_id FROM holdfast.jobs WHERE id = %(id)s AND attempt_id = %(attempt_id)s
    ) AS mine JOIN holdfast.workers w ON w.id = mine.worker_id
    WHERE {IS_OTHERS} LIMIT 1
"""


async def require_own_attempt(conn: psycopg.AsyncConnection[Any], job_id: JobId, attempt_id: AttemptId, *, owner: str) -> None:
    """Check before the end of an attempt is shown that no worker of another owner had it."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(FIND_OTHER, {"id": job_id, "attempt_id": attempt_id, "owner": owner})
        row = await cursor.fetchone()
    if row is not None:
        raise NotOwnWorker(row[0])
