"""Make a worker quiet: it claims no more jobs, and finishes the jobs that it holds. Called by: the API."""

from __future__ import annotations

from typing import Any

import psycopg

from holdfast.jobs.views.workers import WorkerView, get_worker

QUIET = """
    UPDATE holdfast.workers SET quiet_at = CASE WHEN %(quiet)s THEN coalesce(quiet_at, clock_timestamp()) END
    WHERE id = %(id)s
"""


async def make_quiet(conn: psycopg.AsyncConnection[Any], worker_id: str, *, quiet: bool = True) -> WorkerView:
    """Make a worker claim no more jobs from its next heartbeat on, or claim again. It finishes the jobs that it holds."""
    await conn.execute(QUIET, {"id": worker_id, "quiet": quiet})
    return await get_worker(conn, worker_id)
