"""The history of a job: every move with its attempt, actor, reason and transaction. Each move writes its own entry.

Called by: the API, the command line and the history checker.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

import psycopg
from psycopg.rows import tuple_row

from holdfast.jobs.model import JobId, Json


class Entry(NamedTuple):
    """One entry of a job's history. An attempt lasted from `claimed_at` to `at`."""

    at: datetime
    move: str
    state: str
    attempt_no: int | None
    attempt_id: str | None
    worker_id: str | None
    claimed_at: datetime | None
    actor: str | None
    reason: str | None
    detail: Json
    xid: str


# Of the newest attempt of job `j` that ended with an exception; read only if the job has an error.
LAST_TRACEBACK = """CASE WHEN j.error IS NOT NULL THEN (SELECT h.detail->>'traceback' FROM holdfast.history h
    WHERE h.job_id = j.id AND h.detail ? 'traceback' ORDER BY h.id DESC LIMIT 1) END AS traceback"""
READ_HISTORY = """
    SELECT at, move, state, attempt_no, attempt_id::text, worker_id::text, claimed_at, actor, reason, detail, xid::text
    FROM holdfast.history WHERE job_id = %(job_id)s ORDER BY id DESC LIMIT %(most)s
"""


async def history(conn: psycopg.AsyncConnection[Any], job_id: JobId, *, most: int = 10_000) -> list[Entry]:
    """The history of a job, oldest first; only the newest `most` moves."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(READ_HISTORY, {"job_id": job_id, "most": most})
        return [Entry(*row) for row in reversed(await cursor.fetchall())]
