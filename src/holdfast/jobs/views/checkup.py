"""Collect facts about the health of the database. The callers decide what they mean.

Called by: the API, for `holdfast doctor` and `holdfast status`. No query reads jobs that have ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import dict_row

from holdfast.jobs import control
from holdfast.jobs.views import figures, read, workers
from holdfast.jobs.views.filters import Condition
from holdfast.jobs.worker_connections import MOST_SHARED_CONNECTIONS, OWN_CONNECTIONS

SERVER = f"""
    SELECT clock_timestamp() AS now,
           current_setting('server_version') AS version,
           current_setting('server_version_num')::int / 10000 AS major,
           pg_is_in_recovery() AS is_standby,
           pg_backend_pid() <> %(pid)s AS is_pooled,
           current_setting('max_connections')::int AS max_connections,
           (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS connections,
           (SELECT coalesce(sum({OWN_CONNECTIONS} + least(concurrency + 2, {MOST_SHARED_CONNECTIONS})), 0)::int
            FROM holdfast.workers
            WHERE stopped_at IS NULL AND lease_until > clock_timestamp() AND runner <> 'remote') AS workers_may_open,
           current_setting('autovacuum')::bool AS autovacuum,
           current_setting('fsync')::bool AND current_setting('full_page_writes')::bool AS is_durable,
           pg_database_size(current_database()) AS bytes,
           (SELECT age(datfrozenxid) FROM pg_database WHERE datname = current_database()) AS frozen_age
"""
# The oldest open transaction: vacuum cannot remove rows that were deleted after it began.
OLDEST_SNAPSHOT = """
    SELECT pid, coalesce(application_name, '') AS application, coalesce(state, '') AS state,
           extract(epoch FROM clock_timestamp() - xact_start)::float AS seconds
    FROM pg_stat_activity
    WHERE xact_start IS NOT NULL AND pid <> pg_backend_pid() AND backend_type = 'client backend'
    ORDER BY xact_start LIMIT 1
"""
TABLES = """
    SELECT s.relname AS "table", n_live_tup AS live, n_dead_tup AS dead, last_autovacuum,
           coalesce((SELECT option_value FROM pg_options_to_table(c.reloptions) WHERE option_name = 'autovacuum_enabled'), 'on')
               NOT IN ('off', 'false') AS autovacuum
    FROM pg_stat_user_tables s JOIN pg_class c ON c.oid = s.relid WHERE schemaname = 'holdfast' ORDER BY s.relname
"""
SILENT = """
    SELECT w.name, w.host, extract(epoch FROM clock_timestamp() - w.lease_until)::float AS seconds,
           (SELECT count(*) FROM holdfast.jobs j WHERE j.worker_id = w.id) AS holds
    FROM holdfast.workers w WHERE w.stopped_at IS NULL AND w.lease_until < clock_timestamp()
    ORDER BY w.lease_until LIMIT 100
"""
COMMITS = """
    SELECT git_sha, count(*) AS workers FROM holdfast.workers
    WHERE stopped_at IS NULL AND lease_until > clock_timestamp() AND git_sha IS NOT NULL GROUP BY 1 ORDER BY 2 DESC LIMIT 20
"""
LEFT_LOCKS = """
    SELECT h.key, h.job_id FROM holdfast.lock_holders h JOIN holdfast.jobs j ON j.id = h.job_id
    WHERE j.state IN ('completed', 'failed', 'cancelled') ORDER BY h.key LIMIT 20
"""


@dataclass(frozen=True, slots=True)
class Checkup:
    """The facts; every list is bounded."""

    now: datetime
    server: dict[str, Any]
    oldest_snapshot: dict[str, Any] | None
    tables: list[dict[str, Any]]
    jobs: dict[str, dict[str, Any]]  # by state: how many, and whether there are more
    quarantined: dict[str, Any]
    stale: int
    poll_lag: float
    oldest: list[dict[str, Any]]  # by kind: how long the next to run has waited
    workers: list[dict[str, Any]]  # alive, by version
    commits: list[dict[str, Any]]  # of workers that report theirs
    silent: list[dict[str, Any]]
    kinds: list[dict[str, Any]]
    controls: list[dict[str, Any]]
    left_locks: list[dict[str, Any]]


async def check_up(conn: psycopg.AsyncConnection[Any]) -> Checkup:
    """Read all facts."""
    async with conn.cursor(row_factory=dict_row) as cursor:
        server = (await _all(cursor, SERVER, {"pid": conn.info.backend_pid}))[0]  # behind a pooler the two differ
        oldest_snapshot = await _all(cursor, OLDEST_SNAPSHOT)
        tables = await _all(cursor, TABLES)
        silent = await _all(cursor, SILENT)
        commits = await _all(cursor, COMMITS)
        left_locks = await _all(cursor, LEFT_LOCKS)
        poll_lag = (await _all(cursor, figures.POLL_LAG))[0]["poll_lag"]
        oldest = await _all(cursor, figures.OLDEST)
        versions = await _all(cursor, figures.VERSIONS)
    demand = await figures.demand(conn)
    states = await read.count_states(conn)
    return Checkup(
        now=server.pop("now"),
        server=server,
        oldest_snapshot=oldest_snapshot[0] if oldest_snapshot else None,
        tables=tables,
        jobs={state: _counted(count) for state, count in states.items()},
        quarantined=_counted(await read.count_jobs(conn, condition=Condition.QUARANTINED)),
        stale=demand.stale,
        poll_lag=poll_lag,
        oldest=oldest,
        workers=versions,
        commits=commits,
        silent=silent,
        kinds=[_plain(kind) for kind in await workers.list_kinds(conn)],
        controls=[one._asdict() for one in await control.controls(conn)],
        left_locks=left_locks,
    )


async def _all(
    cursor: psycopg.AsyncCursor[dict[str, Any]], statement: str, parameters: dict[str, Any] | None = None
) -> list[dict[str, Any]]:
    await cursor.execute(statement.encode(), parameters)
    return await cursor.fetchall()


def _counted(count: read.Count) -> dict[str, Any]:
    return {"value": count.count, "capped": count.capped}


def _plain(kind: workers.KindView) -> dict[str, Any]:
    return {name: getattr(kind, name) for name in workers.KindView.__dataclass_fields__}
