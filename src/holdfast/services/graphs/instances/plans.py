"""The load plan and the specification of one start. Called by: `graphs.start`, and the route that graph servers fetch it from.

The plan comes from the snapshot's own mapping version. Later versions of the mapping do not matter.
"""

from __future__ import annotations

from typing import Any, cast

from holdfast.services.exports.offers import Snapshot, SnapshotTable
from holdfast.services.graphs.instances.rows import Instance
from holdfast.services.graphs.plan import Column, EdgeTable, File, LoadPlan, NodeTable
from holdfast.services.graphs.runtimes.interface import InstanceSpec

ATTEMPTS = 1_000_000  # more than one start job can have


def plan_of(instance: Instance, snapshot: Snapshot) -> LoadPlan:
    """What a graph server loads for this start. Pure."""
    return LoadPlan(
        instance_id=instance.id,
        start_token=instance.start_token,
        engine=instance.engine,
        mapping_id=snapshot.mapping_id,
        mapping_version=snapshot.mapping_version,
        snapshot_id=snapshot.id,
        location=snapshot.location,
        nodes=tuple(_node(table) for table in snapshot.tables if table.type == "node"),
        edges=tuple(_edge(table) for table in snapshot.tables if table.type == "edge"),
    )


def _node(table: SnapshotTable) -> NodeTable:
    given = cast("Any", table.definition)
    key = Column(name=given.primary_key.name, type=given.primary_key.type)
    return NodeTable(
        label=table.name, primary_key=key, properties=_properties(table), files=_files(table), rows=table.rows or 0
    )


def _edge(table: SnapshotTable) -> EdgeTable:
    given = cast("Any", table.definition)
    return EdgeTable(
        type=table.name,
        from_node=given.from_node,
        to_node=given.to_node,
        from_key=given.from_key,
        to_key=given.to_key,
        properties=_properties(table),
        files=_files(table),
        rows=table.rows or 0,
    )


def _properties(table: SnapshotTable) -> tuple[Column, ...]:
    return tuple(Column(name=one.name, type=one.type) for one in table.definition.properties)


def _files(table: SnapshotTable) -> tuple[File, ...]:
    return tuple(File(path=one.url, rows=one.rows, bytes=one.bytes) for one in table.files)


def spec_of(instance: Instance, plan: LoadPlan, *, fence_token: int, callback_url: str | None) -> InstanceSpec:
    """What should run. `fence_token` is that of the job's claim; the start's number makes it grow over all starts. Pure."""
    own = None if callback_url is None else f"{callback_url.rstrip('/')}/api/instances/{instance.id}"
    return InstanceSpec(
        instance_id=instance.id,
        start_token=instance.start_token,
        fence_token=instance.starts * ATTEMPTS + fence_token,
        owner=instance.owner,
        engine=instance.engine,
        memory_mb=instance.memory_mb,
        cpu=instance.cpu,
        plan=plan,
        secret=instance.secret,
        callback_url=own,
        labels={
            "mapping-id": str(instance.mapping_id),
            "mapping-version": str(instance.mapping_version),
            "snapshot-id": str(instance.snapshot_id),
        },
    )
