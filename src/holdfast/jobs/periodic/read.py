"""Periodic jobs and their runs for people. Called by: the API, the command line and the client. Changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import psycopg
from psycopg.rows import class_row, tuple_row

from holdfast.errors import NotFound
from holdfast.jobs.model import Json
from holdfast.jobs.periodic.schedule import PREFIX
from holdfast.jobs.states import State
from holdfast.timetable.due_times import next_due

MOST_SHOWN = 5  # of the next due times


@dataclass(frozen=True, slots=True)
class PeriodicJob:
    """A periodic job: its schedule, its next due time, and its last run."""

    kind: str
    every: timedelta | None
    cron: str | None
    timezone: str
    catch_up: str
    payload: dict[str, Json]
    next_due_at: datetime
    missed: int
    last_due_at: datetime | None
    last_enqueued_at: datetime | None
    last_job_id: int | None
    last_state: str | None  # of the last job; None: there was none, or it was pruned
    last_result: Json
    last_error: str | None  # of the last job, or why it could not be enqueued
    disabled_at: datetime | None
    paused_at: datetime | None
    paused_by: str | None
    paused_reason: str | None
    published_at: datetime
    published_by: str
    workers: int  # alive, that can run this kind
    is_drained: bool

    @property
    def status(self) -> str:
        """`waiting`, `paused`, `drained`, `no worker`, or `disabled`: no worker declares the schedule any more."""
        if self.disabled_at is not None:
            return "disabled"
        if self.paused_at is not None:
            return "paused"
        if self.is_drained:
            return "drained"
        return "waiting" if self.workers else "no worker"

    def next_runs(self, count: int = MOST_SHOWN) -> list[datetime]:
        """The next due times; none while it is paused or disabled."""
        if self.disabled_at is not None or self.paused_at is not None:
            return []
        times = [self.next_due_at]
        while len(times) < count:
            times.append(next_due(self, times[-1], since=times[-1]))
        return times


def periodic_fields(job: PeriodicJob) -> dict[str, Any]:
    """A periodic job as the API and the command line show it. Pure.

    A job that failed, or a due time that was refused, makes it unhealthy.
    """
    failed = job.last_state == State.FAILED or (job.last_error is not None and job.last_state != State.COMPLETED)
    completed = job.last_state == State.COMPLETED
    following = job.next_runs()
    return {
        "job_name": job.kind,
        "type": "job",
        "status": job.status,
        "healthy": not failed,
        "next_run": following[0] if following else None,
        "retry_at": None,
        "last_run": job.last_enqueued_at,
        "last_success": job.last_enqueued_at if completed else None,
        "last_outcome": job.last_state,
        "last_error": job.last_error,
        "consecutive_failures": 1 if failed else 0,
        "holder": None,
        "interval_seconds": None if job.every is None else job.every.total_seconds(),
        "cron": job.cron,
        "timezone": job.timezone,
        "catch_up": job.catch_up,
        "next_runs": following,
        "last_job_id": job.last_job_id,
        "missed": job.missed,
        "workers": job.workers,
        "paused": job.paused_at is not None,
        "paused_by": job.paused_by,
        "paused_reason": job.paused_reason,
    }


READ = """
    SELECT p.kind, p.every, p.cron, p.timezone, p.catch_up, p.payload, p.next_due_at, p.missed, p.last_due_at,
           p.last_enqueued_at, p.last_job_id, j.state AS last_state, j.result AS last_result,
           coalesce(p.last_error, j.error) AS last_error, p.disabled_at, p.paused_at, p.paused_by, p.paused_reason,
           p.published_at, p.published_by,
           (SELECT count(*) FROM holdfast.workers w WHERE w.stopped_at IS NULL AND w.lease_until > clock_timestamp()
            AND w.kinds ? p.kind) AS workers,
           EXISTS (SELECT FROM holdfast.controls c WHERE c.kind IN (p.kind, '*') AND c.drained_at IS NOT NULL) AS is_drained
    FROM holdfast.periodic_jobs p LEFT JOIN holdfast.jobs j ON j.id = p.last_job_id
    WHERE %(kind)s::text IS NULL OR p.kind = %(kind)s ORDER BY p.kind
"""


async def list_periodic(conn: psycopg.AsyncConnection[Any]) -> list[PeriodicJob]:
    """Every periodic job, by kind."""
    async with conn.cursor(row_factory=class_row(PeriodicJob)) as cursor:
        await cursor.execute(READ, {"kind": None})
        return await cursor.fetchall()


async def find_periodic(conn: psycopg.AsyncConnection[Any], kind: str) -> PeriodicJob | None:
    """One periodic job, or None."""
    async with conn.cursor(row_factory=class_row(PeriodicJob)) as cursor:
        await cursor.execute(READ, {"kind": kind})
        return await cursor.fetchone()


async def get_periodic(conn: psycopg.AsyncConnection[Any], kind: str) -> PeriodicJob:
    """One periodic job, or `NotFound`."""
    found = await find_periodic(conn, kind)
    if found is None:
        async with conn.cursor(row_factory=tuple_row) as cursor:
            raise await not_found(cursor, kind)
    return found


async def not_found(cursor: psycopg.AsyncCursor[Any], kind: str) -> NotFound:
    """The error for a kind without a schedule, with those that have one."""
    await cursor.execute("SELECT kind FROM holdfast.periodic_jobs ORDER BY kind LIMIT 20")
    known = ", ".join(row[0] for row in await cursor.fetchall()) or "none"
    return NotFound(f"no worker has published a schedule for the kind {kind!r}; periodic jobs: {known}")


@dataclass(frozen=True, slots=True)
class PeriodicRun:
    """A job that a schedule, or an operator, enqueued."""

    job_id: int
    kind: str
    trigger: str  # schedule or manual
    due_at: datetime
    state: str
    created_at: datetime
    claimed_at: datetime | None
    finished_at: datetime | None
    error: str | None


# By the unique index on (kind, idempotency_key).
READ_RUNS = """
    SELECT id AS job_id, kind, CASE WHEN idempotency_key LIKE '%%:manual' THEN 'manual' ELSE 'schedule' END AS trigger,
           substr(idempotency_key, length(%(prefix)s) + 1, 27)::timestamptz AS due_at, state, created_at, claimed_at,
           finished_at, error
    FROM holdfast.jobs
    WHERE kind = %(kind)s AND idempotency_key LIKE %(prefix)s || '%%' AND (%(before)s::bigint IS NULL OR id < %(before)s)
    ORDER BY id DESC LIMIT %(limit)s
"""


async def list_runs(
    conn: psycopg.AsyncConnection[Any], kind: str, *, limit: int = 20, before: int | None = None
) -> list[PeriodicRun]:
    """The runs of a periodic job that have not been pruned, newest first; `before`: the last job id of the previous page."""
    async with conn.cursor(row_factory=class_row(PeriodicRun)) as cursor:
        await cursor.execute(READ_RUNS, {"kind": kind, "prefix": PREFIX, "limit": limit, "before": before})
        return await cursor.fetchall()
