"""Release the jobs of a worker that must stop: running → pending, back to submitted, or failed if the kind requires it.

Called by: the keeper, at the end of the grace period, for a process that is stuck or was just killed. Neither an error nor a
crash is counted, because the job did nothing wrong. A job of a kind with `on_shutdown="fail"` fails: its work must not start
again without an operator's decision. A job with a cancel request becomes cancelled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from holdfast.jobs.dependants import holding
from holdfast.jobs.finish import Ended, untie_all
from holdfast.jobs.model import JobId, WorkerId
from holdfast.jobs.outcome import CUT_OFF, SHUTDOWN
from holdfast.jobs.states import State

HOLD_ITS_JOBS = holding("SELECT id FROM holdfast.jobs WHERE worker_id = %(worker_id)s")
# The next state of each job is decided under its row's lock, and the update checks the attempt again: an end that the process
# has just written is not changed.
RELEASE_WORKER = """
    WITH held AS MATERIALIZED (
        SELECT id, attempt_id, worker_id,
               CASE WHEN cancel_requested_at IS NOT NULL THEN 'cancelled'
                    WHEN handle IS NOT NULL THEN 'submitted'
                    WHEN kind = ANY (%(failing)s::text[])
                         AND (%(begun)s::bigint[] IS NULL OR fence_token = ANY (%(begun)s)) THEN 'failed'
                    ELSE 'pending' END AS goes_to
        FROM holdfast.jobs WHERE worker_id = %(worker_id)s ORDER BY id FOR UPDATE
    ), released AS (
        UPDATE holdfast.jobs j
        SET state = goes_to, attempt_id = NULL, worker_id = NULL, deadline_at = NULL,
            errors = errors + CASE WHEN goes_to = 'failed' THEN 1 ELSE 0 END,
            error = CASE goes_to WHEN 'cancelled' THEN coalesce(cancel_reason, 'asked to stop')
                                 WHEN 'failed' THEN %(cut_off)s ELSE %(shutdown)s END,
            cause = CASE goes_to WHEN 'cancelled' THEN 'cancelled' WHEN 'failed' THEN 'shutdown' ELSE 'released' END,
            finished_at = CASE WHEN goes_to IN ('cancelled', 'failed') THEN clock_timestamp() END,
            next_poll_at = CASE WHEN goes_to = 'submitted' THEN clock_timestamp() END
        FROM held h WHERE j.id = h.id AND j.attempt_id = h.attempt_id
        RETURNING j.id, j.ties, j.slot_key, j.state, j.attempt_no, j.claimed_at, j.queue, j.error, h.attempt_id, h.worker_id
    ), noted AS (
        INSERT INTO holdfast.history (job_id, move, state, attempt_no, attempt_id, worker_id, claimed_at, actor, reason)
        SELECT id, CASE state WHEN 'failed' THEN 'fail' WHEN 'cancelled' THEN 'cancel' ELSE 'release' END, state,
               attempt_no, attempt_id, worker_id, claimed_at, %(actor)s, error
        FROM released
    )
    SELECT id, ties, slot_key, state, attempt_id::text, pg_notify('holdfast', queue) FROM released
"""


@dataclass(frozen=True, slots=True)
class Released:
    """The released jobs of a worker, by their next state."""

    released: list[JobId]
    failed: list[JobId]


async def release_worker(
    conn: psycopg.AsyncConnection[Any],
    worker_id: WorkerId,
    *,
    failing: Sequence[str] = (),
    begun: list[int] | None = None,
    actor: str = "keeper",
    reason: str = SHUTDOWN,
) -> Released:
    """Release all jobs that this worker holds, in one transaction.

    Jobs of the kinds in `failing` fail if they have begun; `begun` are the fence tokens of the attempts that have, if they are
    known. The worker may still run an earlier attempt of a job that it holds again.
    """
    parameters = {
        "worker_id": worker_id,
        "failing": list(failing),
        "begun": begun,
        "actor": actor,
        "cut_off": CUT_OFF,
        "shutdown": reason,
    }
    async with conn.transaction(), conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(HOLD_ITS_JOBS, parameters)
        await cursor.execute(RELEASE_WORKER, parameters)
        rows = await cursor.fetchall()
        await untie_all(cursor, [(Ended(*row[:4]), row[4]) for row in rows])
    failed = [row[0] for row in rows if row[3] == State.FAILED]
    return Released([row[0] for row in rows if row[0] not in failed], failed)
