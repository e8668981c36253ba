"""Ingestion jobs in the words of the documents: state NOT_STARTED, RUNNING or FINISHED, and a result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import psycopg
from psycopg.rows import class_row

from holdfast.errors import NotFound

Conn = psycopg.AsyncConnection[Any]
DocumentState = Literal["NOT_STARTED", "QUEUED", "RUNNING", "FINISHED"]
DocumentResult = Literal["SUCCESS", "WARNING", "ERROR"]


@dataclass(frozen=True, slots=True)
class Run:
    """One ingestion job. `progress` and `is_current` are those of its job and null after the job was pruned."""

    job_id: int
    job_type: str
    pipeline_id: str | None
    module: str | None
    det: str | None
    year: int | None
    target_type: str
    ingestion_method: str
    state: str
    result: str | None
    status_message: str | None
    is_dry_run: bool
    file_id: int | None
    requested_by: str | None
    outcome: dict[str, Any] | None
    progress: float | None
    is_current: bool | None
    attempts: int | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


SELECT = """
    SELECT i.job_id, i.job_type, i.pipeline_id::text, i.module, i.det, i.year, t.target AS target_type,
           t.method AS ingestion_method, s.state, i.result,
           CASE WHEN s.state = 'RUNNING' THEN coalesce(j.message, i.message) ELSE i.message END AS status_message,
           i.is_dry_run, i.file_id, i.requested_by, i.outcome,
           CASE WHEN s.state = 'FINISHED' THEN 1 ELSE j.progress END AS progress, j.is_current, j.attempt_no AS attempts,
           i.created_at, i.started_at, i.finished_at
    FROM holdfast.ingestions i JOIN holdfast.ingestion_states s USING (job_state)
    JOIN holdfast.ingestion_job_types t USING (job_type) LEFT JOIN holdfast.jobs j ON j.id = i.job_id
"""
GET = f"{SELECT} WHERE i.job_id = ANY (%(ids)s)"


async def several(conn: Conn, job_ids: Sequence[int]) -> dict[int, Run]:
    """These jobs, by their ids; one that does not exist is left out."""
    async with conn.cursor(row_factory=class_row(Run)) as cursor:
        await cursor.execute(GET, {"ids": list(job_ids)})
        return {run.job_id: run for run in await cursor.fetchall()}


async def get(conn: Conn, job_id: int) -> Run:
    """One job."""
    found = (await several(conn, [job_id])).get(job_id)
    if found is None:
        raise NotFound(f"there is no ingestion job {job_id}")
    return found


@dataclass(frozen=True, slots=True)
class WaitingStep:
    """A job of a pipeline that was never claimed, so that it has no record of its own yet."""

    job_id: int
    job_type: str
    state: str  # of the kernel


WAITING = """
    SELECT j.id AS job_id, split_part(j.kind, '.', 2) AS job_type, j.state FROM holdfast.jobs j
    WHERE j.pipeline_id = %(pipeline_id)s::uuid AND NOT EXISTS (SELECT FROM holdfast.ingestions i WHERE i.job_id = j.id)
    ORDER BY j.id LIMIT %(limit)s
"""


async def waiting_steps(conn: Conn, pipeline_id: str, *, limit: int) -> list[WaitingStep]:
    """The jobs of a pipeline that come after those that `listed` knows."""
    async with conn.cursor(row_factory=class_row(WaitingStep)) as cursor:
        await cursor.execute(WAITING, {"pipeline_id": pipeline_id, "limit": limit})
        return await cursor.fetchall()


# The statement has only the filters that are given. Newest first.
FILTERS = {
    "before": "i.job_id < %(before)s",
    "state": "s.state = %(state)s",
    "result": "i.result = %(result)s",
    "job_type": "i.job_type = %(job_type)s",
    "module": "i.module = %(module)s",
    "det": "i.det = %(det)s",
    "year": "i.year = %(year)s",
    "pipeline_id": "i.pipeline_id = %(pipeline_id)s::uuid",
    "is_current": "j.is_current = %(is_current)s",
}


async def listed(conn: Conn, *, limit: int, **filters: Any) -> list[Run]:
    """Jobs, newest first; one more than `limit` if there are more."""
    given = {name: value for name, value in filters.items() if value is not None}
    where = " AND ".join(FILTERS[name] for name in given) or "true"
    async with conn.cursor(row_factory=class_row(Run)) as cursor:
        await cursor.execute(f"{SELECT} WHERE {where} ORDER BY i.job_id DESC LIMIT %(limit)s", given | {"limit": limit + 1})
        return await cursor.fetchall()
