"""Metrics of graphs that each process counts. `figures.py` has those that are read from the database."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from holdfast.telemetry.metrics import counter, histogram

SECONDS: Final = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
LOOPS: Final = ("reconciliation", "instance_orchestration", "instance_lifecycle", "resource_monitor")

passes = {loop: counter(f"{loop}_passes_total", "status") for loop in LOOPS}
seconds = {loop: histogram(f"{loop}_pass_duration_seconds", buckets=SECONDS) for loop in LOOPS}
enforcement_lag = histogram("instance_enforcement_lag_seconds", buckets=(60.0, 300.0, 600.0, 1800.0, 3600.0, 21600.0, 86400.0))


@contextmanager
def measured(loop: str) -> Iterator[None]:
    """Count a pass when it ends, by how it ended, with its duration."""
    began, status = time.monotonic(), "failed"
    try:
        yield
        status = "success"
    finally:
        passes[loop].labels(status).inc()
        seconds[loop].observe(time.monotonic() - began)
