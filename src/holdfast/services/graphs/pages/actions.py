"""The buttons of the pages: each calls a route of the API. Pure data."""

from __future__ import annotations

from typing import Final

from holdfast.console.actions import Action, Field

ACTIONS: Final = (
    Action(
        name="graph.create",
        label="New graph",
        policy="instances.create",
        path="/api/instances",
        says="A graph server is started and loads a snapshot: a ready one, or a new one of a mapping, which is exported first.",
        target="instances",
        back="graphs",
        fields=(
            Field("name", "Name", required=True),
            Field("mapping_id", "Mapping", "number", help="The number of a mapping, or leave it empty and give a snapshot."),
            Field("snapshot_id", "Snapshot", "number", help="The number of a ready snapshot."),
            Field("ttl", "Time to live", help="An ISO 8601 duration such as P1D; empty: the default."),
        ),
        reason="none",
        done="The graph is being created.",
    ),
    Action(
        name="graph.extend",
        label="Extend",
        policy="instances.change",
        path="/api/instances/{instance_id}/extend",
        says="Graph {instance_id} lives so much longer, up to the maximum TTL.",
        target="instance/{instance_id}",
        back="graphs/{instance_id}",
        fields=(Field("by", "By", default="PT24H", help="An ISO 8601 duration such as PT12H or P1D.", required=True),),
        done="The graph lives longer.",
    ),
    Action(
        name="graph.suspend",
        label="Suspend",
        policy="instances.change",
        path="/api/instances/{instance_id}/suspend",
        says="The graph server of graph {instance_id} is removed; queries that run are lost. Its snapshot is kept, and Resume "
        "loads it again.",
        target="instance/{instance_id}",
        back="graphs/{instance_id}",
        danger=True,
        done="The graph is suspended; a job removes its server.",
    ),
    Action(
        name="graph.resume",
        label="Resume",
        policy="instances.change",
        path="/api/instances/{instance_id}/resume",
        says="A new graph server is started for graph {instance_id} and loads its snapshot. Refused if a limit is reached.",
        target="instance/{instance_id}",
        back="graphs/{instance_id}",
        done="The graph is being started.",
    ),
    Action(
        name="graph.delete",
        label="Delete",
        policy="instances.change",
        method="DELETE",
        path="/api/instances/{instance_id}",
        says="The graph server of graph {instance_id} is removed, then the graph itself. This cannot be undone.",
        target="instance/{instance_id}",
        back="graphs",
        reason="query",
        danger=True,
        done="Graph {instance_id} is deleted, or is being deleted.",
    ),
)
