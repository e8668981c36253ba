"""Histograms of wait and run times, at a third of a microsecond per observation. Written by: the lanes. Read by: the registry.

The histogram of the Prometheus client costs several times that, for a lock that is not needed: only one event loop writes here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

from holdfast.telemetry.metrics import REGISTRY
from holdfast.telemetry.names import METRICS

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)


class _Series:
    """The durations of one set of labels."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts, self.total = [0] * (len(BOUNDS) + 1), 0.0


class Durations(Collector):
    """A histogram that one thread writes and any thread reads."""

    def __init__(self, name: str, *labels: str) -> None:
        self._name, self._labels = name, labels
        self._series: dict[tuple[str, ...], _Series] = {}
        REGISTRY.register(self)

    def observe(self, labels: tuple[str, ...], seconds: float) -> None:
        series = self._series.get(labels)
        if series is None:
            series = self._series[labels] = _Series()
        series.counts[bisect_left(BOUNDS, seconds)] += 1
        series.total += seconds

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Called by the registry for each scrape."""
        family = HistogramMetricFamily(self._name, METRICS[self._name], labels=self._labels)
        for labels, series in list(self._series.items()):
            counts = accumulate(list(series.counts))
            buckets = [(le, float(count)) for le, count in zip([*map(str, BOUNDS), "+Inf"], counts, strict=True)]
            family.add_metric(list(map(str, labels)), buckets, series.total)
        yield family


waited = Durations("holdfast_attempt_wait_seconds", "kind")
ran = Durations("holdfast_attempt_run_seconds", "kind", "outcome")
