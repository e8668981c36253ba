"""Metrics of maintenance from the database, and its part of `/api/ops/state`. Every process reports the same values."""

from __future__ import annotations

from typing import Any

import psycopg
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from holdfast.jobs.views.read import Count
from holdfast.services.maintenance.run.read import count_open
from holdfast.services.maintenance.tables.cache import count_by_score
from holdfast.services.maintenance.tables.health import label_of
from holdfast.telemetry.names import PLANE_METRICS

Conn = psycopg.AsyncConnection[Any]
LABELS = ("good", "fair", "poor", "unknown")
OPEN = ("pending", "blocked", "running", "submitted")
CAP = 10_000


async def metrics(conn: Conn) -> list[Metric]:
    """For `/metrics`."""
    tables = GaugeMetricFamily("maintenance_tables", PLANE_METRICS["maintenance_tables"], labels=["health"])
    for label, count in (await tables_by_label(conn)).items():
        tables.add_metric([label], count)
    runs = GaugeMetricFamily("maintenance_runs_open", PLANE_METRICS["maintenance_runs_open"], labels=["state"])
    found = await count_open(conn)
    for state in OPEN:
        runs.add_metric([state], found.get(state, 0))
    return [tables, runs]


async def inventory(conn: Conn) -> dict[str, dict[str, Count]]:
    """For `/api/ops/state`."""
    runs = await count_open(conn)
    return {
        "tables": {label: Count(count, False) for label, count in (await tables_by_label(conn)).items()},
        "maintenance_runs": {state: Count(runs.get(state, 0), sum(runs.values()) >= CAP) for state in OPEN},
    }


async def tables_by_label(conn: Conn) -> dict[str, int]:
    """How many tables are good, fair, poor or not measured."""
    found = dict.fromkeys(LABELS, 0)
    for score, count in (await count_by_score(conn)).items():
        found[label_of(score)] += count
    return found
