"""Postgres: connections, dead rows and the horizon that keeps them alive."""

from monitoring.panels import Dashboard, Panel, Query, most

DASHBOARD = Dashboard(
    uid="holdfast-postgres",
    title="Holdfast / Postgres",
    says="What Holdfast needs from its database.",
    rows={
        "Connections": (
            Panel("Reachable", (Query("max by (instance) (holdfast_database_reachable)", "{{instance}}"),)),
            Panel("Connections of the server", (Query(most("holdfast_server_connections", "state"), "{{state}}"),)),
            Panel("Pools of the control plane", (Query("sum by (state) (holdfast_pool_connections)", "{{state}}"),)),
            Panel("Pools of workers", (Query("sum by (state) (holdfast_worker_connections)", "{{state}}"),)),
            Panel("Connections by state", (Query("sum by (state) (graph_olap_database_connections)", "{{state}}"),)),
        ),
        "Tables": (
            Panel("Rows", (Query(most("holdfast_table_rows_live", "table"), "{{table}}"),)),
            Panel("Dead rows", (Query(most("holdfast_table_rows_dead", "table"), "{{table}}"),)),
            Panel("Size", (Query(most("holdfast_table_bytes", "table"), "{{table}}"),), unit="bytes"),
        ),
        "Transactions": (
            Panel("Age of the oldest snapshot", (Query(most("holdfast_xmin_age"), "transactions"),)),
            Panel("Age of the oldest unfrozen row", (Query(most("holdfast_frozen_xid_age"), "transactions"),)),
        ),
    },
)
