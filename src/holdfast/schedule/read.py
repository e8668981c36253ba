"""Read loops and their runs. Called by: the scheduler's polls, the API, the command line."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import psycopg
from psycopg.rows import class_row

from holdfast.errors import NotFound

UNHEALTHY_AFTER = 3  # failures, one after another


@dataclass(frozen=True, slots=True)
class LoopView:
    """A loop's row."""

    name: str
    every: timedelta | None
    cron: str | None
    timezone: str
    now: datetime
    next_due_at: datetime
    retry_at: datetime | None  # a run before the next tick, because the last one failed
    wait: timedelta | None  # until there is something to do; None: paused, and no manual run is queued
    term: int
    holder: str | None
    held_until: datetime | None
    queued_run_id: int | None
    failures: int
    last_started_at: datetime | None
    last_finished_at: datetime | None
    last_success_at: datetime | None
    last_outcome: str | None
    last_error: str | None
    paused_at: datetime | None
    paused_by: str | None
    paused_reason: str | None

    @property
    def is_healthy(self) -> bool:
        """False after 3 failures one after another."""
        return self.failures < UNHEALTHY_AFTER

    @property
    def status(self) -> str:
        """running, paused, waiting or unhealthy."""
        if self.holder is not None:
            return "running"
        if self.paused_at is not None:
            return "paused"
        return "waiting" if self.is_healthy else "unhealthy"


def loop_fields(loop: LoopView) -> dict[str, Any]:
    """A loop as the API and the command line show it. Pure."""
    return {
        "job_name": loop.name,
        "type": "loop",
        "status": loop.status,
        "healthy": loop.is_healthy,
        "next_run": None if loop.paused_at is not None else min(loop.next_due_at, loop.retry_at or loop.next_due_at),
        "retry_at": loop.retry_at,
        "last_run": loop.last_started_at,
        "last_success": loop.last_success_at,
        "last_outcome": loop.last_outcome,
        "last_error": loop.last_error,
        "consecutive_failures": loop.failures,
        "holder": loop.holder,
        "interval_seconds": None if loop.every is None else loop.every.total_seconds(),
        "cron": loop.cron,
        "timezone": loop.timezone,
        "catch_up": None,
        "next_runs": [] if loop.paused_at is not None else [loop.next_due_at],
        "last_job_id": None,
        "missed": 0,
        "workers": None,
        "paused": loop.paused_at is not None,
        "paused_by": loop.paused_by,
        "paused_reason": loop.paused_reason,
    }


READ_LOOPS = """
    SELECT name, every, cron, timezone, clock_timestamp() AS now, next_due_at, retry_at, term, holder, held_until,
           queued_run_id, failures, last_started_at, last_finished_at, last_success_at, last_outcome, last_error,
           paused_at, paused_by, paused_reason,
           CASE WHEN held_until IS NOT NULL THEN greatest(held_until - clock_timestamp(), interval '0')
                WHEN queued_run_id IS NOT NULL THEN interval '0'
                WHEN paused_at IS NULL THEN greatest(least(next_due_at, retry_at) - clock_timestamp(), interval '0') END AS wait
    FROM holdfast.loops WHERE %(name)s::text IS NULL OR name = %(name)s ORDER BY name
"""


async def list_loops(conn: psycopg.AsyncConnection[Any]) -> list[LoopView]:
    """Every loop, by name."""
    async with conn.cursor(row_factory=class_row(LoopView)) as cursor:
        await cursor.execute(READ_LOOPS, {"name": None})
        return await cursor.fetchall()


async def get_loop(conn: psycopg.AsyncConnection[Any], name: str) -> LoopView:
    """One loop."""
    async with conn.cursor(row_factory=class_row(LoopView)) as cursor:
        await cursor.execute(READ_LOOPS, {"name": name})
        found = await cursor.fetchone()
    if found is None:
        raise NotFound(f"there is no loop {name!r}; `holdfast periodic list` names them")
    return found


@dataclass(frozen=True, slots=True)
class RunView:
    """One run of a loop."""

    id: int
    name: str
    trigger: str
    due_at: datetime | None
    tries: int
    actor: str | None
    reason: str | None
    term: int | None
    holder: str | None
    queued_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    outcome: str
    items: int
    failed_items: int
    skipped_items: int
    error: str | None

    @property
    def took(self) -> timedelta | None:
        """The duration."""
        return self.finished_at - self.started_at if self.finished_at and self.started_at else None


RUN_COLUMNS = """id, name, trigger, due_at, tries, actor, reason, term, holder, queued_at, started_at, finished_at, outcome,
    items, failed_items, skipped_items, error"""
READ_RUNS = f"""
    SELECT {RUN_COLUMNS} FROM holdfast.loop_runs
    WHERE name = %(name)s AND (%(before)s::bigint IS NULL OR id < %(before)s) ORDER BY id DESC LIMIT %(limit)s
"""
READ_RUN = f"SELECT {RUN_COLUMNS} FROM holdfast.loop_runs WHERE id = %(id)s"


async def list_runs(
    conn: psycopg.AsyncConnection[Any], name: str, *, limit: int = 20, before: int | None = None
) -> list[RunView]:
    """The runs of a loop, newest first; `before` is the id of the last one of the page before."""
    async with conn.cursor(row_factory=class_row(RunView)) as cursor:
        await cursor.execute(READ_RUNS, {"name": name, "limit": limit, "before": before})
        return await cursor.fetchall()


async def get_run(conn: psycopg.AsyncConnection[Any], run_id: int) -> RunView:
    """One run, such as the one that `trigger` has queued."""
    async with conn.cursor(row_factory=class_row(RunView)) as cursor:
        await cursor.execute(READ_RUN, {"id": run_id})
        found = await cursor.fetchone()
    if found is None:
        raise NotFound(f"there is no run {run_id}; it may have been pruned")
    return found
