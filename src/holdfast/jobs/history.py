"""What happened to a job: every move with its attempt, actor, reason and transaction. Written by the moves themselves.

Called by: the API, the command line and the history checker.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

import psycopg
from psycopg.rows import tuple_row

from holdfast.jobs.model import JobId, Json


class Entry(NamedTuple):
    """One line of a job's history. For an attempt, `claimed_at` to `at` is its whole life."""

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


READ_HISTORY = """
    SELECT at, move, state, attempt_no, attempt_id::text, worker_id::text, claimed_at, actor, reason, detail, xid::text
    FROM holdfast.history WHERE job_id = %(job_id)s ORDER BY id DESC LIMIT %(most)s
"""


async def history(conn: psycopg.AsyncConnection[Any], job_id: JobId, *, most: int = 10_000) -> list[Entry]:
    """The history of a job, oldest first; of a very long one the newest moves."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(READ_HISTORY, {"job_id": job_id, "most": most})
        return [Entry(*row) for row in reversed(await cursor.fetchall())]
