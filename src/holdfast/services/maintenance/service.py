"""The description of maintenance: everything that the programs, the command line and the client learn of it."""

from __future__ import annotations

from typing import Final

from holdfast.services.contract import Command, Kind, Namespace, Page, Service
from holdfast.services.maintenance import names, policy, problems
from holdfast.services.registration import register

SERVICE: Final = register(
    Service(
        name="maintenance",
        purpose="Maintains Iceberg tables: compaction, snapshots, manifests, orphan files; health, policies, savings.",
        routes="api",
        actions=policy.ACTIONS,
        problems=problems.PROBLEMS,
        pages=(
            Page("tables", "Tables", "tables.read", "pages.tables:show_list", "Maintenance"),
            Page("tables/{db}/{table}", "Table", "tables.read", "pages.table:show"),
            Page("table-policies", "Policies", "maintenance_policies.read", "pages.policies:show_list", "Maintenance"),
            Page("table-policies/{name}", "Policy", "maintenance_policies.read", "pages.policies:show_one"),
        ),
        console_actions="pages.actions:ACTIONS",
        kinds=(Kind("maintenance.run"),),
        kinds_module="kinds",
        effects={"maintenance.remote_work": ""},
        loops=("table_health", "maintenance_policies"),
        loops_module="loops",
        settings="settings:MaintenanceSettings",
        events=names.EVENTS,
        metrics=names.METRICS,
        plane_metrics=names.PLANE_METRICS,
        crash_points=names.CRASH_POINTS,
        commands=(Command("table", "cli.table", "Iceberg tables: health, maintenance, policies, savings.", plural="tables"),),
        client=(Namespace("tables", "client.tables:Tables"),),
        checks="cli.checks",
        tables=(
            *("maintenance_tables", "maintenance_policies", "maintenance_runs", "maintenance_actions"),
            *("holdfast_iceberg.iceberg_tables", "holdfast_iceberg.iceberg_namespace_properties"),
        ),
        migrations="migrations",
        demo="demo",
        extras={"maintenance": "pyiceberg"},
    )
)
