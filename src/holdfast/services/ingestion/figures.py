"""Figures of ingestion that are read from the database: the same on every replica, and a restart does not reset them."""

from __future__ import annotations

from itertools import product
from typing import Any, Final

import psycopg
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from psycopg.rows import tuple_row

from holdfast.jobs.views.read import Count
from holdfast.services.ingestion.names import PLANE_METRICS
from holdfast.services.ingestion.scope import JOB_TYPES

Conn = psycopg.AsyncConnection[Any]
MOST: Final = 10_000
RESULTS: Final = ("SUCCESS", "WARNING", "ERROR")  # shown as 0, too: an alert sees the first error as an increase

# Counted up to a limit: a scrape must not read a table of millions.
BY_RESULT = """
    SELECT coalesce(i.result, s.state), count(*) FROM (SELECT * FROM holdfast.ingestions ORDER BY job_id DESC LIMIT %(most)s) i
    JOIN holdfast.ingestion_states s USING (job_state) GROUP BY 1
"""
OF_TYPES = """
    SELECT i.job_type, coalesce(i.result, s.state), count(*)
    FROM (SELECT * FROM holdfast.ingestions ORDER BY job_id DESC LIMIT %(most)s) i
    JOIN holdfast.ingestion_states s USING (job_state) GROUP BY 1, 2
"""
PEAK = """
    SELECT coalesce(max((outcome ->> 'peak_memory_bytes')::bigint), 0)
    FROM (SELECT outcome FROM holdfast.ingestions ORDER BY job_id DESC LIMIT %(most)s) i
"""
DUE = """
    SELECT count(*) FILTER (WHERE changes > recalculated), count(*) FILTER (WHERE changes > aggregated),
           coalesce(extract(epoch FROM clock_timestamp() - min(changed_at) FILTER (WHERE changes > aggregated)), 0)
    FROM holdfast.emission_scopes
"""


async def by_result(conn: Conn) -> dict[str, Count]:
    """How many of the newest jobs have each result, or state if they have not finished."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(BY_RESULT, {"most": MOST})
        found = await cursor.fetchall()
    return {name: Count(count, capped=False) for name, count in found}


async def measure(conn: Conn) -> list[Metric]:
    """The metrics for `/metrics`."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(OF_TYPES, {"most": MOST})
        of_types = await cursor.fetchall()
        await cursor.execute(PEAK, {"most": MOST})
        ((peak,),) = await cursor.fetchall()
        await cursor.execute(DUE)
        ((recalculations, aggregations, oldest),) = await cursor.fetchall()
    jobs = GaugeMetricFamily("ingestion_jobs", PLANE_METRICS["ingestion_jobs"], labels=["job_type", "result"])
    found = {(job_type, result): count for job_type, result, count in of_types}
    for labels, count in (dict.fromkeys(product(JOB_TYPES, RESULTS), 0) | found).items():
        jobs.add_metric(labels, count)
    values = {
        "ingestion_peak_memory_bytes": peak,
        "ingestion_recalculations_due": recalculations,
        "ingestion_aggregations_due": aggregations,
        "ingestion_statistics_lag_seconds": float(oldest),
    }
    return [jobs, *(GaugeMetricFamily(name, PLANE_METRICS[name], value=value) for name, value in values.items())]
