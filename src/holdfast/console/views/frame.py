"""What the frame of every page shows: the database's clock, the number of failed jobs, and what is paused or drained."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import class_row

CAP = 100

READ = f"""
    SELECT clock_timestamp() AS now,
           (SELECT count(*) FROM (SELECT FROM holdfast.jobs WHERE state = 'failed' LIMIT {CAP} + 1) AS few) AS failed,
           coalesce((SELECT jsonb_agg(jsonb_build_object('kind', kind, 'paused', paused_at IS NOT NULL, 'drained',
                        drained_at IS NOT NULL, 'reason', reason, 'actor', actor) ORDER BY kind)
                     FROM (SELECT * FROM holdfast.controls ORDER BY kind LIMIT 20) AS c), '[]') AS controls
"""


@dataclass(frozen=True, slots=True)
class Frame:
    """The frame of a page."""

    now: datetime
    failed: int
    controls: list[dict[str, Any]]

    @property
    def failed_text(self) -> str:
        return f"{CAP:,}+" if self.failed > CAP else f"{self.failed:,}"

    @property
    def draining(self) -> dict[str, Any] | None:
        """The control that refuses every new job."""
        return next((one for one in self.controls if one["kind"] == "*" and one["drained"]), None)


async def read_frame(conn: psycopg.AsyncConnection[Any]) -> Frame:
    """One statement for every page."""
    async with conn.cursor(row_factory=class_row(Frame)) as cursor:
        await cursor.execute(READ)
        found = await cursor.fetchone()
    assert found is not None
    return found
