"""Run an ended job once more: failed | cancelled → pending. Called by: people, through the API and the command line.

Not a reset: the counts stay, the limits are raised by what is granted, and the history says who did it. A new
generation of the same job, so that "at most one accepted end" holds for each.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.rows import tuple_row

from holdfast.errors import IllegalMove, NotFound, Refused
from holdfast.jobs.model import JobId
from holdfast.jobs.payload import refuse_bad_word

RERUN = """
    WITH again AS (
        UPDATE holdfast.jobs
        SET state = 'pending', finished_at = NULL, run_after = NULL, generation = generation + 1, handle = NULL, poll_count = 0,
            poll_errors = 0, submitted_at = NULL, cancel_requested_at = NULL, cancel_reason = NULL,
            progress = NULL, message = NULL, ties = ties & ~32,
            max_attempts = greatest(max_attempts, errors + %(grant)s), max_crashes = greatest(max_crashes, crashes + %(grant)s)
        WHERE id = %(id)s AND state IN ('failed', 'cancelled')
        RETURNING id, attempt_no, queue
    ), noted AS (
        INSERT INTO holdfast.history (job_id, move, state, attempt_no, actor, reason, detail)
        SELECT id, 'rerun', 'pending', attempt_no, %(actor)s, %(reason)s, jsonb_build_object('granted', %(grant)s::int)
        FROM again
    )
    SELECT id, pg_notify('holdfast', queue) FROM again
"""
# Whoever waited for it was told when it ended, and must not be told again: two ends of one parent would count as two parents.
FORGET_DEPENDANTS = "DELETE FROM holdfast.dependencies WHERE parent_id = %(id)s"
# A job with `reject` locks gave them back when it ended; it runs under `wait` from now on, since nobody is there to reject,
# and holds none while it waits (ties & 32).
WAIT_FROM_NOW_ON = "UPDATE holdfast.lock_wants SET when_busy = 'wait' WHERE job_id = %(id)s AND when_busy = 'reject'"
READ_STATE = "SELECT state FROM holdfast.jobs WHERE id = %(id)s"


async def rerun(
    conn: psycopg.AsyncConnection[Any], job_id: JobId, *, actor: str, reason: str | None = None, grant: int = 1
) -> None:
    """Put a failed or cancelled job back into the queue with at least `grant` attempts left."""
    refuse_bad_word(actor, reason)
    parameters = {"id": job_id, "actor": actor, "reason": reason, "grant": max(1, grant)}
    try:
        async with conn.transaction(), conn.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(RERUN, parameters)
            if await cursor.fetchone() is None:
                await cursor.execute(READ_STATE, parameters)
                row = await cursor.fetchone()
                if row is None:
                    raise NotFound(f"there is no job {job_id}")
                raise IllegalMove(f"job {job_id} is {row[0]}; only a failed or cancelled job can be run again")
            await cursor.execute(FORGET_DEPENDANTS, parameters)
            await cursor.execute(WAIT_FROM_NOW_ON, parameters)
    except psycopg.errors.UniqueViolation as taken:
        raise Refused(
            f"job {job_id} cannot wait again: another job waits under its unique key or slot ({taken.diag.constraint_name})"
        ) from None
