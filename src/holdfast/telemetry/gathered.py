"""Sum the metrics of several processes. Called by: executors (`dump`), and their keeper (`Gathered`).

Counters never decrease: the counts of a process that has ended stay in the sum, and its successor starts at zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client.core import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

Family = list[Any]  # name, type, help text and samples (name, labels, value), as JSON
Labels = tuple[tuple[str, str], ...]
RISING = frozenset({"counter", "histogram"})


def dump(registry: CollectorRegistry) -> list[Family]:
    """All metrics of this process, as JSON data."""
    return [
        [
            family.name,
            family.type,
            family.documentation,
            [[sample.name, sample.labels, sample.value] for sample in family.samples if not sample.name.endswith("_created")],
        ]
        for family in registry.collect()
    ]


class Gathered(Collector):
    """The sum of the metrics of processes that start and end."""

    def __init__(self) -> None:
        self._last: dict[str, list[Family]] = {}
        self._gone: list[Family] = []
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def take(self, process: str, families: list[Family]) -> None:
        """Replace the metrics of a running process."""
        self._last[process] = families

    def retire(self, process: str) -> None:
        """A process has ended: keep its counters and remove its gauges."""
        rising = [family for family in self._last.pop(process, []) if family[1] in RISING]
        self._gone = [_as_family(one) for one in _sum([self._gone, rising])]

    def collect(self) -> Iterator[Metric]:
        """Called by the registry for each scrape."""
        yield from _sum([self._gone, *self._last.values()])


def _sum(of_each: list[list[Family]]) -> list[Metric]:
    """Add up samples with the same name and labels; for delays, take the largest. Pure."""
    found: dict[str, tuple[Metric, dict[tuple[str, Labels], float]]] = {}
    for name, kind, meaning, samples in (family for families in of_each for family in families):
        _, values = found.setdefault(name, (Metric(name, meaning, kind), {}))
        for sample, labels, value in samples:
            key = (sample, tuple(labels.items()))
            is_worst_of_all = kind == "gauge" and name.endswith("_lag_seconds")
            before = values.get(key, 0.0)
            values[key] = max(before, value) if is_worst_of_all else before + value
    for metric, values in found.values():
        for (sample, labels), value in values.items():
            metric.add_sample(sample, dict(labels), value)
    return [metric for metric, _ in found.values()]


def _as_family(metric: Metric) -> Family:
    samples = [[sample.name, sample.labels, sample.value] for sample in metric.samples]
    return [metric.name, metric.type, metric.documentation, samples]
