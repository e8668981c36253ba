"""Reconciliation: orphaned pods, missing pods, status drift."""

from monitoring.panels import Dashboard, Panel, Query, counted, most, quantiles

FAILED, REMOVED = counted("orphaned_pods_cleanup_failures_total"), counted("orphaned_pods_cleaned_total")
FAILURE_RATE = f"{FAILED} / clamp_min({FAILED} + {REMOVED}, 1)"

DASHBOARD = Dashboard(
    uid="holdfast-reconciliation",
    title="Holdfast / Reconciliation",
    says="Differences between the instances in the database and their pods. Expected: none.",
    service="graphs",
    rows={
        "Differences": (
            Panel(
                "Orphaned pods",
                (
                    Query(counted("orphaned_pods_detected_total"), "detected"),
                    Query(counted("orphaned_pods_cleaned_total"), "removed"),
                    Query(most("orphaned_pods_detected_current"), "now"),
                ),
            ),
            Panel(
                "Missing pods",
                (
                    Query(counted("missing_pods_detected_total"), "detected"),
                    Query(counted("missing_pods_handled_total"), "handled"),
                ),
            ),
            Panel(
                "Status drift",
                (
                    Query(counted("status_drift_detected_total"), "detected"),
                    Query(counted("status_drift_fixed_total"), "fixed"),
                ),
            ),
            Panel("Instances without a pod name", (Query(most("instances_without_pod_name"), "instances"),)),
            Panel(
                "Removals that fail",
                (Query(FAILURE_RATE, "of all removals"),),
                unit="percentunit",
                says="Removals of orphaned pods that failed, as a share of all. The next pass tries again.",
            ),
            Panel("Duration of passes", quantiles("reconciliation_pass_duration_seconds", "", 0.5, 0.95, 0.99), unit="s"),
        ),
    },
)
