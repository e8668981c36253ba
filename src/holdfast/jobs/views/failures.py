"""Group failed jobs that have the same kind, cause and error; values in the error do not count.

Called by: the API and the command line. Reads the newest failed jobs up to a cap, so that the cost is bounded.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import class_row, scalar_row

from holdfast.errors import NotFound
from holdfast.jobs.views.history import LAST_TRACEBACK
from holdfast.telemetry.error_text import one_line

CAP = 10_000
LONGEST = 1_000  # characters of an error that count

# What differs between two errors of one cause: values in quotes, values of a key (`Key (id)=(7)`), ids, addresses, numbers, and
# the position that psycopg marks in its statement. Postgres puts names of tables and columns in double quotes too: those stay,
# because they tell one SQL error from another.
VALUES = r"""'[^'\n]*'|(?:: |=|value )"[^"\n]*"|=\([^)\n]*\)|[0-9a-f]{8}[0-9a-f-]*|0x[0-9a-f]+|[0-9]+|^[ \t^~]+$"""
# httpx2 quotes the status of a response, which must stay: "Client error '404 Not Found' for url 'https://…'".
STATUS = """CASE WHEN {error} LIKE '%%error ''___ %%'' for url ''%%'
    THEN replace(replace({error}, 'error ''', 'error '), ''' for url', ' for url') ELSE {error} END"""
SHAPE = "regexp_replace({error}, {values}, '#', 'gn')".format(
    error=STATUS.format(error=f"left(coalesce(j.error, ''), {LONGEST})"), values="'" + VALUES.replace("'", "''") + "'"
)
FINGERPRINT = f"left(md5(j.kind || chr(10) || coalesce(j.cause, '') || chr(10) || {SHAPE}), 16)"

GROUP = f"""
    WITH newest AS MATERIALIZED (
        SELECT j.id, j.kind, j.cause, j.finished_at, {FINGERPRINT} AS fingerprint
        FROM (SELECT id, kind, cause, error, finished_at FROM holdfast.jobs
              WHERE state = 'failed' ORDER BY id DESC LIMIT %(cap)s) AS j
    ), groups AS (
        SELECT fingerprint, min(kind) AS kind, min(cause) AS cause, count(*) AS jobs,
               min(finished_at) AS first_at, max(finished_at) AS last_at, (array_agg(id ORDER BY id DESC))[:5] AS newest
        FROM newest WHERE %(fingerprint)s::text IS NULL OR fingerprint = %(fingerprint)s
        GROUP BY fingerprint ORDER BY max(finished_at) DESC, fingerprint LIMIT %(limit)s
    )
    SELECT g.*, coalesce((SELECT j.error FROM holdfast.jobs j WHERE j.id = g.newest[1]), '') AS error
    FROM groups g ORDER BY g.last_at DESC, g.fingerprint
"""
READ_TRACEBACK = f"SELECT {LAST_TRACEBACK} FROM holdfast.jobs j WHERE j.id = %(id)s"


@dataclass(frozen=True, slots=True)
class Failure:
    """Jobs that failed with the same error; `error` and `traceback` are those of the newest one."""

    fingerprint: str
    kind: str
    cause: str | None
    error: str
    jobs: int
    first_at: datetime
    last_at: datetime
    newest: list[int]
    traceback: str | None = None  # only when one group is read


async def list_failures(conn: psycopg.AsyncConnection[Any], *, limit: int = 50) -> list[Failure]:
    """The groups of failed jobs, the latest first."""
    return await _read(conn, None, limit)


async def get_failure(conn: psycopg.AsyncConnection[Any], fingerprint: str) -> Failure:
    """One group of failed jobs, with the traceback of the newest."""
    found = await _read(conn, fingerprint, 1)
    if not found:
        raise NotFound(f"there is no failed job with the fingerprint {fingerprint}; it may have been retried or pruned")
    async with conn.cursor(row_factory=scalar_row) as cursor:
        await cursor.execute(READ_TRACEBACK, {"id": found[0].newest[0]})
        return replace(found[0], traceback=await cursor.fetchone())


async def _read(conn: psycopg.AsyncConnection[Any], fingerprint: str | None, limit: int) -> list[Failure]:
    async with conn.cursor(row_factory=class_row(Failure)) as cursor:
        await cursor.execute(GROUP, {"cap": CAP, "fingerprint": fingerprint, "limit": limit})
        return [replace(one, error=one_line(one.error)) for one in await cursor.fetchall()]
