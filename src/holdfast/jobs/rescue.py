"""Take jobs from holders that went silent: running → pending, or back to the engine, or to an end. Called by: any worker.

A compare-and-set by whoever comes first, never a queued job of its own. The fence falls with it, so a holder that was
only slow finds that its claim is lost. Crashes have their own budget, with causes: a job that takes its process down
again and again is quarantined and takes nobody along: the last crash of a budget is only ever spent by a job that was alone
in its process (docs/decisions/0008).
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
from holdfast.telemetry.log import log

# Whose fault was it? `begun` are the attempts that had begun in the process that died; null: that is not known. `company` is
# how many had begun or may have. Alone in it: its own. Among several: nobody can tell, so it spends what it may of its budget
# but never the last of it, and runs in a process of its own from now on. Not begun: that costs it nothing. Not known: the
# same, but its next start is written before its handler runs, so that it is known the next time (docs/decisions/0018).
JUDGED = """CASE WHEN begun IS NULL THEN 'unseen' WHEN NOT begun THEN 'none' WHEN company > 1 THEN 'shared' ELSE 'own' END
            AS fault"""

# What a crash means for a job. Somebody asked it to stop: it has. Its crash budget is used up: quarantine. An engine
# has its work: ask there again. Otherwise it runs again, at once the first time, later each further time; one that has a
# process of its own and yet never dies alone waits longest, because it may take a whole pod with it each time.
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
    """The whole statement for a way to find the silent ones. RETURNING shows a row as it is afterwards, so the attempt
    that ends comes from `silent`; the update asks for it once more, on the row as it is by then."""
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


# The worker's row is held while its jobs are taken: it cannot renew in between, and its lease is looked at once more
# on the row as it is then. All jobs of a worker are taken together, because they are judged together; those of two workers are
# not, because what goes wrong with one must not keep the other's jobs from being rescued. `tried` are those that it went wrong
# with, and those that are done.
HOLD_DEAD = """
    SELECT w.id::text FROM holdfast.workers w
    WHERE w.lease_until < clock_timestamp() AND w.id <> ALL (%(tried)s::uuid[])
      AND EXISTS (SELECT FROM holdfast.jobs j WHERE j.worker_id = w.id)
    ORDER BY w.id LIMIT 1 FOR UPDATE SKIP LOCKED
"""
# Whose session has ended and did not come back (`sessions.py`). Coming back takes the same row and clears the mark.
HOLD_DISCONNECTED = """
    SELECT w.id::text FROM holdfast.workers w
    WHERE w.session_gone_at < clock_timestamp() - %(grace)s AND w.id <> ALL (%(tried)s::uuid[])
    ORDER BY w.id LIMIT 1 FOR UPDATE SKIP LOCKED
"""
# A session is good for one rescue: a worker that lives after all, and claims before it has a new one, is not robbed again.
FORGET_SESSION = """
    UPDATE holdfast.workers SET session_pid = NULL, session_began = NULL, session_gone_at = NULL WHERE id = %(found)s
"""
HOLD_THEIR_JOBS = holding("SELECT id FROM holdfast.jobs WHERE worker_id = %(found)s")
RESCUE = _take(f"""
    silent AS MATERIALIZED (
        SELECT id, attempt_id, worker_id, crashes, worker_id AS process, nullif({HAS_BEGUN}, false) AS begun
        FROM holdfast.jobs WHERE worker_id = %(found)s
    )""")
# A worker that is alive but let an attempt run far beyond its longest time has lost control of it. Each of them alone.
# An attempt that has not begun has no deadline.
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
# By somebody who knows that the process is gone, as its parent does: no lease has to run out first.
RESCUE_WORKER = _take("""
    silent AS MATERIALIZED (
        SELECT id, attempt_id, worker_id, crashes, worker_id AS process,
               %(begun)s::bigint[] IS NULL OR id = ANY (%(begun)s) AS begun
        FROM holdfast.jobs
        WHERE worker_id = %(worker_id)s AND (%(ids)s::bigint[] IS NULL OR id = ANY (%(ids)s))
          AND (%(attempts)s::uuid[] IS NULL OR attempt_id = ANY (%(attempts)s))
    )""")

OVERDUE_GRACE = timedelta(seconds=30)


async def rescue(conn: psycopg.AsyncConnection[Any], *, limit: int = 20, actor: str = "rescue") -> list[JobId]:
    """Take the jobs of up to `limit` workers whose lease is over, and as many that run far beyond their longest time."""
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
    """Take the jobs of workers whose database session has ended for so long."""
    why = {"cause": "disconnected", "error": "the database session of its worker ended", "actor": actor, "grace": grace}
    rescued = await _rescue_each(conn, HOLD_DISCONNECTED, (HOLD_THEIR_JOBS, FORGET_SESSION), RESCUE, why, limit=limit)
    if rescued:
        crashpoint("reap.after")
    return rescued


async def _rescue_each(
    conn: psycopg.AsyncConnection[Any], find: str, before: Sequence[str], take: str, why: dict[str, Any], *, limit: int
) -> list[JobId]:
    """Take what `find` finds, each in a transaction of its own; one that fails is left for the next sweep."""
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
        except Exception as error:  # whatever it is, the jobs of the other workers do not wait for it
            if conn.broken or found is None:
                raise
            log.error("rescue_failed", holder=found, error=str(error) or type(error).__name__)
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
    begun: list[JobId] | None = None,
) -> list[JobId]:
    """Take the jobs of a worker that is known to be gone, with the cause of its death; or, where only one process of it
    died, just `jobs` of them, or just these `attempts`. `begun` says which of them had really begun, if that is known."""
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
