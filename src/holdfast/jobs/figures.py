"""The figures that operators and autoscalers watch, in a few cheap statements. Called by: the API's metrics and ops state.

Every count goes over an index and is exact up to a cap; nothing here walks over jobs that have ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import class_row, dict_row

# Claimable jobs, due polls, and held jobs; `stale` are those of the held whose worker's lease has expired. Never pending jobs
# alone, and never without the held ones: an autoscaler that reads 0 while a job runs stops the worker that runs it.
DEMAND = """
    SELECT (SELECT count(*) FROM (SELECT FROM holdfast.jobs j WHERE state = 'pending' AND run_after IS NULL
                AND (%(queue)s::text IS NULL OR queue = %(queue)s) AND NOT EXISTS (
                    SELECT FROM holdfast.controls c WHERE c.kind IN (j.kind, '*') AND c.paused_at IS NOT NULL)
                LIMIT 10001) AS few) AS waiting,
           (SELECT count(*) FROM (SELECT FROM holdfast.jobs WHERE state = 'pending' AND run_after <= (SELECT clock_timestamp())
                AND (%(queue)s::text IS NULL OR queue = %(queue)s) LIMIT 10001) AS few) AS due,
           (SELECT count(*) FROM (SELECT FROM holdfast.jobs WHERE state = 'submitted'
                AND next_poll_at <= (SELECT clock_timestamp())
                AND (%(queue)s::text IS NULL OR queue = %(queue)s) LIMIT 10001) AS few) AS to_poll,
           (SELECT count(*) FROM holdfast.workers w JOIN holdfast.jobs j ON j.worker_id = w.id
                WHERE w.lease_until < clock_timestamp() AND (%(queue)s::text IS NULL OR j.queue = %(queue)s)) AS stale,
           (SELECT count(*) FROM holdfast.jobs WHERE worker_id IS NOT NULL
                AND (%(queue)s::text IS NULL OR queue = %(queue)s)) AS running
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
        """What no live worker holds: for autoscalers that add the running workers themselves."""
        return self.waiting + self.due + self.to_poll + self.stale

    @property
    def held(self) -> int:
        """What a worker holds under a lease that has not expired."""
        return max(0, self.running - self.stale)

    @property
    def total(self) -> int:
        """The number to scale a Deployment by: the backlog and what runs."""
        return self.backlog + self.held


async def demand(conn: psycopg.AsyncConnection[Any], queue: str | None = None) -> Demand:
    """How much work there is, in one queue or in all."""
    async with conn.cursor(row_factory=class_row(Demand)) as cursor:
        await cursor.execute(DEMAND, {"queue": queue})
        found = await cursor.fetchone()
    assert found is not None
    return found


FIGURES = """
    SELECT (SELECT count(*) FROM holdfast.lock_holders) AS locks_held,
           (SELECT count(*) FROM holdfast.lock_wants WHERE waiting) AS lock_waiters,
           (SELECT coalesce(extract(epoch FROM max(clock_timestamp() - next_poll_at)), 0)::float FROM (
                SELECT next_poll_at FROM holdfast.jobs WHERE state = 'submitted' ORDER BY next_poll_at LIMIT 1) AS first
            WHERE next_poll_at < clock_timestamp()) AS poll_lag,
           (SELECT count(*) FROM holdfast.effects WHERE state = 'unwanted') AS unwanted_effects,
           EXISTS (SELECT FROM holdfast.controls WHERE kind = '*' AND drained_at IS NOT NULL) AS draining,
           coalesce((SELECT max(age(backend_xmin)) FROM pg_stat_activity WHERE backend_xmin IS NOT NULL), 0) AS xmin_age,
           (SELECT age(datfrozenxid) FROM pg_database WHERE datname = current_database()) AS frozen_age
"""
VERSIONS = """
    SELECT version, runner, count(*) AS workers FROM holdfast.workers
    WHERE stopped_at IS NULL AND lease_until > clock_timestamp() GROUP BY 1, 2
"""
# By hopping over the claim index from one kind to the next: its first entry is not the oldest, but the next to be run.
OLDEST = """
    WITH RECURSIVE hop AS (
        (SELECT queue, kind FROM holdfast.jobs WHERE state = 'pending' AND run_after IS NULL ORDER BY queue, kind LIMIT 1)
        UNION ALL
        SELECT next.queue, next.kind FROM hop CROSS JOIN LATERAL (
            SELECT queue, kind FROM holdfast.jobs j
            WHERE state = 'pending' AND run_after IS NULL AND (j.queue, j.kind) > (hop.queue, hop.kind)
            ORDER BY queue, kind LIMIT 1) AS next
    )
    SELECT hop.kind, max(extract(epoch FROM clock_timestamp() - first.created_at))::float AS seconds
    FROM hop CROSS JOIN LATERAL (
        SELECT created_at FROM holdfast.jobs j WHERE j.state = 'pending' AND j.run_after IS NULL
            AND j.queue = hop.queue AND j.kind = hop.kind ORDER BY j.priority, j.id LIMIT 1) AS first
    GROUP BY hop.kind LIMIT 200
"""
# The newest jobs by their id: a walk of a fixed length over the primary key, whatever the table holds.
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
    """One look at everything that can be counted cheaply."""

    demand: Demand
    plain: dict[str, Any]
    versions: list[dict[str, Any]]
    oldest: list[dict[str, Any]]
    times: list[dict[str, Any]]
    tables: list[dict[str, Any]]


async def figures(conn: psycopg.AsyncConnection[Any]) -> Figures:
    """All of it."""
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
