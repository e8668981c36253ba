"""Graphs: instances by status, memory, resizes."""

from monitoring.panels import Dashboard, Panel, Query, counted, most

DASHBOARD = Dashboard(
    uid="holdfast-graphs",
    title="Holdfast / Graphs",
    says="Graph instances, their memory and their transitions.",
    service="graphs",
    rows={
        "Instances": (
            Panel("Instances by status", (Query(most("graph_instances", "status"), "{{status}}"),)),
            Panel("Reserved memory", (Query(most("graph_memory_reserved_bytes"), "active instances"),), unit="bytes"),
            Panel(
                "Transitions",
                (
                    Query(counted("instances_transitioned_to_starting_total"), "to starting"),
                    Query(counted("instances_transitioned_to_failed_total"), "to failed"),
                ),
            ),
        ),
        "Resources": (
            Panel(
                "Resizes",
                (
                    Query(counted("resource_monitor_proactive_resizes_total"), "proactive"),
                    Query(counted("resource_monitor_urgent_resizes_total"), "urgent"),
                    Query(counted("resource_monitor_oom_recoveries_total"), "after OOM"),
                ),
            ),
            Panel("Failures", (Query(counted("resource_monitor_failures_total"), "instances"),)),
        ),
    },
)
