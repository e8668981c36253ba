"""Store the schedules that kinds declare. Called by: `kinds.publish`, when a worker starts.

The last worker that starts decides, as for every declaration of a kind. A kind that declares no schedule any more keeps
its row: it is disabled, and lists show it as such.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import tuple_row
from psycopg.types.json import Jsonb

from holdfast.jobs.model import Json
from holdfast.jobs.periodic.schedule import Schedule, from_json
from holdfast.telemetry.lazy_log import log
from holdfast.timetable.due_times import next_due

READ = """
    SELECT kind, every, cron, timezone, catch_up, payload, gives_due_at, disabled_at IS NOT NULL, clock_timestamp()
    FROM holdfast.periodic_jobs WHERE kind = ANY (%(kinds)s)
"""
# Other workers learn of the due time from '@', which makes them send a heartbeat. A row that has a new timetable, or that was
# disabled, begins anew: the first due time is after now.
STORE = """
    INSERT INTO holdfast.periodic_jobs AS p (kind, every, cron, timezone, catch_up, payload, gives_due_at, next_due_at,
        published_by)
    VALUES (%(kind)s, %(every)s, %(cron)s, %(timezone)s, %(catch_up)s, %(payload)s, %(gives_due_at)s,
        %(next_due_at)s, %(worker)s)
    ON CONFLICT (kind) DO UPDATE
    SET every = excluded.every, cron = excluded.cron, timezone = excluded.timezone, catch_up = excluded.catch_up,
        payload = excluded.payload, gives_due_at = excluded.gives_due_at,
        next_due_at = CASE WHEN p.disabled_at IS NOT NULL
                        OR (p.every, p.cron, p.timezone) IS DISTINCT FROM (excluded.every, excluded.cron, excluded.timezone)
                           THEN excluded.next_due_at ELSE p.next_due_at END,
        disabled_at = NULL, published_at = clock_timestamp(), published_by = excluded.published_by
    RETURNING pg_notify('holdfast', '@')
"""
DISABLE = """
    UPDATE holdfast.periodic_jobs SET disabled_at = clock_timestamp(), published_by = %(worker)s
    WHERE kind = ANY (%(kinds)s) AND disabled_at IS NULL RETURNING kind
"""
NOW = "SELECT clock_timestamp()"


async def publish_schedules(conn: psycopg.AsyncConnection[Any], declared: Sequence[Mapping[str, Json]], *, worker: str) -> None:
    """Make the rows what these declarations say. Most starts change nothing, and then nothing is written."""
    schedules = {one["kind"]: from_json(one["periodic"]) for one in declared if one.get("periodic")}
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(READ, {"kinds": [one["kind"] for one in declared]})
        rows = await cursor.fetchall()
        stored = {kind: None if disabled else Schedule(*columns) for kind, *columns, disabled, _ in rows}
        removed = sorted(kind for kind, schedule in stored.items() if schedule is not None and kind not in schedules)
        changed = {kind: one for kind, one in sorted(schedules.items()) if stored.get(kind) != one}
        now = await _now(cursor) if changed else None
        for kind, schedule in changed.items():
            assert now is not None
            await cursor.execute(STORE, _parameters(kind, schedule, next_due(schedule, now), worker))
            log.info("periodic_job_declared", kind=kind, every=str(schedule.every) if schedule.every else None,
                     cron=schedule.cron, timezone=schedule.timezone)  # fmt: skip
        if removed:
            await cursor.execute(DISABLE, {"kinds": removed, "worker": worker})
            for (kind,) in await cursor.fetchall():
                log.warning("periodic_job_disabled", kind=kind, worker=worker)


async def _now(cursor: psycopg.AsyncCursor[tuple[Any, ...]]) -> datetime:
    await cursor.execute(NOW)
    ((now,),) = await cursor.fetchall()
    return now  # type: ignore[no-any-return]


def _parameters(kind: str, schedule: Schedule, next_due_at: datetime, worker: str) -> dict[str, Any]:
    return {
        "kind": kind,
        "every": schedule.every,
        "cron": schedule.cron,
        "timezone": schedule.timezone,
        "catch_up": schedule.catch_up,
        "payload": Jsonb(dict(schedule.payload)),
        "gives_due_at": schedule.gives_due_at,
        "next_due_at": next_due_at,
        "worker": worker,
    }
