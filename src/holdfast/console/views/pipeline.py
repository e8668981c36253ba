"""The jobs of a pipeline and what each waited for, without payloads and results."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import class_row

MOST = 2_000

NODES = f"""
    SELECT j.id, j.kind, j.step, j.state, j.progress, j.message, j.error, j.claimed_at, j.finished_at, j.attempt_no,
           coalesce(j.parents, ARRAY(SELECT d.parent_id FROM holdfast.dependencies d WHERE d.job_id = j.id),
                    CASE WHEN j.parent_id IS NOT NULL THEN ARRAY[j.parent_id] END, '{{}}') AS parents, j.parent_id
    FROM holdfast.jobs j WHERE j.pipeline_id = %(id)s ORDER BY j.id LIMIT {MOST}
"""


@dataclass(frozen=True, slots=True)
class Node:
    """A job of a pipeline."""

    id: int
    kind: str
    step: str | None
    state: str
    progress: float | None
    message: str | None
    error: str | None
    claimed_at: datetime | None
    finished_at: datetime | None
    attempt_no: int
    parents: list[int]
    parent_id: int | None

    @property
    def before(self) -> list[int]:
        """The jobs that it came after."""
        return self.parents or ([self.parent_id] if self.parent_id is not None else [])

    @property
    def seconds(self) -> float | None:
        if self.claimed_at is None or self.finished_at is None:
            return None
        return (self.finished_at - self.claimed_at).total_seconds()


async def read_nodes(conn: psycopg.AsyncConnection[Any], pipeline_id: str) -> list[Node]:
    """The jobs of a pipeline in the order of their ids, up to a cap."""
    async with conn.cursor(row_factory=class_row(Node)) as cursor:
        await cursor.execute(NODES, {"id": pipeline_id})
        return await cursor.fetchall()
