"""Groups of the newest failed jobs: how many there are, and how many of them failed in each hour of the last day."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import class_row, scalar_row

from holdfast.jobs.views.failures import FINGERPRINT, READ_TRACEBACK
from holdfast.telemetry.error_text import one_line

HOURS = 24
NEWEST = 250  # failed jobs that are looked at: the fingerprint of each is computed
MOST = 100  # groups

GROUP = f"""
    WITH newest AS MATERIALIZED (
        SELECT j.id, j.kind, j.cause, j.finished_at, {FINGERPRINT} AS fingerprint,
               floor(extract(epoch FROM clock_timestamp() - j.finished_at) / 3600)::int AS hour
        FROM (SELECT id, kind, cause, error, finished_at FROM holdfast.jobs WHERE state = 'failed'
              ORDER BY id DESC LIMIT {NEWEST}) AS j
    ), groups AS (
        SELECT fingerprint, min(kind) AS kind, min(cause) AS cause, count(*) AS jobs, min(finished_at) AS first_at,
               max(finished_at) AS last_at, (array_agg(id ORDER BY id DESC))[:5] AS newest,
               array_agg(hour) FILTER (WHERE hour BETWEEN 0 AND {HOURS - 1}) AS hours
        FROM newest GROUP BY fingerprint ORDER BY max(finished_at) DESC, fingerprint LIMIT {MOST}
    )
    SELECT g.*, coalesce((SELECT j.error FROM holdfast.jobs j WHERE j.id = g.newest[1]), '') AS error
    FROM groups g ORDER BY g.last_at DESC, g.fingerprint
"""


@dataclass(frozen=True, slots=True)
class Group:
    """Jobs that failed with the same error; `error` is that of the newest."""

    fingerprint: str
    kind: str
    cause: str | None
    jobs: int
    first_at: datetime
    last_at: datetime
    newest: list[int]
    hours: list[int] | None  # how many hours ago each of them failed
    error: str

    @property
    def line(self) -> str:
        """The error on one line."""
        return one_line(self.error)

    @property
    def trend(self) -> list[int]:
        """24 numbers, the oldest hour first."""
        return [(self.hours or []).count(hour) for hour in reversed(range(HOURS))]


async def group_failures(conn: psycopg.AsyncConnection[Any]) -> list[Group]:
    """The groups, the latest first."""
    async with conn.cursor(row_factory=class_row(Group)) as cursor:
        await cursor.execute(GROUP)
        return await cursor.fetchall()


async def read_traceback(conn: psycopg.AsyncConnection[Any], job_id: int) -> str | None:
    """The traceback of the newest attempt of a job that raised."""
    async with conn.cursor(row_factory=scalar_row) as cursor:
        await cursor.execute(READ_TRACEBACK, {"id": job_id})
        return await cursor.fetchone()
