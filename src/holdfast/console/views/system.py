"""Facts about the installation: server, tables, workers, kinds and locks. None of them reads jobs that have ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import dict_row

from holdfast.console.views.kinds import list_kinds
from holdfast.jobs.views.checkup import LEFT_LOCKS, OLDEST_SNAPSHOT, SERVER, TABLES
from holdfast.jobs.views.figures import VERSIONS
from holdfast.jobs.views.workers import KindView

STALE = """
    SELECT count(*) AS stale FROM holdfast.workers w JOIN holdfast.jobs j ON j.worker_id = w.id
    WHERE w.lease_until < clock_timestamp()
"""
REVISION = "SELECT version_num AS revision FROM holdfast.alembic_version"


@dataclass(frozen=True, slots=True)
class Health:
    """The facts."""

    server: dict[str, Any]
    oldest_snapshot: dict[str, Any] | None
    tables: list[dict[str, Any]]
    left_locks: list[dict[str, Any]]
    workers: list[dict[str, Any]]
    stale: int
    revision: str | None
    kinds: list[KindView]


async def read_health(conn: psycopg.AsyncConnection[Any]) -> Health:
    """Eight short statements."""
    found = []
    async with conn.cursor(row_factory=dict_row) as cursor:
        for statement in (SERVER, OLDEST_SNAPSHOT, TABLES, LEFT_LOCKS, VERSIONS, STALE, REVISION):
            await cursor.execute(statement.encode(), {"pid": conn.info.backend_pid} if statement is SERVER else None)
            found.append(await cursor.fetchall())
    server, oldest, tables, locks, workers, stale, revision = found
    return Health(
        server[0],
        oldest[0] if oldest else None,
        tables,
        locks,
        workers,
        stale[0]["stale"],
        revision[0]["revision"] if revision else None,
        await list_kinds(conn),
    )
