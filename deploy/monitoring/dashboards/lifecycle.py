"""Lifecycle: what was deleted because of its TTL or inactivity, and how late."""

from monitoring.panels import Dashboard, Panel, Query, counted, per_minute, quantiles, rate

DASHBOARD = Dashboard(
    uid="holdfast-lifecycle",
    title="Holdfast / Lifecycle",
    says="TTL and inactivity timeouts of snapshots, mappings and instances.",
    service="exports",
    rows={
        "Deleted": (
            Panel(
                "TTL",
                (
                    Query("sum(increase(ttl_snapshots_deleted_total[$__rate_interval]))", "snapshots"),
                    Query("sum(increase(ttl_mappings_deleted_total[$__rate_interval]))", "mappings"),
                ),
            ),
            Panel("TTL of instances", (Query(counted("ttl_instances_terminated_total"), "instances"),), service="graphs"),
            Panel(
                "Inactivity",
                (
                    Query("sum(increase(inactive_snapshots_deleted_total[$__rate_interval]))", "snapshots"),
                    Query("sum(increase(inactive_mappings_deleted_total[$__rate_interval]))", "mappings"),
                ),
            ),
            Panel(
                "Inactivity of instances",
                (Query(counted("inactive_instances_terminated_total"), "instances"),),
                service="graphs",
            ),
        ),
        "Enforcement": (
            Panel("Enforcement lag", quantiles("lifecycle_enforcement_lag_seconds", "resource_type", 0.5, 0.95), unit="s"),
            Panel(
                "Failures",
                (Query(rate("lifecycle_termination_failures_total", "resource_type"), "{{resource_type}}"),),
                rare=True,
            ),
            Panel(
                "Files that could not be removed",
                (Query("sum(increase(snapshot_gcs_cleanup_failures_total[$__rate_interval]))", "snapshots"),),
            ),
            Panel("Passes per minute", (Query(per_minute("lifecycle_passes_total", "instance"), "{{instance}}"),)),
            Panel("Duration of passes", quantiles("lifecycle_pass_duration_seconds", "", 0.5, 0.95, 0.99), unit="s"),
        ),
    },
)
