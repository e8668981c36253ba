"""Metrics of ingestion that each process counts. `figures.py` has those that are read from the database."""

from __future__ import annotations

from holdfast.telemetry.metrics import counter, histogram

rows = counter("ingestion_rows_total", "outcome")
uploaded_bytes = counter("ingestion_uploaded_bytes_total")
web_seconds = histogram(
    "ingestion_web_request_duration_seconds",
    "route",
    "status",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
