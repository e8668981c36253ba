"""What several processes have counted, as one: their figures carried over a line, and added up. Called by: executors (`dump`),
their keeper (`Gathered`).

A counter only ever rises: what a process had counted when it ended stays in the sum, and its successor begins at nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client.core import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

Family = list[Any]  # name, type, what it means, and its samples: name, labels, value. As JSON can carry it
Labels = tuple[tuple[str, str], ...]
RISING = frozenset({"counter", "histogram"})


def dump(registry: CollectorRegistry) -> list[Family]:
    """Everything that this process has counted, for a line of JSON."""
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
    """The sum over processes that come and go."""

    def __init__(self) -> None:
        self._last: dict[str, list[Family]] = {}
        self._gone: list[Family] = []
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def take(self, process: str, families: list[Family]) -> None:
        """What a process that lives has counted since its start: instead of what it said before."""
        self._last[process] = families

    def retire(self, process: str) -> None:
        """It has ended: what it counted stays, what it was at does not."""
        rising = [family for family in self._last.pop(process, []) if family[1] in RISING]
        self._gone = [_as_family(one) for one in _sum([self._gone, rising])]

    def collect(self) -> Iterator[Metric]:
        """Prometheus's question."""
        yield from _sum([self._gone, *self._last.values()])


def _sum(of_each: list[list[Family]]) -> list[Metric]:
    """Samples of the same name and labels added up; of what is late, the latest. Pure."""
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
