"""The tree of a mapping: its versions, their snapshots, and the graph instances of each."""

from __future__ import annotations

from fastapi import Request
from pydantic import BaseModel
from starlette.responses import Response

from holdfast.api.envelope import Data, respond
from holdfast.api.paging import JobNumber
from holdfast.api.plane import plane_of
from holdfast.api.routes import Routes
from holdfast.services.exports import offers
from holdfast.services.exports.offers import SnapshotHead
from holdfast.services.graphs.instances import read
from holdfast.services.graphs.instances.rows import Instance
from holdfast.services.graphs.states import InstanceState

routes = Routes("mappings")

MOST = 1000


class InstanceLeaf(BaseModel):
    id: int
    name: str
    owner: str
    status: InstanceState


class SnapshotBranch(BaseModel):
    id: int
    name: str
    status: str
    size_bytes: int | None
    instances: list[InstanceLeaf]


class VersionBranch(BaseModel):
    version: int
    snapshots: list[SnapshotBranch]


class Tree(BaseModel):
    """The newest 1,000 snapshots and instances."""

    mapping_id: int
    versions: list[VersionBranch]
    snapshots: int
    instances: int


@routes.add(
    "GET", "/api/mappings/{mapping_id}/instances/tree", action="instances.read", answers=Data[Tree], refuses=["not-found"]
)
async def show_tree(
    request: Request, mapping_id: JobNumber, include_instances: bool = True, status: InstanceState | None = None
) -> Response:
    """Show the versions of a mapping, their snapshots and instances; `status` filters the instances."""
    async with plane_of(request).pool.connection() as conn:
        versions = await offers.mapping_versions(conn, mapping_id)
        snapshots = await offers.snapshots_of_mapping(conn, mapping_id, limit=MOST)
        instances = await read.listed(conn, limit=MOST, mapping_id=mapping_id, status=status) if include_instances else []
    return respond(tree_of(mapping_id, versions, snapshots, instances).model_dump())


def tree_of(mapping_id: int, versions: list[int], snapshots: list[SnapshotHead], instances: list[Instance]) -> Tree:
    """Put the parts together. Pure."""

    def leaves(snapshot: SnapshotHead) -> list[InstanceLeaf]:
        of_it = [one for one in instances if one.snapshot_id == snapshot.id]
        return [InstanceLeaf(id=one.id, name=one.name, owner=one.owner, status=one.status) for one in of_it]

    def branches(version: int) -> list[SnapshotBranch]:
        of_it = [one for one in snapshots if one.mapping_version == version]
        return [
            SnapshotBranch(id=one.id, name=one.name, status=one.state, size_bytes=one.size_bytes, instances=leaves(one))
            for one in of_it
        ]

    return Tree(
        mapping_id=mapping_id,
        versions=[VersionBranch(version=version, snapshots=branches(version)) for version in versions],
        snapshots=len(snapshots),
        instances=len(instances),
    )
