"""Read an attempt back under its own id. Called by: the HTTP API, to which a worker shows nothing but that id.

What the worker says about its claim is not believed: the row says who holds the job, and what the attempt may do.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.rows import tuple_row

from holdfast.errors import ClaimLost, NotFound
from holdfast.jobs.model import CLAIM_COLUMNS, AttemptId, Claim, JobId, WorkerId

READ_HELD = f"SELECT {CLAIM_COLUMNS} FROM holdfast.jobs j WHERE j.id = %(id)s AND j.attempt_id = %(attempt_id)s"


async def held(conn: psycopg.AsyncConnection[Any], job_id: JobId, attempt_id: AttemptId, operation: str) -> Claim:
    """The claim that this attempt has on the job; `ClaimLost` if it has none. Every write asks once more, on the row."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(READ_HELD, {"id": job_id, "attempt_id": attempt_id})
        row = await cursor.fetchone()
    if row is None:
        raise ClaimLost(job_id, attempt_id, operation)
    return Claim._make(row)


READ_WORKER = "SELECT EXISTS (SELECT FROM holdfast.workers WHERE id = %(worker_id)s)"


async def require_worker(conn: psycopg.AsyncConnection[Any], worker_id: WorkerId) -> None:
    """Before a claim: a job that is held by nobody known could never be rescued."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(READ_WORKER, {"worker_id": worker_id})
        row = await cursor.fetchone()
    if row is None or not row[0]:
        raise NotFound(f"there is no worker {worker_id}; register it before it claims")
