"""Failures that are the same, together: by kind, cause and the last line of the error without its numbers.

Called by: the API and the command line. Looks at the newest failed jobs up to a cap, so that a night of failures costs no more.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import class_row

from holdfast.errors import NotFound

CAP = 10_000

# The last line says what went wrong; ids, addresses and counts in it are what differs between two of the same.
LAST_LINE = r"regexp_replace(coalesce(j.error, ''), E'^.*\n(?=[^\n]*\\S[^\n]*\\s*$)', '')"
SHAPE = f"left(regexp_replace({LAST_LINE}, '[0-9a-f]{{8}}[0-9a-f-]*|[0-9]+', '#', 'g'), 500)"
FINGERPRINT = f"left(md5(j.kind || chr(10) || coalesce(j.cause, '') || chr(10) || {SHAPE}), 16)"

GROUP = f"""
    WITH newest AS MATERIALIZED (
        SELECT j.id, j.kind, j.cause, j.error, j.finished_at, {FINGERPRINT} AS fingerprint, {SHAPE} AS shape
        FROM (SELECT id, kind, cause, error, finished_at FROM holdfast.jobs
              WHERE state = 'failed' ORDER BY id DESC LIMIT %(cap)s) AS j
    )
    SELECT fingerprint, min(kind) AS kind, min(cause) AS cause, min(shape) AS error, count(*) AS jobs,
           min(finished_at) AS first_at, max(finished_at) AS last_at, (array_agg(id ORDER BY id DESC))[:5] AS newest
    FROM newest WHERE %(fingerprint)s::text IS NULL OR fingerprint = %(fingerprint)s
    GROUP BY fingerprint ORDER BY max(finished_at) DESC, fingerprint LIMIT %(limit)s
"""


@dataclass(frozen=True, slots=True)
class Failure:
    """One way to fail, and who did."""

    fingerprint: str
    kind: str
    cause: str | None
    error: str
    jobs: int
    first_at: datetime
    last_at: datetime
    newest: list[int]


async def list_failures(conn: psycopg.AsyncConnection[Any], *, limit: int = 50) -> list[Failure]:
    """The ways in which jobs failed, the latest first."""
    return await _read(conn, None, limit)


async def get_failure(conn: psycopg.AsyncConnection[Any], fingerprint: str) -> Failure:
    """One way to fail."""
    found = await _read(conn, fingerprint, 1)
    if not found:
        raise NotFound(f"no job failed in the way {fingerprint}; it may have been retried or pruned")
    return found[0]


async def _read(conn: psycopg.AsyncConnection[Any], fingerprint: str | None, limit: int) -> list[Failure]:
    async with conn.cursor(row_factory=class_row(Failure)) as cursor:
        await cursor.execute(GROUP, {"cap": CAP, "fingerprint": fingerprint, "limit": limit})
        return await cursor.fetchall()
