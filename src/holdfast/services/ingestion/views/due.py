"""What is due: emissions that do not include every change, statistics that are stale, pipelines that are active."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

import psycopg
from psycopg.rows import class_row

Conn = psycopg.AsyncConnection[Any]


@dataclass(frozen=True, slots=True)
class RecalculationStatus:
    """The emissions of one type and year, for a badge."""

    module: str
    det: str
    year: int
    status: Literal["up_to_date", "recalculating", "failed", "due"]
    changed_at: datetime
    recalculated_at: datetime | None
    job_id: int | None  # of the newest recalculation
    message: str | None


# The newest recalculation of each scope; its job may be of an older change.
STATUS = """
    SELECT t.module, t.name AS det, s.year,
           CASE WHEN names.state IN ('NOT_STARTED', 'RUNNING') THEN 'recalculating'
                WHEN s.changes <= s.recalculated THEN 'up_to_date'
                WHEN newest.result = 'ERROR' THEN 'failed' ELSE 'due' END AS status,
           s.changed_at, s.recalculated_at, newest.job_id, newest.message
    FROM holdfast.emission_scopes s JOIN holdfast.data_entry_types t ON t.id = s.det_id
    LEFT JOIN LATERAL (
        SELECT i.job_id, i.job_state, i.result, i.message FROM holdfast.ingestions i
        WHERE i.job_type = 'emission_recalc' AND (i.module, i.det, i.year) = (t.module, t.name, s.year)
        ORDER BY i.job_id DESC LIMIT 1) newest ON true
    LEFT JOIN holdfast.ingestion_states names ON names.job_state = newest.job_state
    WHERE (%(year)s::smallint IS NULL OR s.year = %(year)s) AND (%(module)s::text IS NULL OR t.module = %(module)s)
    ORDER BY s.year DESC, t.module, t.name LIMIT 1000
"""


async def recalculations(conn: Conn, *, year: int | None = None, module: str | None = None) -> list[RecalculationStatus]:
    """The status of every scope."""
    async with conn.cursor(row_factory=class_row(RecalculationStatus)) as cursor:
        await cursor.execute(STATUS, {"year": year, "module": module})
        return await cursor.fetchall()


@dataclass(frozen=True, slots=True)
class StaleStatistics:
    """Statistics that do not include every change, and why."""

    module: str
    det: str
    year: int
    reason: Literal["no_aggregation_ever", "pending_aggregation_stuck", "last_aggregation_failed", "last_aggregation_too_old"]
    changed_at: datetime
    aggregated_at: datetime | None


STALE = """
    SELECT t.module, t.name AS det, s.year, s.changed_at, s.aggregated_at,
           CASE WHEN newest.result = 'ERROR' THEN 'last_aggregation_failed'
                WHEN newest.finished_at IS NULL AND newest.job_id IS NOT NULL THEN 'pending_aggregation_stuck'
                WHEN s.aggregated_at IS NULL THEN 'no_aggregation_ever' ELSE 'last_aggregation_too_old' END AS reason
    FROM holdfast.emission_scopes s JOIN holdfast.data_entry_types t ON t.id = s.det_id
    LEFT JOIN LATERAL (
        SELECT i.job_id, i.result, i.finished_at FROM holdfast.ingestions i JOIN holdfast.jobs j ON j.id = i.job_id
        WHERE i.job_type = 'aggregation' AND i.year = s.year AND j.payload -> 'modules' ? t.module
        ORDER BY i.job_id DESC LIMIT 1) newest ON true
    WHERE s.changes > s.aggregated AND s.changed_at < clock_timestamp() - %(older_than)s::interval
    ORDER BY s.changed_at LIMIT 1000
"""


async def stale_statistics(conn: Conn, older_than: timedelta) -> list[StaleStatistics]:
    """Scopes whose last change is older than this and not in the statistics."""
    async with conn.cursor(row_factory=class_row(StaleStatistics)) as cursor:
        await cursor.execute(STALE, {"older_than": older_than})
        return await cursor.fetchall()


@dataclass(frozen=True, slots=True)
class ActivePipeline:
    """A pipeline that has not ended, with its progress in three phases: load, recalculate, aggregate."""

    pipeline_id: str
    job_type: str  # of its first job
    module: str | None
    year: int | None
    jobs: int
    finished: int
    errors: int
    phase: Literal["data", "emissions", "aggregation"]
    created_at: datetime


ACTIVE = """
    SELECT p.id::text AS pipeline_id, (array_agg(split_part(j.kind, '.', 2) ORDER BY j.id))[1] AS job_type,
           (array_agg(j.payload ->> 'module' ORDER BY j.id))[1] AS module,
           (array_agg((j.payload ->> 'year')::integer ORDER BY j.id))[1] AS year,
           count(*) AS jobs, count(*) FILTER (WHERE s.state = 'FINISHED') AS finished,
           count(*) FILTER (WHERE j.state IN ('failed', 'cancelled')) AS errors,
           CASE WHEN bool_or(s.state <> 'FINISHED' AND t.method <> 'computed') THEN 'data'
                WHEN bool_or(s.state <> 'FINISHED' AND t.job_type <> 'aggregation') THEN 'emissions'
                ELSE 'aggregation' END AS phase, p.created_at
    FROM holdfast.pipelines p JOIN holdfast.jobs j ON j.pipeline_id = p.id
    JOIN holdfast.ingestion_states s ON s.job_state = j.state
    JOIN holdfast.ingestion_job_types t ON t.job_type = split_part(j.kind, '.', 2)
    WHERE p.id IN (SELECT pipeline_id FROM holdfast.jobs
                   WHERE kind LIKE 'ingestion.%%' AND state IN ('blocked', 'pending', 'running', 'submitted'))
    GROUP BY p.id HAVING bool_or(s.state <> 'FINISHED') ORDER BY p.created_at DESC LIMIT 200
"""


async def active_pipelines(conn: Conn) -> list[ActivePipeline]:
    """Pipelines of ingestion that have not ended, newest first."""
    async with conn.cursor(row_factory=class_row(ActivePipeline)) as cursor:
        await cursor.execute(ACTIVE, {})
        return await cursor.fetchall()


@dataclass(frozen=True, slots=True)
class Statistic:
    """Emissions of one unit."""

    module: str
    det: str
    year: int
    unit: str
    emission_type: str
    entries: int
    kg: str


STATISTICS = """
    SELECT t.module, t.name AS det, s.year, s.unit_code AS unit, s.emission_type, s.entries, s.kg::text
    FROM holdfast.emission_stats s JOIN holdfast.data_entry_types t ON t.id = s.det_id
    WHERE s.year = %(year)s AND (%(module)s::text IS NULL OR t.module = %(module)s)
    ORDER BY t.module, t.name, s.unit_code, s.emission_type LIMIT 10000
"""


async def statistics(conn: Conn, year: int, module: str | None = None) -> list[Statistic]:
    """The aggregated emissions of a year."""
    async with conn.cursor(row_factory=class_row(Statistic)) as cursor:
        await cursor.execute(STATISTICS, {"year": year, "module": module})
        return await cursor.fetchall()
