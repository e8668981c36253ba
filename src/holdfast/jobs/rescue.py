"""Rescue jobs of workers whose lease has expired: running → pending, submitted, failed or cancelled. Called by: any worker.

A rescue is a compare-and-set by the first worker that finds the job, not a queued job. It removes the fence, so a worker that
was only slow gets `ClaimLost`. Crashes have a separate limit, with causes: a job that crashes its process again and again is
quarantined. The last crash of the limit is counted only for a job that ran alone in its process, so that no job is quarantined
because of another one (docs/decisions/0008).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from holdfast.crashpoints import crashpoint
from holdfast.jobs.begin import HAS_BEGUN
from holdfast.jobs.dependants import holding
from holdfast.jobs.finish import Ended, untie_all
from holdfast.jobs.model import AttemptId, JobId, WorkerId
from holdfast.jobs.unregistered import register_missing
from holdfast.telemetry.error_text import error_line
from holdfast.telemetry.lazy_log import log

# Which job caused the crash? `begun`: whether the attempt had begun in the process that died; null: unknown. `company`: how
# many attempts had begun or may have. 'own': it was alone, and the crash counts. 'shared': it was one of several and the cause
# is unknown; the crash counts, but never the last one of the limit, and the job runs alone in a process from now on. 'none': it
# had not begun, and nothing counts. 'unseen': unknown, nothing counts, but its next start is written before its handler runs,
# so that it is known the next time (docs/decisions/0018).
JUDGED = """CASE WHEN begun IS NULL THEN 'unseen' WHEN NOT begun THEN 'none' WHEN company > 1 THEN 'shared' ELSE 'own' END
            AS fault"""

# The state after a crash. With a cancel request: cancelled. At the crash limit: quarantined. An engine has its work: submitted.
# Otherwise it runs again, at once after the first crash, later after each further one. A job that runs alone in a process, and
# whose crashes still hit other processes, waits longest, because it may take down a whole pod each time.
IS_POISON = "s.fault = 'own' AND j.crashes + 1 >= j.max_crashes"
SET_CRASHED = f"""
    state = CASE WHEN j.cancel_requested_at IS NOT NULL THEN 'cancelled'
                 WHEN {IS_POISON} THEN 'failed'
                 WHEN j.handle IS NOT NULL THEN 'submitted'
                 ELSE 'pending' END,
    attempt_id = NULL, worker_id = NULL, deadline_at = NULL,
    crashes = CASE s.fault WHEN 'own' THEN j.crashes + 1
                           WHEN 'shared' THEN greatest(j.crashes, least(j.crashes + 1, j.max_crashes - 1))
                           ELSE j.crashes END,
    alone = j.alone OR s.fault = 'shared',
    confirm_start = j.confirm_start OR s.fault = 'unseen',
    cause = CASE WHEN j.cancel_requested_at IS NULL THEN %(cause)s ELSE 'cancelled' END,
    error = CASE WHEN j.cancel_requested_at IS NULL THEN %(error)s ELSE coalesce(j.cancel_reason, 'asked to stop') END,
    (progress, message) = (SELECT j.progress, j.message WHERE j.handle IS NOT NULL OR j.cancel_requested_at IS NOT NULL
                           OR {IS_POISON}),
    finished_at = CASE WHEN j.cancel_requested_at IS NOT NULL OR {IS_POISON} THEN clock_timestamp() END,
    next_poll_at = CASE WHEN j.handle IS NOT NULL THEN clock_timestamp() END,
    run_after = CASE WHEN j.handle IS NOT NULL OR j.cancel_requested_at IS NOT NULL OR {IS_POISON} THEN NULL
                     WHEN s.fault IN ('none', 'unseen') THEN NULL
                     WHEN s.fault = 'shared' AND j.alone
                     THEN clock_timestamp() + interval '1 second' * least(2 ^ least(j.attempt_no, 10), 600)
                     WHEN j.crashes > 0 THEN clock_timestamp() + interval '1 second' * least(2 ^ least(j.crashes, 10), 60) END
"""
NOTE_CRASHED = """
    INSERT INTO holdfast.history (job_id, move, state, attempt_no, attempt_id, worker_id, claimed_at, actor, reason, detail)
    SELECT id, CASE state WHEN 'failed' THEN 'quarantine' WHEN 'cancelled' THEN 'cancel' ELSE 'rescue' END, state,
           attempt_no, attempt_id, worker_id, claimed_at, %(actor)s,
           CASE fault WHEN 'own' THEN %(error)s::text
                      WHEN 'none' THEN %(error)s::text || '; it had not begun'
                      WHEN 'unseen' THEN %(error)s::text || '; whether it had begun is not known, so it is not counted'
                      ELSE %(error)s::text || '; ' || company - 1 || CASE company WHEN 2 THEN ' other' ELSE ' others' END
                           || ' ran or waited in the same process, so it runs alone from now on' END,
           jsonb_build_object('cause', %(cause)s::text)
           || CASE WHEN crashes > crashes_before THEN '{}' ELSE '{"counted": false}' END::jsonb
           || CASE fault WHEN 'shared' THEN jsonb_build_object('beside', company - 1) ELSE '{}' END
    FROM rescued
"""


def _take(silent: str) -> str:
    """The statement that rescues the jobs which the CTE `silent` selects. RETURNING shows the new row, so the ended attempt
    comes from `silent`; the update checks it again on the current row."""
    return f"""
    WITH {silent}, judged AS MATERIALIZED (
        SELECT *, {JUDGED} FROM (
            SELECT *, count(*) FILTER (WHERE begun IS NOT FALSE) OVER (PARTITION BY process) AS company FROM silent
        ) AS together
    ), rescued AS (
        UPDATE holdfast.jobs j SET {SET_CRASHED}
        FROM judged s WHERE j.id = s.id AND j.attempt_id = s.attempt_id
        RETURNING j.id, j.ties, j.slot_key, j.state, j.attempt_no, j.claimed_at, j.queue, j.run_after, s.attempt_id,
                  s.worker_id, s.fault, s.company, j.crashes, s.crashes AS crashes_before
    ), noted AS ({NOTE_CRASHED})
    SELECT id, ties, slot_key, state, attempt_id::text,
           pg_notify('holdfast', CASE WHEN run_after IS NULL THEN queue ELSE '@' END)
    FROM rescued
    """


# The worker's row is locked while its jobs are rescued, so it cannot renew its lease meanwhile, and the lease is checked again
# on the locked row. All jobs of a worker are rescued in one transaction, because the cause is decided for all of them. Each
# worker has a separate transaction, so that an error with one does not prevent the rescue of the others. `tried`: workers that
# are done or failed in this pass.
HOLD_DEAD = """
    SELECT w.id::text FROM holdfast.workers w
    WHERE w.lease_until < clock_timestamp() AND w.id <> ALL (%(tried)s::uuid[])
      AND EXISTS (SELECT FROM holdfast.jobs j WHERE j.worker_id = w.id)
    ORDER BY w.id LIMIT 1 FOR UPDATE SKIP LOCKED
"""
# Workers whose session has ended and that did not reconnect (`sessions.py`). A reconnect updates the same row and clears
# session_gone_at.
HOLD_DISCONNECTED = """
    SELECT w.id::text FROM holdfast.workers w
    WHERE w.session_gone_at < clock_timestamp() - %(grace)s AND w.id <> ALL (%(tried)s::uuid[])
    ORDER BY w.id LIMIT 1 FOR UPDATE SKIP LOCKED
"""
# Each ended session triggers at most one rescue: a worker that is alive and claims jobs before it has a new session keeps them.
FORGET_SESSION = """
    UPDATE holdfast.workers SET session_pid = NULL, session_began = NULL, session_gone_at = NULL WHERE id = %(found)s
"""
HOLD_THEIR_JOBS = holding("SELECT id FROM holdfast.jobs WHERE worker_id = %(found)s")
RESCUE = _take(f"""
    silent AS MATERIALIZED (
        SELECT id, attempt_id, worker_id, crashes, worker_id AS process, nullif({HAS_BEGUN}, false) AS begun
        FROM holdfast.jobs WHERE worker_id = %(found)s
    )""")
# A live worker that lets an attempt run far beyond `max_runtime` has lost control of it. One transaction for each attempt. An
# attempt that has not begun has no deadline.
HOLD_OVERDUE = """
    SELECT id FROM holdfast.jobs
    WHERE worker_id IS NOT NULL AND deadline_at < (SELECT clock_timestamp()) - %(grace)s AND id <> ALL (%(tried)s::bigint[])
    ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED
"""
RESCUE_OVERDUE = _take("""
    silent AS MATERIALIZED (
        SELECT id, attempt_id, worker_id, crashes, id AS process, true AS begun FROM holdfast.jobs
        WHERE id = %(found)s AND worker_id IS NOT NULL
    )""")
# For a caller that knows that the process has ended, such as its parent process: the lease need not expire first.
RESCUE_WORKER = _take("""
    silent AS MATERIALIZED (
        SELECT id, attempt_id, worker_id, crashes, worker_id AS process,
               %(begun)s::bigint[] IS NULL OR fence_token = ANY (%(begun)s) AS begun
        FROM holdfast.jobs
        WHERE worker_id = %(worker_id)s AND (%(ids)s::bigint[] IS NULL OR id = ANY (%(ids)s))
          AND (%(attempts)s::uuid[] IS NULL OR attempt_id = ANY (%(attempts)s))
    )""")

OVERDUE_GRACE = timedelta(seconds=30)


async def rescue(conn: psycopg.AsyncConnection[Any], *, limit: int = 20, actor: str = "rescue") -> list[JobId]:
    """Rescue the jobs of up to `limit` workers whose lease has expired, and up to `limit` jobs that run far beyond
    `max_runtime`."""
    missing = await register_missing(conn)
    if missing:
        log.warning("workers_unregistered", workers=missing)
    why = {"cause": "lease_lost", "error": "its worker went silent", "actor": actor}
    rescued = await _rescue_each(conn, HOLD_DEAD, (HOLD_THEIR_JOBS,), RESCUE, why, limit=limit)
    overdue = {"cause": "max_runtime", "error": "it ran beyond its longest time", "actor": actor, "grace": OVERDUE_GRACE}
    rescued += await _rescue_each(conn, HOLD_OVERDUE, (), RESCUE_OVERDUE, overdue, limit=limit)
    if rescued:
        crashpoint("reap.after")
    return rescued


async def rescue_disconnected(
    conn: psycopg.AsyncConnection[Any], *, grace: timedelta, limit: int = 20, actor: str = "rescue"
) -> list[JobId]:
    """Rescue the jobs of workers whose database session ended more than `grace` ago."""
    why = {"cause": "disconnected", "error": "the database session of its worker ended", "actor": actor, "grace": grace}
    rescued = await _rescue_each(conn, HOLD_DISCONNECTED, (HOLD_THEIR_JOBS, FORGET_SESSION), RESCUE, why, limit=limit)
    if rescued:
        crashpoint("reap.after")
    return rescued


async def _rescue_each(
    conn: psycopg.AsyncConnection[Any], find: str, before: Sequence[str], take: str, why: dict[str, Any], *, limit: int
) -> list[JobId]:
    """Rescue what `find` finds, each in a separate transaction; after an error the next sweep tries again."""
    rescued: list[JobId] = []
    tried: list[Any] = []
    for _ in range(limit):
        found = None
        try:
            async with conn.transaction(), conn.cursor(row_factory=tuple_row) as cursor:
                await cursor.execute(find, why | {"tried": tried})
                row = await cursor.fetchone()
                if row is None:
                    break
                found = row[0]
                tried.append(found)
                for statement in before:
                    await cursor.execute(statement, {"found": found})
                taken = await _take_all(cursor, take, why | {"found": found})
            rescued += taken
        except Exception as error:  # any error: the jobs of the other workers are rescued all the same
            if conn.broken or found is None:
                raise
            log.error("rescue_failed", holder=found, error=error_line(error))
    return rescued


async def rescue_worker(
    conn: psycopg.AsyncConnection[Any],
    worker_id: WorkerId,
    *,
    cause: str,
    error: str,
    actor: str = "keeper",
    jobs: list[JobId] | None = None,
    attempts: list[AttemptId] | None = None,
    begun: list[int] | None = None,
) -> list[JobId]:
    """Rescue the jobs of a worker whose process is known to have ended, with the cause. If only one of its processes died: only
    `jobs`, or only these `attempts`. `begun`: the fence tokens of the attempts that had
    begun, if they are known."""
    parameters = {
        "worker_id": worker_id,
        "cause": cause,
        "error": error,
        "actor": actor,
        "ids": jobs,
        "attempts": attempts,
        "begun": begun,
    }
    async with conn.transaction(), conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(HOLD_THEIR_JOBS, {"found": worker_id})
        rescued = await _take_all(cursor, RESCUE_WORKER, parameters)
    if rescued:
        crashpoint("reap.after")
    return rescued


async def _take_all(cursor: psycopg.AsyncCursor[Any], statement: str, parameters: dict[str, Any]) -> list[JobId]:
    await cursor.execute(statement, parameters)
    rows = await cursor.fetchall()
    await untie_all(cursor, [(Ended(*row[:4]), row[4]) for row in rows])
    if rows:
        crashpoint("reap.in_tx")
    return [row[0] for row in rows]
