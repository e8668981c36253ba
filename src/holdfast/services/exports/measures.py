"""Metrics of exports that each process counts. `figures.py` has those that are read from the database."""

from __future__ import annotations

from holdfast.services.exports.lifecycle.decide import ExpiryReason
from holdfast.telemetry.metrics import counter, histogram

SECONDS = (0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

passes = counter("export_reconciliation_passes_total")
pass_seconds = histogram("export_reconciliation_pass_duration_seconds", buckets=SECONDS)

lifecycle_passes = counter("lifecycle_passes_total")
lifecycle_seconds = histogram("lifecycle_pass_duration_seconds", buckets=(*SECONDS, 60.0, 300.0))
snapshots_deleted = {
    ExpiryReason.TTL: counter("ttl_snapshots_deleted_total"),
    ExpiryReason.INACTIVITY: counter("inactive_snapshots_deleted_total"),
}
mappings_deleted = {
    ExpiryReason.TTL: counter("ttl_mappings_deleted_total"),
    ExpiryReason.INACTIVITY: counter("inactive_mappings_deleted_total"),
}
termination_failures = counter("lifecycle_termination_failures_total", "resource_type")
cleanup_failures = counter("snapshot_gcs_cleanup_failures_total")
enforcement_lag = histogram(
    "lifecycle_enforcement_lag_seconds", "resource_type", buckets=(60.0, 300.0, 600.0, 1800.0, 3600.0, 21600.0, 86400.0)
)

refreshes = counter("schema_cache_refreshes_total", "status")
refresh_seconds = histogram("schema_cache_refresh_duration_seconds", buckets=(0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0))
stale_deleted = counter("schema_cache_stale_entries_deleted_total")
