"""Read maintenance runs: one with its actions, and the history of a table. Called by: the API and the pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import class_row, tuple_row

from holdfast.errors import NotFound
from holdfast.services.maintenance.engines.interface import TableRef
from holdfast.services.maintenance.savings import Prices, Saved, saved_by

Conn = psycopg.AsyncConnection[Any]


@dataclass(frozen=True, slots=True)
class ActionView:
    """One action of a run, with its figures before and after."""

    position: int
    action: str
    parameters: dict[str, Any]
    status: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    details: dict[str, Any]
    engine_seconds: float
    error: str | None
    error_code: str | None
    started_at: datetime | None
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run as it is stored, with the progress of its job while there is one."""

    job_id: int
    catalog: str
    namespace: str
    name: str
    engine: str
    dry_run: bool
    requested_by: str
    reason: str | None
    policy: str | None
    due_at: datetime | None
    not_after: datetime | None
    state: str
    error: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    attempt_no: int | None
    progress: float | None
    message: str | None
    cancel_requested_at: datetime | None


@dataclass(frozen=True, slots=True)
class RunView:
    """A maintenance run: the state of its job, a result for each action, and what it saved.

    `outcome` is the state, or `partial` if the run has ended and some of its actions completed and others did not.
    """

    job_id: int
    table: str
    catalog: str
    database: str
    name: str
    engine: str
    dry_run: bool
    state: str
    outcome: str
    error: str | None
    requested_by: str
    reason: str | None
    policy: str | None
    due_at: datetime | None
    not_after: datetime | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    attempt_no: int | None
    progress: float | None
    message: str | None
    cancel_requested_at: datetime | None
    actions: list[ActionView]
    saved: Saved | None


COLUMNS = """
    r.job_id, r.catalog, r.namespace, r.name, r.engine, r.dry_run, r.requested_by, r.reason, r.policy, r.due_at, r.not_after,
    r.state, r.error, r.created_at, r.started_at, r.finished_at, j.attempt_no, j.progress, j.message, j.cancel_requested_at
"""
GET = f"""
    SELECT {COLUMNS} FROM holdfast.maintenance_runs r LEFT JOIN holdfast.jobs j ON j.id = r.job_id WHERE r.job_id = %(job_id)s
"""
HISTORY = f"""
    SELECT {COLUMNS} FROM holdfast.maintenance_runs r LEFT JOIN holdfast.jobs j ON j.id = r.job_id
    WHERE r.catalog = %(catalog)s AND r.namespace = %(namespace)s AND r.name = %(name)s
      AND (%(before)s::bigint IS NULL OR r.job_id < %(before)s)
    ORDER BY r.job_id DESC LIMIT %(limit)s
"""
ACTIONS = """
    SELECT job_id, position, action, parameters, status, before, after, details, engine_seconds, error, error_code, started_at,
        finished_at
    FROM holdfast.maintenance_actions WHERE job_id = ANY (%(jobs)s) ORDER BY job_id, position
"""


async def get(conn: Conn, job_id: int, prices: Prices) -> RunView:
    """One run with its actions."""
    async with conn.cursor(row_factory=class_row(RunRow)) as cursor:
        await cursor.execute(GET, {"job_id": job_id})
        row = await cursor.fetchone()
    if row is None:
        raise NotFound(f"there is no maintenance run of job {job_id}")
    return (await _with_actions(conn, [row], prices))[0]


async def history(conn: Conn, table: TableRef, prices: Prices, *, limit: int, before: int | None = None) -> list[RunView]:
    """The runs of a table, newest first, one more than `limit`."""
    parameters = {
        "catalog": table.catalog,
        "namespace": table.namespace,
        "name": table.name,
        "before": before,
        "limit": limit + 1,
    }
    async with conn.cursor(row_factory=class_row(RunRow)) as cursor:
        await cursor.execute(HISTORY, parameters)
        rows = await cursor.fetchall()
    return await _with_actions(conn, rows, prices)


async def _with_actions(conn: Conn, rows: list[RunRow], prices: Prices) -> list[RunView]:
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(ACTIONS, {"jobs": [row.job_id for row in rows]})
        found = await cursor.fetchall()
    return [view_of(row, [ActionView(*one[1:]) for one in found if one[0] == row.job_id], prices) for row in rows]


def view_of(row: RunRow, actions: list[ActionView], prices: Prices) -> RunView:
    """A run for people. Pure."""
    ended = row.state in ("completed", "failed", "cancelled")
    statuses = {one.status for one in actions}
    outcome = "partial" if ended and "completed" in statuses and len(statuses) > 1 else row.state
    return RunView(
        job_id=row.job_id,
        table=str(TableRef(row.catalog, row.namespace, row.name)),
        catalog=row.catalog,
        database=row.namespace,
        name=row.name,
        engine=row.engine,
        dry_run=row.dry_run,
        state=row.state,
        outcome=outcome,
        error=row.error,
        requested_by=row.requested_by,
        reason=row.reason,
        policy=row.policy,
        due_at=row.due_at,
        not_after=row.not_after,
        created_at=row.created_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        attempt_no=row.attempt_no,
        progress=row.progress,
        message=row.message,
        cancel_requested_at=row.cancel_requested_at,
        actions=actions,
        saved=None if row.dry_run else saved_by([one for one in actions if one.before is not None], prices),
    )


RUNNING = "SELECT job_id, action FROM holdfast.maintenance_actions WHERE job_id = ANY (%(jobs)s) AND status = 'running'"


async def running_actions(conn: Conn, jobs: Sequence[int]) -> dict[int, str]:
    """The action that each of these jobs is at, if it has begun one."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(RUNNING, {"jobs": list(jobs)})
        return dict(await cursor.fetchall())


COUNT_OPEN = """
    SELECT state, count(*) FROM (
        SELECT state FROM holdfast.maintenance_runs WHERE finished_at IS NULL ORDER BY job_id LIMIT 10000) AS open
    GROUP BY state
"""


async def count_open(conn: Conn) -> dict[str, int]:
    """How many runs have not ended, by state, up to 10,000."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(COUNT_OPEN)
        return dict(await cursor.fetchall())


PRUNE = "DELETE FROM holdfast.maintenance_runs WHERE finished_at < clock_timestamp() - %(older_than)s::interval"


async def prune(conn: Conn, older_than: Any) -> int:
    """Delete runs that ended long ago, with their actions."""
    return (await conn.execute(PRUNE, {"older_than": older_than})).rowcount
