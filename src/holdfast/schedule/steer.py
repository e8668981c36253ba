"""Run a loop now, pause it, resume it. Called by: the API and the command line."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from holdfast.errors import NotFound, Refused, TriggeredTooOften
from holdfast.telemetry.log import log

ONCE_PER = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Queued:
    """A run that begins with the next poll of a scheduler; `get_run(run_id)` reads its state."""

    run_id: int
    name: str
    triggered_at: datetime
    triggered_by: str
    reason: str


LOCK_LOOP = """
    SELECT queued_run_id, extract(epoch FROM triggered_at + %(once_per)s - clock_timestamp())::float
    FROM holdfast.loops WHERE name = %(name)s FOR UPDATE
"""
QUEUE_RUN = """
    WITH run AS (
        INSERT INTO holdfast.loop_runs (name, trigger, actor, reason, outcome)
        VALUES (%(name)s, 'manual', %(actor)s, %(reason)s, 'queued') RETURNING id, queued_at
    )
    UPDATE holdfast.loops SET queued_run_id = run.id, triggered_at = clock_timestamp()
    FROM run WHERE name = %(name)s
    RETURNING run.id, run.queued_at
"""


async def trigger(conn: psycopg.AsyncConnection[Any], name: str, *, actor: str, reason: str) -> Queued:
    """Queue a run for now. It takes the same row as the schedule, so the two never overlap, and moves no due time.

    At most once a minute for each loop; `TriggeredTooOften` says how long to wait. A paused loop runs, too.
    """
    async with conn.transaction(), conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(LOCK_LOOP, {"name": name, "once_per": ONCE_PER})
        found = await cursor.fetchone()
        if found is None:
            raise await _not_found(cursor, name)
        queued_run_id, seconds = found
        if seconds is not None and seconds > 0:
            raise TriggeredTooOften(name, math.ceil(seconds))
        if queued_run_id is not None:
            raise Refused(f"run {queued_run_id} of {name} is still queued; check that a scheduler with this loop runs")
        await cursor.execute(QUEUE_RUN, {"name": name, "actor": actor, "reason": reason})
        row = await cursor.fetchone()
        assert row is not None
    log.info("manual_job_trigger", job_name=name, triggered_by=actor, reason=reason, run_id=row[0])
    return Queued(row[0], name, row[1], actor, reason)


PAUSE = """
    UPDATE holdfast.loops SET paused_at = coalesce(paused_at, clock_timestamp()), paused_by = %(actor)s,
        paused_reason = %(reason)s
    WHERE name = %(name)s RETURNING name
"""
RESUME = """
    WITH paused AS (SELECT name, paused_at FROM holdfast.loops WHERE name = %(name)s FOR UPDATE)
    UPDATE holdfast.loops l SET paused_at = NULL, paused_by = NULL, paused_reason = NULL
    FROM paused WHERE l.name = paused.name
    RETURNING paused.paused_at IS NOT NULL
"""


async def pause(conn: psycopg.AsyncConnection[Any], name: str, *, actor: str, reason: str | None = None) -> None:
    """Begin no more ticks of this loop until it is resumed. A running pass continues to its end."""
    async with conn.transaction(), conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(PAUSE, {"name": name, "actor": actor, "reason": reason})
        if await cursor.fetchone() is None:
            raise await _not_found(cursor, name)


async def resume(conn: psycopg.AsyncConnection[Any], name: str) -> bool:
    """Continue the schedule with the next tick, without those that were missed. Returns whether it was paused."""
    async with conn.transaction(), conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(RESUME, {"name": name})
        row = await cursor.fetchone()
        if row is None:
            raise await _not_found(cursor, name)
        return bool(row[0])


async def _not_found(cursor: psycopg.AsyncCursor[Any], name: str) -> NotFound:
    await cursor.execute("SELECT name FROM holdfast.loops ORDER BY name")
    known = ", ".join(row[0] for row in await cursor.fetchall()) or "none; start a scheduler first"
    return NotFound(f"there is no loop {name!r}; there are: {known}")
