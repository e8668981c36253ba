"""`/metrics` for Prometheus: the metrics of this process, and those of the database, which are cached for a few seconds.

The metrics of the database are the same in every replica: dashboards must use their maximum, never their sum.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from typing import Any

import psycopg
from fastapi import Request
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import CollectorRegistry, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from psycopg_pool import AsyncConnectionPool, PoolTimeout
from starlette.responses import Response

from holdfast.api.plane import Resources, plane_of
from holdfast.api.routes import Routes
from holdfast.database.pool import LOST
from holdfast.jobs.views import read
from holdfast.jobs.views.figures import Figures, figures
from holdfast.telemetry import metrics
from holdfast.telemetry.log import log
from holdfast.telemetry.names import PLANE_METRICS

routes = Routes("metrics")

PATIENCE = 3.0  # seconds to wait for a connection: a scraper does not wait long
GOOD_FOR = 5.0  # seconds; several scrapers within this time cost one query
LOOK_EVERY = 0.5


class Gauges(Collector):
    """Gauges of the database and of this process."""

    def __init__(self, pool: AsyncConnectionPool[Any], version: str, services: Mapping[str, Resources]) -> None:
        self._pool, self._version, self._services = pool, version, services
        self._of_services: list[Metric] = []
        self._figures: Figures | None = None
        self._counts: dict[Any, read.Count] = {}
        self._read_at: float | None = None
        self._one_at_a_time = asyncio.Lock()
        self.streams = 0
        self.loop_lag = 0.0
        self.registry = CollectorRegistry()
        self.registry.register(self)

    async def refresh(self) -> None:
        """Read the metrics of the database, unless they are fresh. Without the database they are left out, not served stale."""
        async with self._one_at_a_time:
            if self._read_at is not None and time.monotonic() - self._read_at < GOOD_FOR:
                return
            try:
                async with self._pool.connection(timeout=PATIENCE) as conn:
                    self._figures, self._counts = await figures(conn), dict(await read.count_states(conn))
                    self._of_services = [family for one in self._services.values() for family in await one.measure(conn)]
            except (*LOST, psycopg.Error, PoolTimeout) as error:
                log.warning("metrics_without_database", error=f"{type(error).__name__}: {error}")
                self._figures = None
            self._read_at = time.monotonic()

    async def watch_the_loop(self) -> None:
        """Measure the lag of the event loop. Runs until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            asked = loop.time()
            await asyncio.sleep(LOOK_EVERY)
            self.loop_lag = max(0.0, loop.time() - asked - LOOK_EVERY)

    def collect(self) -> Iterator[Metric]:
        """Called by the registry for each scrape."""
        yield _one("holdfast_build_info", 1, version=self._version)
        yield _one("holdfast_event_loop_lag_seconds", self.loop_lag)
        yield _one("holdfast_streams", self.streams)
        stats = self._pool.get_stats()
        pool = _family("holdfast_pool_connections", "state")
        pool.add_metric(["open"], stats.get("pool_size", 0))
        pool.add_metric(["free"], stats.get("pool_available", 0))
        pool.add_metric(["waited_for"], stats.get("requests_waiting", 0))
        yield pool
        connections = _family("graph_olap_database_connections", "state")
        connections.add_metric(["available"], stats.get("pool_available", 0))
        connections.add_metric(["in_use"], stats.get("pool_size", 0) - stats.get("pool_available", 0))
        connections.add_metric(["total"], stats.get("pool_size", 0))
        yield connections
        yield _one("holdfast_database_reachable", int(self._figures is not None))
        if self._figures is not None:
            yield from self._of_the_database(self._figures)
            yield from self._of_services

    def _of_the_database(self, found: Figures) -> Iterator[GaugeMetricFamily]:
        jobs = _family("holdfast_jobs", "state")
        for state, count in self._counts.items():
            jobs.add_metric([str(state)], count.count)
        yield jobs
        demand = _family("holdfast_demand", "what")
        for what in ("waiting", "due", "to_poll", "stale", "held"):
            demand.add_metric([what], getattr(found.demand, what))
        yield demand
        yield _one("holdfast_stale_leases", found.demand.stale)
        yield _one("holdfast_locks_held", found.plain["locks_held"])
        yield _one("holdfast_lock_waiters", found.plain["lock_waiters"])
        yield _one("holdfast_unwanted_effects", found.plain["unwanted_effects"])
        yield _one("holdfast_effect_clean_tries", found.plain["clean_tries"])
        yield _one("holdfast_poll_lag_seconds", found.plain["poll_lag"] or 0)
        yield _one("holdfast_drain", int(found.plain["draining"]))
        yield _one("holdfast_xmin_age", found.plain["xmin_age"])
        yield _one("holdfast_frozen_xid_age", found.plain["frozen_age"])
        workers = _family("holdfast_workers", "version", "runner")
        for row in found.versions:
            workers.add_metric([row["version"], row["runner"]], row["workers"])
        yield workers
        oldest = _family("holdfast_oldest_pending_seconds", "kind")
        for row in found.oldest:
            oldest.add_metric([row["kind"]], row["seconds"])
        yield oldest
        served = _family("holdfast_pending_kind_workers", "kind")
        for row in found.oldest:
            served.add_metric([row["kind"]], row["workers"])
        yield served
        server = _family("holdfast_server_connections", "state")
        server.add_metric(["used"], found.plain["connections"])
        server.add_metric(["allowed"], found.plain["max_connections"])
        yield server
        yield from _times(found)
        for name, column in (("live", "live"), ("dead", "dead"), ("bytes", "bytes")):
            table = _family(f"holdfast_table_{'rows_' if name != 'bytes' else ''}{name}", "table")
            for row in found.tables:
                table.add_metric([row["table"]], row[column])
            yield table


def _times(found: Figures) -> Iterator[GaugeMetricFamily]:
    for name, what in (("holdfast_job_wait_seconds", "wait"), ("holdfast_job_run_seconds", "run")):
        family = _family(name, "kind", "quantile")
        for row in found.times:
            for quantile in ("0.5", "0.95"):
                if row[f"{what}_{quantile}"] is not None:
                    family.add_metric([row["kind"], quantile], row[f"{what}_{quantile}"])
        yield family


def _family(name: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, PLANE_METRICS[name], labels=labels)


def _one(name: str, value: float, **labels: str) -> GaugeMetricFamily:
    family = _family(name, *labels)
    family.add_metric(list(labels.values()), value)
    return family


@routes.add("GET", "/metrics", action="metrics.read", media="text/plain")
async def show_metrics(request: Request) -> Response:
    """Show the metrics in Prometheus's text format."""
    plane = plane_of(request)
    plane.gauges.streams = len(plane.hub)
    await plane.gauges.refresh()
    text = generate_latest(metrics.REGISTRY) + generate_latest(plane.gauges.registry)
    return Response(text, media_type=CONTENT_TYPE_LATEST)
