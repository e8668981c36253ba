"""Ingestion: jobs by result, rows, uploads, what is due, and the latency of an application that runs ingestion."""

from monitoring.panels import Dashboard, Panel, Query, most, quantiles, rate

DASHBOARD = Dashboard(
    uid="holdfast-ingestion",
    title="Holdfast / Ingestion",
    says="Files and APIs that are ingested, and whether emissions and statistics include every change.",
    service="ingestion",
    rows={
        "Jobs": (
            Panel("Jobs by result", (Query(most("ingestion_jobs", "result"), "{{result}}"),), says="The newest 10,000 jobs."),
            Panel("Errors by job type", (Query(most("ingestion_jobs", "job_type", result="ERROR"), "{{job_type}}"),)),
            Panel("Rows validated", (Query(rate("ingestion_rows_total", "outcome"), "{{outcome}}"),), rare=True),
            Panel(
                "Uploads",
                (Query("sum(rate(ingestion_uploaded_bytes_total[$__rate_interval]))", "received"),),
                unit="Bps",
                rare=True,
            ),
        ),
        "Due": (
            Panel(
                "Types and years with a change that is not included",
                (
                    Query(most("ingestion_recalculations_due"), "emissions"),
                    Query(most("ingestion_aggregations_due"), "statistics"),
                ),
            ),
            Panel(
                "Age of the oldest change",
                (Query(most("ingestion_statistics_lag_seconds"), "not in the statistics"),),
                unit="s",
            ),
        ),
        "Web application": (
            Panel(
                "Request duration",
                quantiles("ingestion_web_request_duration_seconds", "", 0.5, 0.95),
                unit="s",
                says="Of an application that runs ingestion beside its routes and uses the middleware WebLatency.",
                rare=True,
            ),
        ),
    },
)
