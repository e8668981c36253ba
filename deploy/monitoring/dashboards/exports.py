"""Exports: the queue, throughput and the schema cache."""

from monitoring.panels import Dashboard, Panel, Query, most, per_minute, quantiles, rate

EXPORTS = "exports.*"

DASHBOARD = Dashboard(
    uid="holdfast-exports",
    title="Holdfast / Exports",
    says="Export jobs by status, how long they take, and the schema cache.",
    service="exports",
    rows={
        "Queue": (
            Panel(
                "Export jobs by status",
                (Query(most("export_jobs_by_status_total", "status"), "{{status}}"),),
                says="Counted up to 10,000 each.",
            ),
            Panel("Queue depth", (Query(most("graph_olap_export_queue_depth"), "pending"),)),
            Panel(
                "Exports per minute",
                (Query(per_minute("holdfast_attempts_total", "kind, outcome", kind=EXPORTS), "{{kind}} {{outcome}}"),),
            ),
            Panel(
                "Run time",
                (Query(most("holdfast_job_run_seconds", "kind, quantile", kind=EXPORTS), "{{kind}} {{quantile}}"),),
                unit="s",
            ),
            Panel(
                "Wait",
                (Query(most("holdfast_job_wait_seconds", "kind, quantile", kind=EXPORTS), "{{kind}} {{quantile}}"),),
                unit="s",
            ),
        ),
        "Schema cache": (
            Panel("Entries", (Query(most("schema_cache_entries_total", "entity_type"), "{{entity_type}}"),)),
            Panel("Refreshes", (Query(rate("schema_cache_refreshes_total", "status"), "{{status}}"),)),
            Panel("Duration of refreshes", quantiles("schema_cache_refresh_duration_seconds", "", 0.5, 0.95), unit="s"),
        ),
    },
)
