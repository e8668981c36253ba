"""Gauges of the workers of this process, computed at each scrape. Registered by: the worker's loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from holdfast.telemetry.metrics import REGISTRY
from holdfast.telemetry.names import METRICS


@dataclass(frozen=True, slots=True)
class WorkerFigures:
    """The current figures of one worker."""

    jobs: Mapping[str, int] = field(default_factory=dict)  # by state: running, waiting for a lane, outcome not yet written
    connections: Mapping[str, int] = field(default_factory=dict)
    loop_lag: float = 0.0


class Workers(Collector):
    """The workers of this process, usually one."""

    def __init__(self) -> None:
        self._looks: dict[str, Callable[[], WorkerFigures]] = {}
        REGISTRY.register(self)

    def add(self, worker_id: str, look: Callable[[], WorkerFigures]) -> None:
        self._looks[worker_id] = look

    def remove(self, worker_id: str) -> None:
        self._looks.pop(worker_id, None)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Called by the registry for each scrape, from any thread: it only reads."""
        found = [look() for look in list(self._looks.values())]
        yield _sums("holdfast_worker_jobs", [one.jobs for one in found])
        yield _sums("holdfast_worker_connections", [one.connections for one in found])
        lag = "holdfast_worker_loop_lag_seconds"
        yield GaugeMetricFamily(lag, METRICS[lag], value=max((one.loop_lag for one in found), default=0.0))


def _sums(name: str, counts: list[Mapping[str, int]]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, METRICS[name], labels=["state"])
    for state in sorted({state for one in counts for state in one}):
        family.add_metric([state], sum(one.get(state, 0) for one in counts))
    return family


workers = Workers()
