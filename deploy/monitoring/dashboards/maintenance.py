"""Maintenance: health of tables, actions, policies."""

from monitoring.panels import Dashboard, Panel, Query, most, quantiles, rate

DASHBOARD = Dashboard(
    uid="holdfast-maintenance",
    title="Holdfast / Maintenance",
    says="Iceberg tables: their health, and what is done for it.",
    service="maintenance",
    rows={
        "Tables": (
            Panel("Tables by health", (Query(most("maintenance_tables", "health"), "{{health}}"),)),
            Panel("Open runs", (Query(most("maintenance_runs_open", "state"), "{{state}}"),)),
            Panel("Actions", (Query(rate("maintenance_actions_total", "action, status"), "{{action}} {{status}}"),), rare=True),
            Panel("Duration of actions", quantiles("maintenance_action_seconds", "action", 0.5, 0.95), unit="s", rare=True),
            Panel("Jobs of policies", (Query("sum(rate(maintenance_policy_jobs_total[$__rate_interval]))", "enqueued"),)),
        ),
    },
)
