"""The figures that operators and autoscalers watch, in a few cheap statements. Called by: the API's metrics and ops state.

Every count uses an index and is exact up to a cap. No query reads jobs that have ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import class_row, dict_row

# The view counts claimable jobs, due polls and held jobs; `stale` are those of the held whose worker's lease has expired.
# Never pending jobs alone, and never without the held ones: an autoscaler that reads 0 while a job runs stops its worker.
DEMAND = """
    SELECT coalesce(sum(waiting), 0)::bigint AS waiting, coalesce(sum(due), 0)::bigint AS due,
           coalesce(sum(to_poll), 0)::bigint AS to_poll, coalesce(sum(stale), 0)::bigint AS stale,
           coalesce(sum(stale + held), 0)::bigint AS running
    FROM holdfast.demand
    WHERE (%(queue)s::text IS NULL OR queue = %(queue)s) AND (%(kind)s::text IS NULL OR kind LIKE %(kind)s)
"""


@dataclass(frozen=True, slots=True)
class Demand:
    """How much work there is for workers."""

    waiting: int
    due: int
    to_poll: int
    stale: int  # held by a worker whose lease has expired; included in `running`
    running: int  # held by a worker

    @property
    def backlog(self) -> int:
        """Jobs that no live worker holds: for autoscalers that add the running workers themselves."""
        return self.waiting + self.due + self.to_poll + self.stale

    @property
    def held(self) -> int:
        """Jobs that a worker with a valid lease holds."""
        return max(0, self.running - self.stale)

    @property
    def total(self) -> int:
        """The number to scale a Deployment by: the backlog and the running jobs."""
        return self.backlog + self.held


async def demand(conn: psycopg.AsyncConnection[Any], queue: str | None = None, kind: str | None = None) -> Demand:
    """How much work there is, in one queue or in all, of one kind or of all; `exports.*`: of all that begin with `exports.`."""
    async with conn.cursor(row_factory=class_row(Demand)) as cursor:
        await cursor.execute(DEMAND, {"queue": queue, "kind": None if kind is None else _like(kind)})
        found = await cursor.fetchone()
    assert found is not None
    return found


def _like(kind: str) -> str:
    """The pattern of LIKE for a kind in which a `*` at the end stands for anything."""
    escaped = kind.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return escaped[:-1] + "%" if escaped.endswith("*") else escaped


POLL_LAG = """
    SELECT coalesce(extract(epoch FROM max(clock_timestamp() - next_poll_at)), 0)::float AS poll_lag FROM (
        SELECT next_poll_at FROM holdfast.jobs WHERE state = 'submitted' ORDER BY next_poll_at LIMIT 1) AS first
    WHERE next_poll_at < clock_timestamp()
"""
FIGURES = f"""
    SELECT (SELECT count(*) FROM holdfast.lock_holders) AS locks_held,
           (SELECT count(*) FROM holdfast.lock_wants WHERE waiting) AS lock_waiters,
           ({POLL_LAG}) AS poll_lag,
           (SELECT count(*) FROM holdfast.effects WHERE state = 'unwanted') AS unwanted_effects,
           (SELECT coalesce(max(clean_tries), 0) FROM holdfast.effects WHERE state = 'unwanted') AS clean_tries,
           EXISTS (SELECT FROM holdfast.controls WHERE kind = '*' AND drained_at IS NOT NULL) AS draining,
           coalesce((SELECT max(age(backend_xmin)) FROM pg_stat_activity WHERE backend_xmin IS NOT NULL), 0) AS xmin_age,
           (SELECT age(datfrozenxid) FROM pg_database WHERE datname = current_database()) AS frozen_age,
           (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS connections,
           current_setting('max_connections')::int AS max_connections
"""
VERSIONS = """
    SELECT version, runner, count(*) AS workers FROM holdfast.workers
    WHERE stopped_at IS NULL AND lease_until > clock_timestamp() GROUP BY 1, 2
"""
# A skip scan of the claim index from one kind to the next. The first entry is not the oldest job, but the next to run.
# `workers` are the live ones that may claim it; one that has declared no kinds may claim all.
OLDEST = """
    WITH RECURSIVE hop AS (
        (SELECT queue, kind FROM holdfast.jobs WHERE state = 'pending' AND run_after IS NULL ORDER BY queue, kind LIMIT 1)
        UNION ALL
        SELECT next.queue, next.kind FROM hop CROSS JOIN LATERAL (
            SELECT queue, kind FROM holdfast.jobs j
            WHERE state = 'pending' AND run_after IS NULL AND (j.queue, j.kind) > (hop.queue, hop.kind)
            ORDER BY queue, kind LIMIT 1) AS next
    )
    SELECT hop.kind, max(extract(epoch FROM clock_timestamp() - first.created_at))::float AS seconds,
           min((SELECT count(*) FROM holdfast.workers w
                WHERE w.stopped_at IS NULL AND w.lease_until > clock_timestamp() AND w.quiet_at IS NULL
                  AND (w.kinds = '{}' OR w.kinds ? hop.kind) AND (w.queues IS NULL OR hop.queue = ANY (w.queues)))) AS workers
    FROM hop CROSS JOIN LATERAL (
        SELECT created_at FROM holdfast.jobs j WHERE j.state = 'pending' AND j.run_after IS NULL
            AND j.queue = hop.queue AND j.kind = hop.kind ORDER BY j.priority, j.id LIMIT 1) AS first
    GROUP BY hop.kind LIMIT 200
"""
# The newest jobs by id: reads a fixed number of rows by the primary key, whatever the size of the table.
TIMES = """
    SELECT kind,
        (percentile_cont(0.5) WITHIN GROUP (ORDER BY wait) FILTER (WHERE attempt_no = 1))::float AS "wait_0.5",
        (percentile_cont(0.95) WITHIN GROUP (ORDER BY wait) FILTER (WHERE attempt_no = 1))::float AS "wait_0.95",
        (percentile_cont(0.5) WITHIN GROUP (ORDER BY run))::float AS "run_0.5",
        (percentile_cont(0.95) WITHIN GROUP (ORDER BY run))::float AS "run_0.95"
    FROM (SELECT kind, attempt_no, extract(epoch FROM claimed_at - created_at) AS wait,
                 extract(epoch FROM finished_at - claimed_at) AS run
          FROM holdfast.jobs ORDER BY id DESC LIMIT 1000) AS newest
    WHERE attempt_no > 0 GROUP BY kind LIMIT 200
"""
TABLES = """
    SELECT relname AS "table", n_live_tup AS live, n_dead_tup AS dead, pg_total_relation_size(relid) AS bytes
    FROM pg_stat_user_tables WHERE schemaname = 'holdfast'
"""


@dataclass(frozen=True, slots=True)
class Figures:
    """All figures that can be counted cheaply."""

    demand: Demand
    plain: dict[str, Any]
    versions: list[dict[str, Any]]
    oldest: list[dict[str, Any]]
    times: list[dict[str, Any]]
    tables: list[dict[str, Any]]


async def figures(conn: psycopg.AsyncConnection[Any]) -> Figures:
    """Read all figures."""
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(FIGURES)
        plain = await cursor.fetchone() or {}
        await cursor.execute(VERSIONS)
        versions = await cursor.fetchall()
        await cursor.execute(OLDEST)
        oldest = await cursor.fetchall()
        await cursor.execute(TIMES)
        times = await cursor.fetchall()
        await cursor.execute(TABLES)
        tables = await cursor.fetchall()
    return Figures(await demand(conn), plain, versions, oldest, times, tables)
