"""What operators do to a periodic job: pause it, resume it, run it now. Called by: the API, the command line and the client."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

import psycopg
from psycopg.rows import tuple_row

from holdfast.errors import Refused
from holdfast.jobs.model import JobId
from holdfast.jobs.payload import refuse_bad_word
from holdfast.jobs.periodic.enqueue_due import enqueue_at
from holdfast.jobs.periodic.read import not_found
from holdfast.jobs.periodic.schedule import key_of
from holdfast.telemetry.lazy_log import log
from holdfast.timetable.due_times import next_due

PAUSE = """
    UPDATE holdfast.periodic_jobs SET paused_at = coalesce(paused_at, clock_timestamp()), paused_by = %(actor)s,
        paused_reason = %(reason)s
    WHERE kind = %(kind)s RETURNING kind
"""


async def pause(conn: psycopg.AsyncConnection[Any], kind: str, *, actor: str, reason: str | None = None) -> None:
    """Enqueue no more due times of this kind until it is resumed. Its jobs that exist are not changed."""
    refuse_bad_word(actor, reason)
    async with conn.transaction(), conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(PAUSE, {"kind": kind, "actor": actor, "reason": reason})
        if await cursor.fetchone() is None:
            raise await not_found(cursor, kind)


class _Timetable(NamedTuple):
    every: Any
    cron: str | None
    timezone: str


HOLD_PAUSED = """
    SELECT paused_at IS NOT NULL, next_due_at, clock_timestamp(), every, cron, timezone
    FROM holdfast.periodic_jobs WHERE kind = %(kind)s FOR UPDATE
"""
RESUME = """
    UPDATE holdfast.periodic_jobs SET paused_at = NULL, paused_by = NULL, paused_reason = NULL, next_due_at = %(next_due_at)s
    WHERE kind = %(kind)s RETURNING pg_notify('holdfast', '@')
"""


async def resume(conn: psycopg.AsyncConnection[Any], kind: str) -> bool:
    """Continue with the first due time after now: those that passed during the pause are not enqueued. False: not paused."""
    async with conn.transaction(), conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(HOLD_PAUSED, {"kind": kind})
        row = await cursor.fetchone()
        if row is None:
            raise await not_found(cursor, kind)
        is_paused, next_due_at, now, *timetable = row
        if is_paused:
            if next_due_at <= now:
                next_due_at = next_due(_Timetable(*timetable), now, since=next_due_at)
            await cursor.execute(RESUME, {"kind": kind, "next_due_at": next_due_at})
        return bool(is_paused)


class Run(NamedTuple):
    """A run that an operator asked for."""

    job_id: JobId
    kind: str
    at: datetime


HOLD = """
    SELECT payload, gives_due_at, disabled_at IS NOT NULL, clock_timestamp()
    FROM holdfast.periodic_jobs WHERE kind = %(kind)s FOR UPDATE
"""
SET_RUN = """
    UPDATE holdfast.periodic_jobs SET last_job_id = %(job_id)s, last_enqueued_at = %(at)s, last_due_at = %(at)s
    WHERE kind = %(kind)s
"""


async def run_now(conn: psycopg.AsyncConnection[Any], kind: str, *, actor: str, reason: str | None = None) -> Run:
    """Enqueue a run now, with now as its due time. The schedule continues unchanged; a paused one runs when asked."""
    refuse_bad_word(actor, reason)
    async with conn.transaction(), conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(HOLD, {"kind": kind})
        row = await cursor.fetchone()
        if row is None:
            raise await not_found(cursor, kind)
        payload, gives_due_at, is_disabled, now = row
        if is_disabled:
            raise Refused(f"{kind} declares no schedule any more; enqueue it as any other job: `holdfast job enqueue {kind}`")
        job_id = await enqueue_at(conn, kind, payload, gives_due_at, now, f"{key_of(now)}:manual")
        await cursor.execute(SET_RUN, {"kind": kind, "job_id": job_id, "at": now})
    log.info("manual_job_trigger", job_name=kind, triggered_by=actor, reason=reason, job_id=job_id)
    return Run(job_id, kind, now)
