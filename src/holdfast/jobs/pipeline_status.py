"""What is remembered of a pipeline for lists: its status when somebody last looked. Called by: the loop `pipeline_status`.

The jobs of a pipeline have the last word, and `read_pipeline` asks them. To list the failed ones among a hundred thousand,
nobody can; so their word is noted on the pipeline's row, again and again.
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

FIRST = "00000000-0000-0000-0000-000000000000"

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
# One that has ended may begin again, when a job of it is run once more: a few of them each time, in turn.
READ_ENDED = f"""
    WITH page AS MATERIALIZED (
        SELECT id, status FROM holdfast.pipelines WHERE status <> 'running' ORDER BY checked_at LIMIT %(limit)s
    ) {READ_STATES}
"""
SET_STATUS = """
    UPDATE holdfast.pipelines SET status = %(status)s, finished_at = %(finished_at)s, checked_at = clock_timestamp()
    WHERE id = %(id)s AND status = %(was)s
"""


@dataclass(frozen=True, slots=True)
class Remembered:
    """What is remembered of a pipeline, and what its jobs say."""

    id: str
    was: str
    status: PipelineStatus | None  # None: it has no jobs any more
    finished_at: datetime | None

    @property
    def has_changed(self) -> bool:
        return self.status is not None and self.status != self.was


async def read_remembered(
    conn: psycopg.AsyncConnection[Any], *, running: bool, after: str = FIRST, limit: int = 100
) -> list[Remembered]:
    """A page of pipelines that are remembered as running, or of the ended ones that were looked at longest ago."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(READ_RUNNING if running else READ_ENDED, {"after": after, "limit": limit})
        rows = await cursor.fetchall()
    found = []
    for (pipeline_id, was), lines in groupby(rows, key=lambda row: (row[0], row[1])):
        states = [line[2:] for line in lines if line[2] is not None]
        status = status_of({State(state): count for state, count, _ in states}) if states else None
        ends = [at for _, _, at in states if at is not None]
        finished_at = max(ends) if ends and status is not PipelineStatus.RUNNING else None
        found.append(Remembered(pipeline_id, was, status, finished_at))
    return found


async def remember(conn: psycopg.AsyncConnection[Any], pipeline: Remembered) -> None:
    """Note what the jobs of this pipeline say, unless somebody else has noted something meanwhile."""
    status = pipeline.was if pipeline.status is None else pipeline.status.value
    parameters = {"id": pipeline.id, "was": pipeline.was, "status": status, "finished_at": pipeline.finished_at}
    await conn.execute(SET_STATUS, parameters)
