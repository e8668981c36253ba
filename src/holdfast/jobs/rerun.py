"""Run an ended job again: failed | cancelled → pending | blocked. Called by: the API and the command line.

This is not a reset: the counters stay, granted attempts are added to the limits, and the history records the operator. A rerun
is a new generation of the same job, so that "at most one accepted end" holds for each generation.

The order of a pipeline is kept, in whatever order its jobs are rerun: a job waits again for each parent that has not completed,
also for one that has failed and is not rerun yet. With `if_parent_fails='run'` it waits for parents that have not ended.
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
# Locked in the order of the ids, as everywhere, so that no parent ends between the query and the count.
HOLD = """
    SELECT FROM holdfast.jobs
    WHERE id = ANY (ARRAY(SELECT %(id)s::bigint
                          UNION ALL SELECT parent_id FROM holdfast.dependencies WHERE job_id = %(id)s
                          UNION ALL SELECT job_id FROM holdfast.dependencies WHERE parent_id = %(id)s))
    ORDER BY id FOR UPDATE
"""
# parents_left is counted again, for the job and for its dependants: they may have counted down the first end of this job, and
# will count down its second end.
STILL_TO_END = """(
        SELECT count(*) FROM holdfast.dependencies d JOIN holdfast.jobs p ON p.id = d.parent_id
        WHERE d.job_id = j.id AND (p.state IN ('blocked', 'pending', 'running', 'submitted')
                                   OR (j.if_parent_fails = 'cancel' AND p.state <> 'completed')))"""
# The job gives up its slot: otherwise a parent in the same slot could not run, and the job would wait for it for ever.
WAIT_FOR_PARENTS = f"""
    WITH counted AS MATERIALIZED (
        SELECT j.id, {STILL_TO_END} AS parents FROM holdfast.jobs j WHERE j.id = %(id)s
    ), blocked AS (
        UPDATE holdfast.jobs j SET state = 'blocked', waiting_for = 'parents', parents_left = c.parents, is_current = false
        FROM counted c WHERE j.id = c.id AND c.parents > 0
        RETURNING j.id, j.attempt_no, j.parents_left
    )
    INSERT INTO holdfast.history (job_id, move, state, attempt_no, reason)
    SELECT id, 'block', 'blocked', attempt_no, 'parents that have not completed: ' || parents_left FROM blocked
"""
COUNT_AGAIN = f"""
    UPDATE holdfast.jobs j SET parents_left = {STILL_TO_END}
    WHERE j.id = ANY (ARRAY(SELECT job_id FROM holdfast.dependencies WHERE parent_id = %(id)s))
      AND j.state = 'blocked' AND j.waiting_for = 'parents'
"""
# A job with `reject` locks released them when it ended. From now on its locks behave as with `wait`, because there is no
# enqueue to reject, and it holds none while it waits (ties & 32).
WAIT_FROM_NOW_ON = "UPDATE holdfast.lock_wants SET when_busy = 'wait' WHERE job_id = %(id)s AND when_busy = 'reject'"
SNAPSHOT_IS_BEING_DELETED = "deleted_only_after_its_end"  # the constraint
READ_STATE = "SELECT state FROM holdfast.jobs WHERE id = %(id)s"


async def rerun(
    conn: psycopg.AsyncConnection[Any], job_id: JobId, *, actor: str, reason: str | None = None, grant: int = 1
) -> None:
    """Return a failed or cancelled job to the queue, or let it wait for its parents, with at least `grant` attempts left."""
    refuse_bad_word(actor, reason)
    parameters = {"id": job_id, "actor": actor, "reason": reason, "grant": max(1, grant)}
    try:
        async with conn.transaction(), conn.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(HOLD, parameters)
            await cursor.execute(RERUN, parameters)
            if await cursor.fetchone() is None:
                await cursor.execute(READ_STATE, parameters)
                row = await cursor.fetchone()
                if row is None:
                    raise NotFound(f"there is no job {job_id}")
                raise IllegalMove(f"job {job_id} is {row[0]}; only a failed or cancelled job can be run again")
            await cursor.execute(WAIT_FOR_PARENTS, parameters)
            await cursor.execute(COUNT_AGAIN, parameters)
            await cursor.execute(WAIT_FROM_NOW_ON, parameters)
    except psycopg.errors.UniqueViolation as taken:
        raise Refused(
            f"job {job_id} cannot wait again: another job waits under its unique key or slot ({taken.diag.constraint_name})"
        ) from None
    except psycopg.errors.CheckViolation as broken:  # a trigger reopens the job's snapshot
        if broken.diag.constraint_name != SNAPSHOT_IS_BEING_DELETED:
            raise
        raise IllegalMove(
            f"job {job_id} cannot be run again: its snapshot has expired and is being deleted; make a new snapshot"
        ) from None
