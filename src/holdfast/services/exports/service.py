"""The description of exports: everything that the programs, the command line and the client learn of it."""

from __future__ import annotations

from typing import Final

from holdfast.jobs.config_keys import ConfigKey
from holdfast.services.contract import Command, Kind, Namespace, Page, Service
from holdfast.services.exports import names, policy, problems
from holdfast.services.registration import register

SERVICE: Final = register(
    Service(
        name="exports",
        purpose="Writes the results of SQL to Parquet files: mappings, snapshots, export jobs, schema cache.",
        routes="api",
        actions=policy.ACTIONS,
        problems=problems.PROBLEMS,
        pages=(
            Page("mappings", "Mappings", "mappings.read", "pages.mappings:show_list", "Exports"),
            Page("mappings/{mapping_id}", "Mapping", "mappings.read", "pages.mappings:show_one"),
            Page("snapshots", "Snapshots", "snapshots.read", "pages.snapshots:show_list", "Exports"),
            Page("snapshots/{snapshot_id}", "Snapshot", "snapshots.read", "pages.snapshots:show_one"),
        ),
        console_actions="pages.actions:ACTIONS",
        kinds=(Kind("exports.run", public=True), Kind("exports.export"), Kind("exports.remove")),
        kinds_module="kinds",
        effects={
            "export.prefix": "export.recorded:reason_against",
            "export.query": "export.recorded:reason_against",
            "export.table": "export.recorded:reason_against",
            "export.files": "",
        },
        loops=("export_reconciliation", "lifecycle", "schema_cache"),
        loops_module="loops",
        settings="settings:ExportsSettings",
        config_keys={
            "export.max_duration_seconds": ConfigKey(3600, 60, 86_400, "Seconds after which a running export is stopped."),
            "cache.metadata.ttl_hours": ConfigKey(24, 1, 720, "Hours for which cached metadata counts as fresh."),
        },
        events=names.EVENTS,
        metrics=names.METRICS,
        plane_metrics=names.PLANE_METRICS,
        crash_points=names.CRASH_POINTS,
        commands=(
            Command("export", "cli.export", "Exports: the result of SQL as Parquet files."),
            Command("mapping", "cli.mapping", "Mappings: nodes and edges of a graph, and the SQL of each.", plural="mappings"),
            Command("snapshot", "cli.snapshot", "Snapshots: one run of a mapping, as Parquet files.", plural="snapshots"),
            Command("schema", "cli.schema", "Schema cache: browse and search the engines' catalogs."),
        ),
        client=(
            Namespace("mappings", "client.mappings:Mappings"),
            Namespace("snapshots", "client.snapshots:Snapshots"),
            Namespace("exports", "client.exports:Exports"),
            Namespace("schema", "client.schema:Schema"),
        ),
        checks="cli.checks",
        tables=("mappings", "mapping_versions", "snapshots", "snapshot_uses", "exports", "schema_cache", "schema_refreshes"),
        migrations="migrations",
        demo="demo",
        extras={"exports": "duckdb"},
    )
)
