"""Metrics of exports from the database: jobs and snapshots by status, counters, lags. They are read on each request, so
every process reports the same values and a restart loses nothing. Called by: `/metrics`, `/api/ops/state`, the loop.

Each count uses an index and stops at a cap, whatever the size of the tables.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import psycopg
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from psycopg.rows import tuple_row

from holdfast.jobs.model import JobId
from holdfast.jobs.tallies import read_tallies
from holdfast.jobs.views.read import Count
from holdfast.services.exports.catalog import cache
from holdfast.services.exports.snapshots.states import STATUSES, SnapshotState
from holdfast.telemetry.names import PLANE_METRICS

Conn = psycopg.AsyncConnection[Any]
CAP = 10_000
FINALIZED, FAILURES = "snapshots_finalized", "snapshots_finalization_failures"
STALE = "stale_export_claims_detected", "stale_export_claims_reset"


# All queues. Jobs that wait for a retry or a lock count as pending, too: no worker holds them.
COUNT_LIVE = """
    SELECT CASE WHEN j.state IN ('pending', 'blocked') THEN 'pending'
                WHEN j.state = 'running' AND j.handle IS NULL THEN 'claimed'
                WHEN j.state IN ('running', 'submitted') THEN 'submitted' ELSE j.state END, count(*)
    FROM (SELECT job_id FROM holdfast.exports WHERE outcome IS NULL LIMIT %(cap)s + 1) AS e
    JOIN holdfast.jobs j ON j.id = e.job_id GROUP BY 1
"""
COUNT_ENDED = """
    SELECT given.outcome, (SELECT count(*) FROM (
        SELECT FROM holdfast.exports e WHERE e.outcome = given.outcome LIMIT %(cap)s + 1) AS few)
    FROM unnest(%(outcomes)s::text[]) AS given (outcome)
"""
COUNT_SNAPSHOTS = """
    SELECT given.state, (SELECT count(*) FROM (
        SELECT FROM holdfast.snapshots s WHERE s.state = given.state LIMIT %(cap)s + 1) AS few)
    FROM unnest(%(states)s::text[]) AS given (state)
"""


async def jobs_by_status(conn: Conn) -> dict[str, Count]:
    """The number of export jobs by status."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(COUNT_LIVE, {"cap": CAP})
        found: dict[str, int] = dict(await cursor.fetchall())
        await cursor.execute(COUNT_ENDED, {"cap": CAP, "outcomes": ["completed", "failed", "cancelled"]})
        for status, count in await cursor.fetchall():
            found[status] = found.get(status, 0) + count
    return {status: _capped(found.get(status, 0)) for status in STATUSES}


async def snapshots_by_status(conn: Conn) -> dict[str, Count]:
    """The number of snapshots by state."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(COUNT_SNAPSHOTS, {"cap": CAP, "states": list(SnapshotState)})
        found: dict[str, int] = dict(await cursor.fetchall())
    return {state: _capped(found[state]) for state in SnapshotState}


def _capped(count: int) -> Count:
    return Count(min(count, CAP), count > CAP)


# From the end of the last job to the end of the snapshot, for recent snapshots. Zero if the trigger ended them.
LAG = """
    SELECT max(extract(epoch FROM s.finished_at - last.at)) FROM holdfast.snapshots s
    CROSS JOIN LATERAL (SELECT max(finished_at) AS at FROM holdfast.exports e WHERE e.snapshot_id = s.id) AS last
    WHERE s.id IN (SELECT id FROM holdfast.snapshots WHERE finished_at IS NOT NULL ORDER BY id DESC LIMIT 50)
"""


async def finalization_lag(conn: Conn) -> float:
    """The longest time from the end of a snapshot's last export to its own end, over the newest fifty, in seconds."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(LAG)
        row = await cursor.fetchone()
    return 0.0 if row is None or row[0] is None else max(0.0, float(row[0]))


EXPORTS_AMONG = "SELECT id FROM holdfast.jobs WHERE id = ANY (%(ids)s) AND kind = 'exports.export' ORDER BY id"


async def exports_among(conn: Conn, jobs: list[JobId]) -> list[JobId]:
    """The jobs among these that are exports of snapshots."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(EXPORTS_AMONG, {"ids": jobs})
        return [row[0] for row in await cursor.fetchall()]


COUNT_ORPHANS = """
    SELECT count(*) FROM (SELECT FROM holdfast.jobs WHERE state = 'submitted' AND kind = 'exports.export'
        AND next_poll_at < (SELECT clock_timestamp()) - %(after)s LIMIT %(limit)s) AS orphans
"""


async def count_orphans(conn: Conn, *, after: Any, limit: int) -> int:
    """The number of submitted exports that are overdue to be polled by `after`, up to `limit`."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(COUNT_ORPHANS, {"after": after, "limit": limit})
        ((count,),) = await cursor.fetchall()
    return int(count)


class ExportFigures:
    """The metric families of exports for `/metrics`. The schema cache is large, so it is counted once per refresh."""

    def __init__(self) -> None:
        self._entries: dict[str, int] = {}
        self._entries_of: datetime | None = None

    async def read(self, conn: Conn) -> list[Metric]:
        """Read all families."""
        tallies = await read_tallies(conn)
        jobs = await jobs_by_status(conn)
        tried_at = await cache.last_tried(conn)
        if not self._entries or tried_at != self._entries_of:
            self._entries, self._entries_of = await cache.counts(conn), tried_at
        finalized, failures = tallies.get(FINALIZED, 0), tallies.get(FAILURES, 0)
        return [
            _counter("stale_export_claims_detected_total", tallies.get(STALE[0], 0)),
            _counter("stale_export_claims_reset_total", tallies.get(STALE[1], 0)),
            _counter("snapshots_ready_to_finalize_total", finalized + failures),
            _counter("snapshots_finalized_total", finalized),
            _counter("snapshots_finalization_failures_total", failures),
            _gauge("snapshot_finalization_lag_seconds", await finalization_lag(conn)),
            _gauge("graph_olap_export_queue_depth", jobs["pending"].count),
            _gauges("export_jobs_by_status_total", "status", {status: count.count for status, count in jobs.items()}),
            _gauges("schema_cache_entries_total", "entity_type", self._entries),
        ]


def _counter(name: str, value: int) -> Metric:
    return CounterMetricFamily(name, PLANE_METRICS[name], value=value)


def _gauge(name: str, value: float) -> Metric:
    return GaugeMetricFamily(name, PLANE_METRICS[name], value=value)


def _gauges(name: str, label: str, values: dict[str, int]) -> Metric:
    family = GaugeMetricFamily(name, PLANE_METRICS[name], labels=[label])
    for value, count in values.items():
        family.add_metric([value], count)
    return family
