"""Compare the status that is stored on each pipeline with the states of its jobs. Called by: the loop `pipeline_status`.

The loop stores a status that has changed (`jobs/store_pipeline_status.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from holdfast.jobs.pipelines import PipelineStatus, status_of
from holdfast.jobs.states import State

FIRST_ID = "00000000-0000-0000-0000-000000000000"

READ_STATES = """
    SELECT page.id::text, page.status, j.state, count(j.id), max(j.finished_at) FROM page
    LEFT JOIN holdfast.jobs j ON j.pipeline_id = page.id GROUP BY page.id, page.status, j.state ORDER BY page.id
"""
READ_RUNNING = f"""
    WITH page AS MATERIALIZED (
        SELECT id, status FROM holdfast.pipelines
        WHERE status = 'running' AND id > %(after)s ORDER BY id LIMIT %(limit)s
    ) {READ_STATES}
"""
# An ended pipeline runs again if one of its jobs is rerun, so each pass checks a few ended ones, the oldest check first.
READ_ENDED = f"""
    WITH page AS MATERIALIZED (
        SELECT id, status FROM holdfast.pipelines WHERE status <> 'running' ORDER BY checked_at LIMIT %(limit)s
    ) {READ_STATES}
"""


@dataclass(frozen=True, slots=True)
class StoredStatus:
    """The stored status of a pipeline, and the current one."""

    id: str
    was: str  # stored
    status: PipelineStatus | None  # None: all its jobs were pruned
    finished_at: datetime | None

    @property
    def has_changed(self) -> bool:
        return self.status is not None and self.status != self.was


async def read_stored_statuses(
    conn: psycopg.AsyncConnection[Any], *, running: bool, after: str = FIRST_ID, limit: int = 100
) -> list[StoredStatus]:
    """A page of pipelines whose stored status is running, or of the ended ones that were checked longest ago."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(READ_RUNNING if running else READ_ENDED, {"after": after, "limit": limit})
        rows = await cursor.fetchall()
    found = []
    for (pipeline_id, was), lines in groupby(rows, key=lambda row: (row[0], row[1])):
        states = [line[2:] for line in lines if line[2] is not None]
        status = status_of({State(state): count for state, count, _ in states}) if states else None
        ends = [at for _, _, at in states if at is not None]
        finished_at = max(ends) if ends and status is not PipelineStatus.RUNNING else None
        found.append(StoredStatus(pipeline_id, was, status, finished_at))
    return found
