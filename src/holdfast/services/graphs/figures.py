"""Metrics of graphs from the database: instances by status, counters, gauges. They are read on each request, so every process
reports the same values and a restart loses nothing. Called by: `/metrics`, `/api/ops/state`."""

from __future__ import annotations

from typing import Any, Final

import psycopg
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from psycopg.rows import tuple_row

from holdfast.jobs.tallies import read_tallies
from holdfast.jobs.views.read import Count
from holdfast.services.graphs.names import GAUGES, TALLIES
from holdfast.services.graphs.states import ACTIVE, InstanceState

Conn = psycopg.AsyncConnection[Any]
CAP: Final = 10_000

COUNT = """
    SELECT given.state, (SELECT count(*) FROM (
        SELECT FROM holdfast.graph_instances g WHERE g.state = given.state LIMIT %(cap)s + 1) AS few)
    FROM unnest(%(states)s::text[]) AS given (state)
"""


async def instances_by_status(conn: Conn) -> dict[str, Count]:
    """The number of instances by status."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(COUNT, {"cap": CAP, "states": list(InstanceState)})
        found: dict[str, int] = dict(await cursor.fetchall())
    return {state: Count(min(found[state], CAP), found[state] > CAP) for state in InstanceState}


READ_GAUGES = """
    SELECT (SELECT count(*) FROM holdfast.graph_suspects WHERE passes > 1),
           (SELECT count(*) FROM holdfast.graph_instances
            WHERE state IN ('starting', 'running', 'resuming') AND runtime_name IS NULL),
           (SELECT coalesce(sum(memory_mb), 0)::bigint * 1048576 FROM holdfast.graph_instances WHERE state = ANY (%(active)s))
"""


async def read(conn: Conn) -> list[Metric]:
    """All metric families of graphs."""
    tallies = await read_tallies(conn)
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(READ_GAUGES, {"active": list(ACTIVE)})
        ((orphans, unnamed, reserved),) = await cursor.fetchall()
    by_status = GaugeMetricFamily("graph_instances", GAUGES["graph_instances"], labels=["status"])
    for status, count in (await instances_by_status(conn)).items():
        by_status.add_metric([status], count.count)
    gauges = {
        "orphaned_pods_detected_current": orphans,
        "instances_without_pod_name": unnamed,
        "graph_memory_reserved_bytes": reserved,
    }
    return [
        *(CounterMetricFamily(name, says, value=tallies.get(name.removesuffix("_total"), 0)) for name, says in TALLIES.items()),
        *(GaugeMetricFamily(name, GAUGES[name], value=value) for name, value in gauges.items()),
        by_status,
    ]
