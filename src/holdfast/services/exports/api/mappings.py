"""Mappings: create, change, compare, copy, delete. Definitions are validated by the engine before they are stored."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Annotated, Any

import psycopg
from fastapi import Query, Request
from pydantic import Field
from starlette.responses import Response

from holdfast.api.acts import Acting, Model, OwnerOf, Text
from holdfast.api.envelope import UNCHANGED, Answer, Data, Listed, etag_of, jsonable, require_match, respond, respond_tagged
from holdfast.api.paging import JobNumber, Paged
from holdfast.api.plane import plane_of
from holdfast.api.problems import Problem
from holdfast.api.routes import Routes
from holdfast.services.exports.api.dependencies import Description, Duration, Here, Title, UseCase, dry_run
from holdfast.services.exports.mappings import store
from holdfast.services.exports.mappings.definitions import EdgeDefinition, Graph, NodeDefinition
from holdfast.services.exports.mappings.diff import diff
from holdfast.services.exports.mappings.store import Change, MappingHead, MappingVersion, NewMapping

routes = Routes("mappings")

Conn = psycopg.AsyncConnection[Any]
Nodes = Annotated[list[NodeDefinition], Field(max_length=1000)]
Edges = Annotated[list[EdgeDefinition], Field(max_length=1000)]
VersionNumber = Annotated[int, Field(ge=1, le=2**31 - 1)]
ENGINE_REFUSALS = ["validation-failed", "missing-use-case", "engine-unavailable", "already-exists", "idempotency-mismatch"]


@dataclass(frozen=True, slots=True)
class MappingView(MappingHead):
    """A mapping with the definitions of one of its versions."""

    version: int
    change_description: str | None
    nodes: list[Any]
    edges: list[Any]
    version_created_by: str
    version_created_at: datetime


def view(head: MappingHead, version: MappingVersion) -> MappingView:
    fields = {name: getattr(head, name) for name in MappingHead.__dataclass_fields__}
    return MappingView(
        **fields,
        version=version.version,
        change_description=version.change_description,
        nodes=version.nodes,
        edges=version.edges,
        version_created_by=version.created_by,
        version_created_at=version.created_at,
    )


async def current(conn: Conn, mapping_id: int) -> MappingView:
    head = await store.get(conn, mapping_id)
    return view(head, await store.get_version(conn, mapping_id, head.current_version))


# ---------------------------------------------------------------------------------------------------------------------
# Reading
# ---------------------------------------------------------------------------------------------------------------------


@routes.add("GET", "/api/mappings", action="mappings.read", answers=Listed[MappingHead], refuses=["invalid-cursor"])
async def list_mappings(
    request: Request,
    page: Paged,
    owner: Annotated[Text | None, Query(max_length=500)] = None,
    name: Annotated[Text | None, Query(max_length=255)] = None,
    search: Annotated[Text | None, Query(max_length=255)] = None,
) -> Response:
    """List mappings, newest first."""
    async with plane_of(request).pool.connection() as conn:
        found = await store.listed(conn, limit=page.limit, before=page.after, owner=owner, name=name, search=search)
    shown = found[: page.limit]
    return page.answer(shown, shown[-1].id if len(found) > page.limit else None)


@routes.add(
    "GET", "/api/mappings/{mapping_id}", action="mappings.read", answers=Data[MappingView], refuses=["not-found"],
    others=[UNCHANGED],
)  # fmt: skip
async def show_mapping(request: Request, mapping_id: JobNumber) -> Response:
    """Show a mapping with its current version."""
    async with plane_of(request).pool.connection() as conn:
        return respond_tagged(request, await current(conn, mapping_id))


@routes.add(
    "GET", "/api/mappings/{mapping_id}/versions", action="mappings.read", answers=Data[list[MappingVersion]],
    refuses=["not-found"],
)  # fmt: skip
async def list_versions(request: Request, mapping_id: JobNumber) -> Response:
    """List the versions of a mapping, newest first."""
    async with plane_of(request).pool.connection() as conn:
        return respond(await store.versions(conn, mapping_id))


@routes.add(
    "GET", "/api/mappings/{mapping_id}/versions/{version}", action="mappings.read", answers=Data[MappingVersion],
    refuses=["not-found"],
)  # fmt: skip
async def show_version(request: Request, mapping_id: JobNumber, version: VersionNumber) -> Response:
    """Show one version of a mapping."""
    async with plane_of(request).pool.connection() as conn:
        return respond(await store.get_version(conn, mapping_id, version))


class Difference(Model):
    """The differences between two versions."""

    summary: dict[str, int]
    nodes: list[dict[str, Any]]
    edges: list[dict[str, Any]]


@routes.add(
    "GET", "/api/mappings/{mapping_id}/versions/{before}/diff/{after}", action="mappings.read", answers=Data[Difference],
    refuses=["not-found"],
)  # fmt: skip
async def compare_versions(request: Request, mapping_id: JobNumber, before: VersionNumber, after: VersionNumber) -> Response:
    """Compare two versions of a mapping."""
    if before == after:
        raise Problem("invalid-request", f"both versions are {before}; use two different versions")
    async with plane_of(request).pool.connection() as conn:
        was = await store.get_version(conn, mapping_id, before)
        now = await store.get_version(conn, mapping_id, after)
    return respond(diff(was.graph, now.graph))


class Tree(Model):
    """A mapping with its versions and their snapshots."""

    id: int
    name: str
    current_version: int
    versions: list[dict[str, Any]]
    totals: dict[str, int]


@routes.add("GET", "/api/mappings/{mapping_id}/tree", action="mappings.read", answers=Data[Tree], refuses=["not-found"])
async def show_tree(
    request: Request, mapping_id: JobNumber, status: Annotated[Text | None, Query(max_length=20)] = None
) -> Response:
    """Show the versions of a mapping with their snapshots."""
    async with plane_of(request).pool.connection() as conn:
        return respond(await store.tree(conn, mapping_id, state=status))


# ---------------------------------------------------------------------------------------------------------------------
# Changing
# ---------------------------------------------------------------------------------------------------------------------


class MappingAsked(Model):
    """A mapping to create."""

    name: Title
    description: Description | None = None
    engine: Annotated[Text, Field(min_length=1, max_length=100)] | None = None
    nodes: Nodes
    edges: Edges = Field(default_factory=list)
    ttl: Duration | None = None
    inactivity_timeout: Duration | None = None


@routes.add("POST", "/api/mappings", action="mappings.create", status=201, answers=Data[MappingView], refuses=ENGINE_REFUSALS)
async def create_mapping(asked: MappingAsked, act: Acting, here: Here, use_case: UseCase = None) -> Response:
    """Create a mapping. If it is invalid, the response lists all mistakes."""
    engine = asked.engine or here.engines.default
    graph = Graph(nodes=tuple(asked.nodes), edges=tuple(asked.edges))
    await dry_run(here, engine, graph, use_case)
    new = NewMapping(asked.name, engine, graph, asked.description, asked.ttl, asked.inactivity_timeout)

    async def do(conn: Conn) -> Answer:
        made = view(*await store.create(conn, new, owner=act.actor))
        return Answer(201, made, {"Location": f"/api/mappings/{made.id}"})

    return await act.run("mapping", do, detail={"name": asked.name})


@routes.add("POST", "/api/mappings/check", action="mappings.create", answers=Data[dict[str, Any]], refuses=ENGINE_REFUSALS)
async def check_mapping(asked: MappingAsked, here: Here, use_case: UseCase = None) -> Response:
    """Validate a mapping without storing it. If it is invalid, the response lists all mistakes."""
    engine = asked.engine or here.engines.default
    await dry_run(here, engine, Graph(nodes=tuple(asked.nodes), edges=tuple(asked.edges)), use_case)
    return respond({"valid": True, "engine": engine, "nodes": len(asked.nodes), "edges": len(asked.edges)})


class ChangeAsked(Model):
    """The fields to change. A list that is omitted is kept; an empty list removes all."""

    change_description: Annotated[Text, Field(min_length=1, max_length=1000)]
    name: Title | None = None
    description: Description | None = None
    nodes: Nodes | None = None
    edges: Edges | None = None


@routes.add(
    "PUT", "/api/mappings/{mapping_id}", action="mappings.change", answers=Data[MappingView],
    refuses=[*ENGINE_REFUSALS, "not-found", "changed-meanwhile"],
)  # fmt: skip
async def change_mapping(
    request: Request, mapping_id: JobNumber, asked: ChangeAsked, act: Acting, here: Here, use_case: UseCase = None
) -> Response:
    """Change a mapping. A new version is created only if the definitions change."""
    async with plane_of(request).pool.connection() as conn:
        seen = await current(conn, mapping_id)
    graph = _changed(seen, asked)
    if graph is not None:
        await dry_run(here, seen.engine, graph, use_case)

    async def do(conn: Conn) -> Answer:
        held = await store.get(conn, mapping_id, hold=True)
        now = view(held, await store.get_version(conn, mapping_id, held.current_version))
        require_match(request, etag_of(jsonable(now)))
        if now.version != seen.version:
            raise Problem(
                "changed-meanwhile",
                f"mapping {mapping_id} is at version {now.version} now; read it again and repeat the change",
            )
        change = Change(asked.change_description, asked.name, asked.description, graph)
        return Answer(200, view(*await store.update(conn, mapping_id, change, by=act.actor)))

    return await act.run(f"mapping/{mapping_id}", do, owner=_owner(mapping_id), detail={"change": asked.change_description})


def _owner(mapping_id: int) -> OwnerOf:
    return partial(store.owner_of, mapping_id=mapping_id)


def _changed(seen: MappingView, asked: ChangeAsked) -> Graph | None:
    """The new definitions; None if they do not change. Pure."""
    if asked.nodes is None and asked.edges is None:
        return None
    before = Graph.of(seen.nodes, seen.edges)
    return Graph(
        nodes=before.nodes if asked.nodes is None else tuple(asked.nodes),
        edges=before.edges if asked.edges is None else tuple(asked.edges),
    )


class CopyAsked(Model):
    """The name of the copy."""

    name: Title


@routes.add(
    "POST", "/api/mappings/{mapping_id}/copy", action="mappings.create", status=201, answers=Data[MappingView],
    refuses=["not-found", "already-exists", "idempotency-mismatch"],
)  # fmt: skip
async def copy_mapping(mapping_id: JobNumber, asked: CopyAsked, act: Acting) -> Response:
    """Create a mapping as a copy of the current version of another one. The caller owns it."""

    async def do(conn: Conn) -> Answer:
        made = view(*await store.copy(conn, mapping_id, asked.name, owner=act.actor))
        return Answer(201, made, {"Location": f"/api/mappings/{made.id}"})

    return await act.run("mapping", do, detail={"copy_of": mapping_id})


class LifecycleAsked(Model):
    """The TTL and the inactivity timeout; null: no limit."""

    ttl: Duration | None = None
    inactivity_timeout: Duration | None = None


@routes.add(
    "PUT", "/api/mappings/{mapping_id}/lifecycle", action="mappings.change", answers=Data[MappingHead],
    refuses=["not-found", "idempotency-mismatch"],
)  # fmt: skip
async def set_lifecycle(mapping_id: JobNumber, asked: LifecycleAsked, act: Acting) -> Response:
    """Set the TTL and the inactivity timeout of a mapping."""

    async def do(conn: Conn) -> Answer:
        return Answer(200, await store.set_lifecycle(conn, mapping_id, asked.ttl, asked.inactivity_timeout))

    return await act.run(f"mapping/{mapping_id}", do, owner=_owner(mapping_id), detail=asked.model_dump())


class Deleted(Model):
    """The deleted mapping."""

    id: int


@routes.add(
    "DELETE", "/api/mappings/{mapping_id}", action="mappings.change", answers=Data[Deleted],
    refuses=["not-found", "resource-has-dependencies", "idempotency-mismatch"],
)  # fmt: skip
async def delete_mapping(mapping_id: JobNumber, act: Acting) -> Response:
    """Delete a mapping with its versions. Refused while it has snapshots."""

    async def do(conn: Conn) -> Answer:
        await store.delete(conn, mapping_id)
        return Answer(200, {"id": mapping_id})

    return await act.run(f"mapping/{mapping_id}", do, owner=_owner(mapping_id))
