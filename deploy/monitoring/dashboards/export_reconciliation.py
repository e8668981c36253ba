"""Export Reconciliation: stale claims, snapshots finalised, and how late."""

from monitoring.panels import Dashboard, Panel, Query, counted, most, per_minute, quantiles

DASHBOARD = Dashboard(
    uid="holdfast-export-reconciliation",
    title="Holdfast / Export Reconciliation",
    says="Recovery of export jobs, and the end of snapshots.",
    service="exports",
    rows={
        "Stale claims": (
            Panel(
                "Stale claims",
                (
                    Query(counted("stale_export_claims_detected_total"), "detected"),
                    Query(counted("stale_export_claims_reset_total"), "reset"),
                ),
                says="Each reset may submit its query to the engine once more.",
                width=12,
            ),
            Panel(
                "Passes per minute",
                (Query(per_minute("export_reconciliation_passes_total", "instance"), "{{instance}}"),),
                width=12,
            ),
        ),
        "Snapshots": (
            Panel(
                "Finalised",
                (
                    Query(counted("snapshots_ready_to_finalize_total"), "ready to finalise"),
                    Query(counted("snapshots_finalized_total"), "finalised"),
                    Query(counted("snapshots_finalization_failures_total"), "failures"),
                ),
            ),
            Panel(
                "Finalisation lag", (Query(most("snapshot_finalization_lag_seconds"), "longest of the newest 50"),), unit="s"
            ),
            Panel(
                "Duration of passes", quantiles("export_reconciliation_pass_duration_seconds", "", 0.5, 0.95, 0.99), unit="s"
            ),
        ),
    },
)
