"""What this process counts of exports, under the names that the documents give. What the database counts: `figures.py`."""

from __future__ import annotations

from holdfast.telemetry.metrics import counter, histogram

SECONDS = (0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

passes = counter("export_reconciliation_passes_total")
pass_seconds = histogram("export_reconciliation_pass_duration_seconds", buckets=SECONDS)

refreshes = counter("schema_cache_refreshes_total", "status")
refresh_seconds = histogram("schema_cache_refresh_duration_seconds", buckets=(0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0))
stale_deleted = counter("schema_cache_stale_entries_deleted_total")
