"""Cancel jobs: any live state → cancelled; a running job gets a cancel request. Called by: the API and the command line.

The handler of a running job sees the request at the next checkpoint, its worker at the next heartbeat. The attempt ends with
`finish`, and the job holds its locks until then. `force` does not wait: it removes the fence at once, and later writes of the
handler are refused.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from holdfast.errors import IllegalMove, NotFound
from holdfast.jobs.dependants import holding
from holdfast.jobs.finish import Ended, untie
from holdfast.jobs.model import JobId, uuid_text
from holdfast.jobs.payload import refuse_bad_word
from holdfast.jobs.states import ENDED, State

HOLD = "SELECT state, attempt_id::text, worker_id::text FROM holdfast.jobs WHERE id = %(id)s FOR UPDATE"
REQUEST = """
    UPDATE holdfast.jobs SET cancel_requested_at = coalesce(cancel_requested_at, clock_timestamp()), cancel_reason = %(reason)s
    WHERE id = %(id)s AND state = 'running'
"""
CANCEL = """
    WITH cancelled AS (
        UPDATE holdfast.jobs
        SET state = 'cancelled', attempt_id = NULL, worker_id = NULL, deadline_at = NULL, waiting_for = NULL, run_after = NULL,
            next_poll_at = NULL, finished_at = clock_timestamp(), cause = 'cancelled', error = %(reason)s
        WHERE id = %(id)s AND state = %(state)s
        RETURNING id, ties, slot_key, state, attempt_no, claimed_at
    ), noted AS (
        INSERT INTO holdfast.history (job_id, move, state, attempt_no, attempt_id, worker_id, claimed_at, actor, reason)
        SELECT id, 'cancel', state, attempt_no, %(attempt_id)s, %(worker_id)s,
               CASE WHEN %(attempt_id)s::uuid IS NOT NULL THEN claimed_at END, %(actor)s, %(reason)s FROM cancelled
    )
    SELECT id, ties, slot_key, state FROM cancelled
"""
NOTE_REQUEST = """
    INSERT INTO holdfast.history (job_id, move, state, attempt_no, actor, reason)
    SELECT id, 'act', state, attempt_no, %(actor)s, 'cancel requested' || coalesce(': ' || %(reason)s, '')
    FROM holdfast.jobs WHERE id = %(id)s
"""


async def cancel(
    conn: psycopg.AsyncConnection[Any], job_id: JobId, *, actor: str, reason: str | None = None, force: bool = False
) -> State:
    """Cancel a job. Returns its state afterwards: `cancelled`, or `running` if it has a cancel request and has not ended
    yet."""
    refuse_bad_word(actor, reason)
    parameters: dict[str, Any] = {"id": job_id, "actor": actor, "reason": reason}
    async with conn.transaction(), conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(HOLD, parameters)
        row = await cursor.fetchone()
        if row is None:
            raise NotFound(f"there is no job {job_id}")
        state, attempt_id, worker_id = State(row[0]), row[1], row[2]
        if state in ENDED:
            raise IllegalMove(f"job {job_id} is {state} already; a job that has ended cannot be cancelled")
        if state is State.RUNNING and not force:
            await cursor.execute(REQUEST, parameters)
            await cursor.execute(NOTE_REQUEST, parameters)
            return State.RUNNING
        await cursor.execute(CANCEL, parameters | {"state": state, "attempt_id": attempt_id, "worker_id": worker_id})
        ended = await cursor.fetchone()
        assert ended is not None, "the row is locked, so no other transaction can have moved it"
        await untie(cursor, Ended(*ended), attempt_id)
    return State.CANCELLED


ABORT = """
    UPDATE holdfast.pipelines SET aborted_at = coalesce(aborted_at, clock_timestamp()), reason = %(reason)s
    WHERE id = %(pipeline_id)s
"""
# All rows are locked before the first is changed, in the order in which an end proceeds from a parent to its children, so that
# an abort and an end cannot deadlock. Jobs that a concurrent end made are seen by the next statement.
HOLD_LIVE = holding("""
        SELECT id FROM holdfast.jobs
        WHERE pipeline_id = %(pipeline_id)s AND state IN ('blocked', 'pending', 'running', 'submitted')""")
LIVE_OF_PIPELINE = """
    SELECT id FROM holdfast.jobs
    WHERE pipeline_id = %(pipeline_id)s AND state IN ('blocked', 'pending', 'running', 'submitted') AND id <> ALL (%(seen)s)
    -- Waiting jobs first, so that nothing new starts while the others are stopped.
    ORDER BY state <> 'blocked', state <> 'pending', id
"""


async def abort(conn: psycopg.AsyncConnection[Any], pipeline_id: str, *, actor: str, reason: str | None = None) -> int:
    """Cancel the live jobs of a pipeline. Returns how many were cancelled or got a cancel request."""
    refuse_bad_word(actor, reason)
    pipeline_id, seen = uuid_text(pipeline_id, "pipeline_id"), list[int]()
    async with conn.transaction(), conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(ABORT, {"pipeline_id": pipeline_id, "reason": reason})
        if cursor.rowcount == 0:
            raise NotFound(f"there is no pipeline {pipeline_id}")
        while found := await _live(cursor, pipeline_id, seen):  # repeated for children that were made meanwhile
            seen += found
            for job_id in found:
                # A job that has ended since the query ended normally, or with a parent that was cancelled before it.
                with suppress(IllegalMove):
                    await cancel(conn, job_id, actor=actor, reason=reason or "its pipeline was aborted")
    return len(seen)


async def _live(cursor: psycopg.AsyncCursor[tuple[Any, ...]], pipeline_id: str, seen: list[int]) -> list[JobId]:
    await cursor.execute(HOLD_LIVE, {"pipeline_id": pipeline_id})
    await cursor.execute(LIVE_OF_PIPELINE, {"pipeline_id": pipeline_id, "seen": seen})
    return [row[0] for row in await cursor.fetchall()]
