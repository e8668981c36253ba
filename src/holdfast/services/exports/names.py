"""Every event, metric and crash point of exports, with one line each. Pure data."""

from __future__ import annotations

from typing import Final

EVENTS: Final[dict[str, str]] = {
    "stale_export_claims_reset": "Export jobs of workers whose lease is over were given to others.",
    "export_jobs_too_long": "Export jobs failed because an engine had them for longer than export.max_duration_seconds.",
    "export_orphan_polled": "The loop polled a submitted export that no worker had polled for half an hour.",
    "export_orphan_failed": "An orphaned export could not be asked about; it is tried again with the next pass.",
    "export_types_not_checked": "An engine was too busy to describe the columns; the export started without a type check.",
    "export_reconciliation_step_failed": "One step of a pass failed as a whole; the others were taken.",
    "snapshot_finalized": "The safety net brought a snapshot to its end, which its last export should have done.",
    "snapshot_finalization_failed": "A snapshot could not be brought to its end; it is tried again with the next pass.",
    "snapshot_siblings_stopped": "An export of a snapshot failed, so the others were cancelled or asked to stop.",
    "schema_cache_refresh_skipped": "There is no engine whose catalogs could be read; says why.",
    "schema_cache_catalog_failed": "One catalog could not be read; what is known of it stays.",
    "lifecycle_deleted": "A snapshot (with its files) or mapping whose TTL or inactivity timeout was over was deleted.",
    "snapshot_cleanup_failed": "The files of an expired snapshot could not be removed; its row stays for the next pass.",
    "lifecycle_termination_failed": "An expired mapping or snapshot could not be deleted; the next pass tries again.",
    "lifecycle_invalid_duration": "A ttl or inactivity_timeout is no duration that we know; it never expires anything.",
    "lifecycle_blocked": "An expired mapping or snapshot is in use, and is deleted once it is not (debug).",
}

METRICS: Final[dict[str, str]] = {
    "export_reconciliation_passes_total": "Passes of the loop export_reconciliation in this process.",
    "export_reconciliation_pass_duration_seconds": "How long those took.",
    "lifecycle_passes_total": "Passes of the loop lifecycle in this process.",
    "lifecycle_pass_duration_seconds": "How long those took.",
    "ttl_snapshots_deleted_total": "Snapshots that were deleted because their TTL was over.",
    "inactive_snapshots_deleted_total": "Snapshots that were deleted because their inactivity timeout was over.",
    "ttl_mappings_deleted_total": "Mappings that were deleted because their TTL was over.",
    "inactive_mappings_deleted_total": "Mappings that were deleted because their inactivity timeout was over.",
    "lifecycle_termination_failures_total": "Expired things that could not be deleted, by resource_type (instance, "
    "snapshot, mapping).",
    "snapshot_gcs_cleanup_failures_total": "Expired snapshots whose files could not be removed; their rows stay, to try again.",
    "lifecycle_enforcement_lag_seconds": "From the moment a thing expired to its deletion, by resource_type.",
    "schema_cache_refreshes_total": "Refreshes of the schema cache, by status (success, failed, skipped).",
    "schema_cache_refresh_duration_seconds": "How long refreshes took.",
    "schema_cache_stale_entries_deleted_total": "Entries that a successful refresh did not see any more.",
}

# Counted in the database: every replica serves the same values, and a restart does not reset them.
PLANE_METRICS: Final[dict[str, str]] = {
    "stale_export_claims_detected_total": "Claims of export jobs that were taken from a holder that went silent or died.",
    "stale_export_claims_reset_total": "Of those, the jobs that run again: each may submit its query to the engine once more.",
    "snapshots_ready_to_finalize_total": "Snapshots whose exports had all ended, so that their end was to be written.",
    "snapshots_finalized_total": "Of those, the snapshots that came to their end (ready, failed or cancelled).",
    "snapshots_finalization_failures_total": "Of those, the times that the end of a snapshot could not be written.",
    "snapshot_finalization_lag_seconds": "From the end of a snapshot's last export to its own: the longest of the newest 50.",
    "graph_olap_export_queue_depth": "Export jobs that no worker has, delayed ones and retries included, up to 10,000.",
    "export_jobs_by_status_total": "Export jobs by status (pending, claimed, submitted, completed, failed, cancelled); a "
    "gauge, up to 10,000 each.",
    "schema_cache_entries_total": "Entries of the schema cache, by entity_type (catalog, schema, table, column); a gauge.",
}

CRASH_POINTS: Final[dict[str, str]] = {
    "export.streaming": "Rows of an export are on their way into a file.",
    "export.part_put": "One file of an export is in the store and not yet published.",
    "export.uploaded": "Every file of an export is in the store, and no manifest names them.",
    "export.published": "The manifest of an export is in the store; the end of its job is not committed.",
    "lifecycle.marked": "An expired snapshot is marked, and its files are still there.",
    "lifecycle.files_removed": "The files of an expired snapshot are gone; its row is still there.",
}
