"""An operator takes a job from a worker whose lease has expired: running → pending. Called by: the API and the command line.

The sweep does the same automatically (`rescue.py`). `recover` is for operators who cannot wait, or want to grant more attempts.
It refuses a job whose worker still renews its lease, so a long but healthy run is never interrupted.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from holdfast.errors import NotFound, NotStale
from holdfast.jobs.finish import Ended, untie
from holdfast.jobs.model import JobId
from holdfast.jobs.payload import refuse_bad_word

# The worker's row is locked, so that it cannot renew its lease meanwhile. A worker without a row has no lease.
# Counters are never reset: granted attempts are added to the limit and recorded in the history. A cancel request is removed,
# because an operator who recovers a job wants it to run.
RECOVER = """
    WITH silent AS MATERIALIZED (
        SELECT j.id, j.attempt_id, j.worker_id FROM holdfast.jobs j JOIN holdfast.workers w ON w.id = j.worker_id
        WHERE j.id = %(id)s AND w.lease_until < clock_timestamp()
        FOR UPDATE OF w
    ), unregistered AS MATERIALIZED (
        SELECT j.id, j.attempt_id, j.worker_id FROM holdfast.jobs j
        WHERE j.id = %(id)s AND j.worker_id IS NOT NULL
          AND NOT EXISTS (SELECT FROM holdfast.workers w WHERE w.id = j.worker_id)
    ), recovered AS (
        UPDATE holdfast.jobs j
        SET state = CASE WHEN j.handle IS NOT NULL THEN 'submitted' ELSE 'pending' END,
            attempt_id = NULL, worker_id = NULL, deadline_at = NULL, run_after = NULL,
            cancel_requested_at = NULL, cancel_reason = NULL,
            progress = CASE WHEN j.handle IS NOT NULL THEN j.progress END,
            message = CASE WHEN j.handle IS NOT NULL THEN j.message END,
            next_poll_at = CASE WHEN j.handle IS NOT NULL THEN clock_timestamp() END,
            max_attempts = greatest(j.max_attempts, j.errors + %(grant)s),
            max_crashes = greatest(j.max_crashes, j.crashes + %(grant)s)
        FROM (SELECT * FROM silent UNION ALL SELECT * FROM unregistered) AS s
        WHERE j.id = s.id AND j.attempt_id = s.attempt_id
        RETURNING j.id, j.ties, j.slot_key, j.state, j.attempt_no, j.claimed_at, j.queue, s.attempt_id, s.worker_id
    ), noted AS (
        INSERT INTO holdfast.history (job_id, move, state, attempt_no, attempt_id, worker_id, claimed_at, actor, reason, detail)
        SELECT id, 'recover', state, attempt_no, attempt_id, worker_id, claimed_at, %(actor)s, %(reason)s,
               jsonb_build_object('granted', %(grant)s::int)
        FROM recovered
    )
    SELECT id, ties, slot_key, state, attempt_id::text, pg_notify('holdfast', queue) FROM recovered
"""
WHY_NOT = """
    SELECT j.state, w.name, w.lease_until - clock_timestamp() FROM holdfast.jobs j
    LEFT JOIN holdfast.workers w ON w.id = j.worker_id WHERE j.id = %(id)s
"""


async def recover(
    conn: psycopg.AsyncConnection[Any], job_id: JobId, *, actor: str, reason: str | None = None, grant: int = 1
) -> None:
    """Return a job whose worker's lease has expired to the queue, with at least `grant` attempts left. Otherwise `NotStale`."""
    refuse_bad_word(actor, reason)
    async with conn.transaction(), conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(RECOVER, {"id": job_id, "actor": actor, "reason": reason, "grant": max(1, grant)})
        row = await cursor.fetchone()
        if row is None:
            raise await _why_not(cursor, job_id)
        await untie(cursor, Ended(*row[:4]), row[4])


async def _why_not(cursor: psycopg.AsyncCursor[tuple[Any, ...]], job_id: JobId) -> NotFound | NotStale:
    await cursor.execute(WHY_NOT, {"id": job_id})
    row = await cursor.fetchone()
    if row is None:
        return NotFound(f"there is no job {job_id}")
    state, worker, left = row
    if worker is None:
        return NotStale(f"job {job_id} is {state}, not running; no worker holds it, so there is nothing to recover")
    left = max(left, timedelta(0))
    return NotStale(
        f"job {job_id} is held by {worker}, whose lease runs for another {left.total_seconds():.0f} s; "
        "wait until its lease expires, or cancel the job"
    )
