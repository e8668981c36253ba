"""Background Jobs Overview: executions per minute, success, duration and errors of each periodic loop."""

from monitoring.panels import Dashboard, Panel, Query, per_minute, quantiles, rate

LOOPS = "background_job_execution_total"

DASHBOARD = Dashboard(
    uid="holdfast-background-jobs",
    title="Holdfast / Background Jobs Overview",
    says="The periodic loops. Their names are the label job_name.",
    rows={
        "Loops": (
            Panel("Executions per minute", (Query(per_minute(LOOPS, "job_name"), "{{job_name}}"),), width=12),
            Panel(
                "Success",
                (Query(f"{rate(LOOPS, 'job_name', status='success')} / {rate(LOOPS, 'job_name')}", "{{job_name}}"),),
                unit="percentunit",
                width=12,
            ),
            Panel(
                "Duration",
                quantiles("background_job_execution_duration_seconds", "job_name", 0.5, 0.95, 0.99),
                unit="s",
                width=12,
            ),
            Panel(
                "Errors per minute",
                (Query(per_minute(LOOPS, "job_name", status="failed"), "{{job_name}}"),),
                width=12,
                rare=True,
            ),
        ),
        "Health": (
            Panel(
                "Time since the last success",
                (Query("time() - max by (job_name) (background_job_last_success_timestamp_seconds)", "{{job_name}}"),),
                unit="s",
            ),
            Panel(
                "Healthy",
                (Query("min by (job_name) (background_job_health_status)", "{{job_name}}"),),
                says="0 after three failures in a row.",
            ),
            Panel("Interval", (Query("max by (job_name) (background_job_interval_seconds)", "{{job_name}}"),), unit="s"),
            Panel("Late", (Query("max by (job_name) (holdfast_loop_late_seconds)", "{{job_name}}"),), unit="s"),
            Panel(
                "Items per second", (Query(rate("holdfast_loop_items_total", "job_name, outcome"), "{{job_name}} {{outcome}}"),)
            ),
            Panel("Missed ticks", (Query(rate("holdfast_loop_missed_ticks_total", "job_name"), "{{job_name}}"),), rare=True),
        ),
    },
)
