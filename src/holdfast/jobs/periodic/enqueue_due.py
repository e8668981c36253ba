"""Enqueue periodic jobs at their due times. Called by: every worker together with `promote`, and the loop `promote`.

The schedule's row is locked, the job is inserted and the next due time is written in one transaction. Another process skips
the locked row, and finds the next due time afterwards. A process that dies leaves neither the job nor the new due time. The
idempotency key of the due time is a second guard: even a row that was set back by hand enqueues no due time twice.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, NamedTuple

import psycopg
from psycopg.rows import tuple_row

from holdfast.crashpoints import crashpoint
from holdfast.errors import Draining, HoldfastError, IdempotencyConflict
from holdfast.jobs import kinds
from holdfast.jobs.declare import requested_job
from holdfast.jobs.enqueue import enqueue
from holdfast.jobs.model import JobId, Json
from holdfast.jobs.periodic.active import ACTIVE
from holdfast.jobs.periodic.schedule import CatchUp, due_times, key_of, payload_at
from holdfast.telemetry.lazy_log import log

HOLD_DUE = f"""
    SELECT p.kind, p.every, p.cron, p.timezone, p.catch_up, p.payload, p.gives_due_at, p.next_due_at, clock_timestamp()
    FROM holdfast.periodic_jobs p WHERE {ACTIVE} AND p.next_due_at <= (SELECT clock_timestamp())
    ORDER BY p.next_due_at LIMIT 1 FOR UPDATE OF p SKIP LOCKED
"""
SET_ENQUEUED = """
    UPDATE holdfast.periodic_jobs
    SET next_due_at = %(next_due_at)s, missed = missed + %(missed)s, last_error = %(error)s,
        last_due_at = coalesce(%(due_at)s, last_due_at), last_job_id = coalesce(%(job_id)s, last_job_id),
        last_enqueued_at = CASE WHEN %(job_id)s::bigint IS NULL THEN last_enqueued_at ELSE clock_timestamp() END
    WHERE kind = %(kind)s
"""
# SQLSTATE classes that concern the values of one job: data, constraints, limits of Postgres, triggers. Other errors concern
# every job, such as a missing right: then nothing is written, and the due time waits.
ABOUT_THIS_JOB = ("22", "23", "54", "P0")


class _Row(NamedTuple):
    kind: str
    every: timedelta | None
    cron: str | None
    timezone: str
    catch_up: CatchUp
    payload: dict[str, Json]
    gives_due_at: bool
    next_due_at: datetime
    now: datetime


async def enqueue_due(conn: psycopg.AsyncConnection[Any], *, most: int = 100) -> list[JobId]:
    """Enqueue what is due, at most `most` schedules, each in a transaction; the jobs."""
    jobs: list[JobId] = []
    for _ in range(most):
        try:
            made = await _enqueue_one(conn)
        except Draining:  # since the row was read: nothing is written, and the next query does not find the row
            continue
        if made is None:
            break
        jobs += made
    return jobs


async def _enqueue_one(conn: psycopg.AsyncConnection[Any]) -> list[JobId] | None:
    """The jobs of one schedule; None: nothing is due, or other processes have it."""
    async with conn.transaction():
        async with conn.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(HOLD_DUE)
            found = await cursor.fetchone()
        if found is None:
            return None
        row = _Row._make(found)
        due = due_times(row, row.catch_up, row.next_due_at, row.now)
        jobs: list[JobId] = []
        error: str | None = None
        for due_at in due.times:
            job_id, error = await _enqueue_at(conn, row, due_at)
            jobs += [job_id] if job_id is not None else []
        crashpoint("periodic.in_tx_after_enqueue")
        await conn.execute(SET_ENQUEUED, {
            "kind": row.kind, "next_due_at": due.next_due_at, "missed": due.missed, "error": error,
            "due_at": due.times[-1] if due.times else None, "job_id": jobs[-1] if jobs else None,
        })  # fmt: skip
    crashpoint("periodic.after_commit")
    if due.missed:
        log.warning("periodic_due_times_missed", kind=row.kind, missed=due.missed, catch_up=row.catch_up)
    return jobs


async def _enqueue_at(conn: psycopg.AsyncConnection[Any], row: _Row, due_at: datetime) -> tuple[JobId | None, str | None]:
    """Enqueue one due time. One that is refused, by a lock or by the database, must not stop those after it: its error is
    stored."""
    try:
        async with conn.transaction():
            return await enqueue_at(conn, row.kind, row.payload, row.gives_due_at, due_at, key_of(due_at)), None
    except IdempotencyConflict as conflict:  # this due time was enqueued before, with other arguments
        return JobId(conflict.job_id), None
    except Draining:
        raise
    except (HoldfastError, psycopg.Error) as error:
        if isinstance(error, psycopg.Error) and not (error.sqlstate or "").startswith(ABOUT_THIS_JOB):
            raise
        log.error("periodic_job_not_enqueued", kind=row.kind, due_at=due_at.isoformat(), error=str(error))
        return None, f"the run due at {due_at.isoformat()} was not enqueued: {error}"


async def enqueue_at(
    conn: psycopg.AsyncConnection[Any], kind: str, payload: dict[str, Json], gives_due_at: bool, due_at: datetime, key: str
) -> JobId:
    """Enqueue the run of a due time as the kind's newest declaration says."""
    declared = await kinds.require(conn, kind)
    job = requested_job(declared, payload_at(payload, gives_due_at, due_at), {"idempotency_key": key})
    return (await enqueue(conn, job)).id
