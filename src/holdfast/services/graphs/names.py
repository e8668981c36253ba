"""Every event, metric and crash point of graphs, with one line each. Pure data."""

from __future__ import annotations

from typing import Final

EVENTS: Final[dict[str, str]] = {
    "transitioning_instance_to_starting": "The snapshot of an instance is ready, and its graph server is started.",
    "instance_missing_pending_snapshot_id": "A waiting instance names no snapshot; it is skipped. Delete it.",
    "instance_waiting_failed": "The snapshot of a waiting instance failed, was cancelled or is gone; the instance failed.",
    "instance_redriven": "An instance had no job that moves it, and got one.",
    "instance_running": "A graph server has loaded its snapshot and answers queries.",
    "wrapper_pod_creation_failed": "A graph server could not be started; the job is tried again, or the instance failed.",
    "instance_orchestration_failed": "An instance could not be moved on; the next pass tries again.",
    "orphaned_pod_detected": "The runtime has a graph server that no instance has (severity BUG_INDICATOR).",
    "orphaned_pod_deleted": "An orphan was removed.",
    "orphaned_pod_deletion_failed": "An orphan could not be removed; the next pass tries again.",
    "missing_pod_detected": "An instance has no graph server any more; it failed with UNEXPECTED_TERMINATION.",
    "status_drift_detected": "The graph server of an instance has ended; the instance failed.",
    "reconciliation_item_failed": "An instance without a graph server could not be set to failed; the next pass tries again.",
    "reconciliation_skipped": "The runtime could not list its graph servers; nothing was changed.",
    "instance_expired": "An instance whose TTL or inactivity timeout is over is being deleted.",
    "instance_lifecycle_failed": "An expired instance could not be deleted; the next pass tries again.",
    "instance_invalid_duration": "A ttl or inactivity_timeout is not a duration; it never expires anything.",
    "resource_monitor_skipped": "The runtime could not list its graph servers; no sample was taken.",
    "resource_monitor_triggering_resize": "An instance uses much of its memory and gets more.",
    "resource_monitor_resize_cooldown": "An instance was resized a short while ago; it is checked again later (debug).",
    "resource_monitor_at_max_memory": "An instance needs more memory than it may get; the field `limit` says which limit.",
    "resource_monitor_oom_recovered": "An instance ended with OOM_KILLED and starts again with more memory.",
    "resource_monitor_instance_error": "One instance could not be handled; the others were.",
    "graph_server_started": "A graph server listens and begins to load its plan.",
    "graph_loaded": "A graph server has loaded every row of its plan.",
    "graph_load_failed": "A graph server could not load its plan; `code` is the error code of the instance.",
    "graph_algorithm_ended": "A run of an algorithm ended; `state` says how.",
    "graph_algorithm_error": "A run of an algorithm failed unexpectedly.",
    "graph_report_failed": "A report to the control plane failed; its counts are sent with the next one.",
    "graph_server_not_wanted": "The control plane has no use for this graph server any more; it ends.",
    "graph_report_refused": "A report had the secret of another instance or of an earlier start.",
}

METRICS: Final[dict[str, str]] = {
    "reconciliation_passes_total": "Passes of the loop reconciliation that ended in this process, by status.",
    "reconciliation_pass_duration_seconds": "How long those took.",
    "instance_orchestration_passes_total": "Passes of the loop instance_orchestration that ended in this process, by status.",
    "instance_orchestration_pass_duration_seconds": "How long those took.",
    "instance_lifecycle_passes_total": "Passes of the loop instance_lifecycle that ended in this process, by status.",
    "instance_lifecycle_pass_duration_seconds": "How long those took.",
    "resource_monitor_passes_total": "Passes of the loop resource_monitor that ended in this process, by status.",
    "resource_monitor_pass_duration_seconds": "How long those took.",
    "instance_enforcement_lag_seconds": "From the moment an instance expired to the beginning of its deletion.",
}

# Counted in the database: every replica serves the same values, and a restart does not reset them.
TALLIES: Final[dict[str, str]] = {
    "orphaned_pods_detected_total": "Graph servers that no instance has, each counted once when two passes saw it.",
    "orphaned_pods_cleaned_total": "Of those, the ones that were removed.",
    "orphaned_pods_cleanup_failures_total": "Removals of orphans that failed.",
    "missing_pods_detected_total": "Instances whose graph server was gone.",
    "missing_pods_handled_total": "Of those, the ones that were set to failed.",
    "status_drift_detected_total": "Instances whose graph server had ended while they were starting or running.",
    "status_drift_fixed_total": "Of those, the ones that were set to failed.",
    "ttl_instances_terminated_total": "Instances that were deleted because their TTL was over.",
    "inactive_instances_terminated_total": "Instances that were deleted because their inactivity timeout was over.",
    "instances_transitioned_to_starting_total": "Waiting instances whose snapshot became ready.",
    "instances_transitioned_to_failed_total": "Instances that failed before they had a graph server: their snapshot "
    "failed, was cancelled or deleted, or the graph server could not be created.",
    "resource_monitor_proactive_resizes_total": "Resizes because memory was above 80 % for 2 minutes.",
    "resource_monitor_urgent_resizes_total": "Resizes because memory was above 90 % for 1 minute.",
    "resource_monitor_oom_recoveries_total": "Restarts with more memory after OOM_KILLED.",
    "resource_monitor_failures_total": "Instances that the resource monitor could not handle.",
}
GAUGES: Final[dict[str, str]] = {
    "orphaned_pods_detected_current": "Graph servers that no instance has, as the last pass saw them. Expected: 0.",
    "instances_without_pod_name": "Instances that should have a graph server, and none is known for them.",
    "graph_instances": "Graph instances by status; a gauge, up to 10,000 each.",
    "graph_memory_reserved_bytes": "Memory that the active graph instances may use together.",
}
PLANE_METRICS: Final[dict[str, str]] = TALLIES | GAUGES

CRASH_POINTS: Final[dict[str, str]] = {
    "graphs.before_ensure": "The start of a graph server is recorded, and nothing was started.",
    "graphs.after_ensure": "A graph server was started, and the job does not know yet.",
    "graphs.before_remove": "An instance is stopping, and its graph server still runs.",
    "graphs.after_remove": "The graph server of an instance is gone, and its row is still there.",
    "graphs.before_run": "A run of an algorithm is recorded, and nothing was submitted.",
    "graphs.after_run": "A run of an algorithm was submitted, and the job does not know yet.",
    "graphs.after_resize": "A graph server has its new limits, and the row does not say so.",
}
