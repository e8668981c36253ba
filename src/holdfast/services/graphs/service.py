"""The description of graphs: everything that the programs, the command line and the client learn of it."""

from __future__ import annotations

from typing import Final

from holdfast.services.contract import Command, Kind, Namespace, Page, Service
from holdfast.services.graphs import limits, names, policy, problems
from holdfast.services.graphs.runtimes.kubernetes import names as kubernetes
from holdfast.services.registration import register

SERVICE: Final = register(
    Service(
        name="graphs",
        purpose="Runs graph databases that are loaded from snapshots: create, query, suspend, resize, delete.",
        routes="api",
        actions=policy.ACTIONS,
        problems=problems.PROBLEMS,
        pages=(
            Page("graphs", "Graphs", "instances.read", "pages.instances:show_list", "Graphs"),
            Page("graphs/{instance_id}", "Graph", "instances.read", "pages.instances:show_one"),
            Page("graphs/{instance_id}/query", "Query", "instances.query", "pages.query:show"),
            Page(
                *("graphs/{instance_id}/algorithms", "Algorithms", "instances.query", "pages.algorithms:show"),
                takes="pages.algorithms:take",
            ),
        ),
        console_actions="pages.actions:ACTIONS",
        kinds=(Kind("graphs.start"), Kind("graphs.resize"), Kind("graphs.remove"), Kind("graphs.algorithm")),
        kinds_module="kinds",
        effects={"graphs.server": "", "graphs.run": ""},
        loops=("reconciliation", "instance_lifecycle", "instance_orchestration", "resource_monitor"),
        loops_module="loops",
        settings="settings:GraphsSettings",
        config_keys=limits.CONFIG_KEYS,
        events=names.EVENTS | kubernetes.EVENTS,
        metrics=names.METRICS,
        plane_metrics=names.PLANE_METRICS,
        crash_points=names.CRASH_POINTS | kubernetes.CRASH_POINTS,
        commands=(
            Command("graph", "cli.graph", "Graph instances: create, query, suspend, delete.", plural="graphs"),
            Command(
                "graph-server", "cli.graph_server", "Load one snapshot and answer Cypher; a runtime starts it.", panel="run"
            ),
        ),
        client=(Namespace("graphs", "client.graphs:Graphs"),),
        checks="cli.checks",
        tables=("graph_instances", "graph_secrets", "graph_events", "graph_samples", "graph_suspects", "favorites"),
        migrations="migrations",
        demo="demo",
        extras={"graphs": "httpx2"},
    )
)
