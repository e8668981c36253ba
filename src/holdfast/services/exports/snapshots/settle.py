"""The safety net: end open snapshots whose exports do not match their jobs, and cancel the siblings of failed exports.

Called by: the loop `export_reconciliation`. Usually the trigger on the jobs has already done this; the SQL functions called
here are those of the trigger (migration 0008).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import class_row, tuple_row

from holdfast.jobs.cancel import abort

Conn = psycopg.AsyncConnection[Any]
MOST_EXPORTS = 2000


@dataclass(frozen=True, slots=True)
class OpenSnapshot:
    """A snapshot that has not ended, with counts of its exports and their jobs."""

    id: int
    pipeline_id: str
    exports: int
    live: int  # exports without an outcome
    disagreeing: int  # exports without an outcome whose job has ended or was deleted
    failed: int
    siblings: int  # live jobs without a cancel request

    @property
    def is_due(self) -> bool:
        """Whether it should have ended."""
        return self.exports > 0 and self.live == self.disagreeing

    @property
    def has_failed(self) -> bool:
        """Whether an export has failed while others still run: the snapshot can only fail."""
        return self.failed > 0 and self.siblings > 0


READ_OPEN = """
    SELECT s.id, s.pipeline_id::text, count(e.job_id) AS exports, count(*) FILTER (WHERE e.job_id IS NOT NULL
               AND e.outcome IS NULL) AS live,
           count(*) FILTER (WHERE e.job_id IS NOT NULL AND e.outcome IS NULL
               AND (j.id IS NULL OR j.state IN ('completed', 'failed', 'cancelled'))) AS disagreeing,
           count(*) FILTER (WHERE e.outcome = 'failed' OR (e.outcome IS NULL AND j.state = 'failed')) AS failed,
           count(*) FILTER (WHERE j.state IN ('blocked', 'pending', 'submitted')
               OR (j.state = 'running' AND j.cancel_requested_at IS NULL)) AS siblings
    FROM (SELECT id, pipeline_id FROM holdfast.snapshots
          WHERE state IN ('pending', 'creating') AND id > %(after)s ORDER BY id LIMIT %(limit)s) AS s
    LEFT JOIN holdfast.exports e ON e.snapshot_id = s.id
    LEFT JOIN holdfast.jobs j ON j.id = e.job_id
    GROUP BY s.id, s.pipeline_id ORDER BY s.id
"""


async def read_open(conn: Conn, *, after: int = 0, limit: int = 100) -> list[OpenSnapshot]:
    """A page of snapshots that have not ended."""
    async with conn.cursor(row_factory=class_row(OpenSnapshot)) as cursor:
        await cursor.execute(READ_OPEN, {"after": after, "limit": limit})
        return await cursor.fetchall()


HOLD_JOBS = """
    SELECT j.id FROM holdfast.jobs j JOIN holdfast.exports e ON e.job_id = j.id
    WHERE e.snapshot_id = %(id)s AND e.outcome IS NULL ORDER BY j.id FOR UPDATE OF j
"""
RECORD = """
    SELECT holdfast.record_export(j) FROM holdfast.jobs j JOIN holdfast.exports e ON e.job_id = j.id
    WHERE e.snapshot_id = %(id)s AND e.outcome IS NULL AND j.state IN ('completed', 'failed', 'cancelled')
"""
# A deleted job writes nothing more, and no manifest lists its files.
GIVE_UP = """
    UPDATE holdfast.exports e SET outcome = 'failed', finished_at = clock_timestamp(), error = 'its job was deleted'
    WHERE e.snapshot_id = %(id)s AND e.outcome IS NULL AND NOT EXISTS (SELECT FROM holdfast.jobs j WHERE j.id = e.job_id)
"""
SETTLE = "SELECT holdfast.settle_snapshot(%(id)s)"


async def settle(conn: Conn, snapshot_id: int) -> str | None:
    """Derive the state of a snapshot from its jobs; the new state. Call it in a transaction."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(HOLD_JOBS, {"id": snapshot_id})
        await cursor.execute(RECORD, {"id": snapshot_id})
        await cursor.execute(GIVE_UP, {"id": snapshot_id})
        await cursor.execute(SETTLE, {"id": snapshot_id})
        row = await cursor.fetchone()
    return None if row is None else row[0]


async def stop_siblings(conn: Conn, snapshot: OpenSnapshot) -> int:
    """Cancel the live jobs of a snapshot that can only fail; the number of jobs."""
    return await abort(
        conn, snapshot.pipeline_id, actor="export_reconciliation", reason="another export of its snapshot failed"
    )
