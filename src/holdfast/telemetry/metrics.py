"""The metrics of this process. Their names, and one line for each, stand in `names.py`; served by `/metrics`."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter

from holdfast.telemetry.names import METRICS

REGISTRY = CollectorRegistry()


def counter(name: str, *labels: str) -> Counter:
    """A counter that has its line in `names.py`."""
    return Counter(name, METRICS[name], labels, registry=REGISTRY)


# The fence
stale_writebacks = counter("holdfast_stale_writebacks_total", "operation")
