"""Create and read graph instances: list, show, progress, events, health, log, limits."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import psycopg
from fastapi import Query, Request
from pydantic import BaseModel, Field, model_validator
from starlette.responses import Response

from holdfast.api.acts import Acting, Model, Text
from holdfast.api.envelope import Answer, Data, Listed, respond
from holdfast.api.paging import JobNumber, Paged
from holdfast.api.plane import caller_of, plane_of
from holdfast.api.problems import Problem
from holdfast.api.routes import Routes
from holdfast.engines.port import MissingRole
from holdfast.services.graphs.api.dependencies import Cores, Description, Duration, Gigabytes, Here, Title, UseCase, readable
from holdfast.services.graphs.instances import admission, events, read, rows
from holdfast.services.graphs.instances.create import NewInstance, create
from holdfast.services.graphs.instances.events import InstanceEvent
from holdfast.services.graphs.instances.read import InstanceProgress, InstanceView, view_of
from holdfast.services.graphs.runtimes.interface import Unknown
from holdfast.services.graphs.states import InstanceState

routes = Routes("instances")

Conn = psycopg.AsyncConnection[Any]
Engine = Literal["ladybug", "kuzu", "ryugraph"]


# ---------------------------------------------------------------------------------------------------------------------
# Limits: before the routes with an id
# ---------------------------------------------------------------------------------------------------------------------


class Limits(BaseModel):
    """What the caller uses and may use. Memory is in GiB."""

    active: int
    limit: int
    free: int
    memory_gb: float
    memory_limit_gb: float
    cluster_active: int
    cluster_limit: int
    cluster_memory_gb: float
    cluster_memory_limit_gb: float


@routes.add("GET", "/api/instances/limits", action="instances.read", answers=Data[Limits], also=["/api/instances/user/status"])
async def show_limits(request: Request) -> Response:
    """Show how many instances and how much memory the caller and all owners use, and the limits."""
    async with plane_of(request).pool.connection() as conn:
        used = await admission.usage(conn, caller_of(request).actor)
    shown = Limits(
        active=used.owner_count,
        limit=used.per_owner,
        free=max(0, min(used.per_owner - used.owner_count, used.cluster_total - used.total_count)),
        memory_gb=used.owner_memory / 1024,
        memory_limit_gb=used.per_owner_memory / 1024,
        cluster_active=used.total_count,
        cluster_limit=used.cluster_total,
        cluster_memory_gb=used.total_memory / 1024,
        cluster_memory_limit_gb=used.cluster_memory / 1024,
    )
    return respond(shown.model_dump())


# ---------------------------------------------------------------------------------------------------------------------
# Create
# ---------------------------------------------------------------------------------------------------------------------


class InstanceAsked(Model):
    """A graph instance to create: from a mapping, whose snapshot is created with it, or from a ready snapshot."""

    name: Title
    mapping_id: JobNumber | None = None
    mapping_version: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    snapshot_id: JobNumber | None = None
    wrapper_type: Engine | None = Field(default=None, description="The graph database; default: HOLDFAST_GRAPH_ENGINE.")
    description: Description | None = None
    ttl: Duration | None = None
    inactivity_timeout: Duration | None = None
    cpu_cores: Cores = 1.0
    memory_gb: Gigabytes | None = Field(default=None, description="Default: as much as its snapshot needs.")

    @model_validator(mode="after")
    def _one_source(self) -> InstanceAsked:
        if (self.mapping_id is None) == (self.snapshot_id is None):
            raise ValueError("send either mapping_id or snapshot_id")
        if self.mapping_version is not None and self.mapping_id is None:
            raise ValueError("mapping_version needs mapping_id; a snapshot has a version already")
        return self


@routes.add(
    "POST", "/api/instances", action="instances.create", status=202, answers=Data[InstanceView],
    refuses=["not-found", "wrong-state", "limit-exceeded", "missing-use-case", "draining", "idempotency-mismatch"],
)  # fmt: skip
async def create_instance(asked: InstanceAsked, act: Acting, here: Here, role: UseCase = None) -> Response:
    """Create a graph instance. It runs when its snapshot is exported and loaded; `Location` shows its progress."""
    new = NewInstance(
        name=asked.name,
        engine=asked.wrapper_type or here.engine,
        default_memory_mb=here.default_memory_mb,
        longest_start=here.longest_start,
        mapping_id=asked.mapping_id,
        mapping_version=asked.mapping_version,
        snapshot_id=asked.snapshot_id,
        description=asked.description,
        ttl=asked.ttl,
        inactivity_timeout=asked.inactivity_timeout,
        memory_mb=None if asked.memory_gb is None else int(asked.memory_gb * 1024),
        cpu=asked.cpu_cores,
        role=role,
    )

    async def do(conn: Conn) -> Answer:
        try:
            instance_id = await create(conn, new, owner=act.actor)
        except MissingRole as error:
            raise Problem("missing-use-case", str(error)) from None
        made = view_of(await rows.get(conn, instance_id))
        return Answer(202, made, {"Location": f"/api/instances/{instance_id}", "Retry-After": "1"})

    return await act.run("instance", do, detail=asked.model_dump(mode="json", exclude_none=True))


# ---------------------------------------------------------------------------------------------------------------------
# Read
# ---------------------------------------------------------------------------------------------------------------------


@routes.add("GET", "/api/instances", action="instances.read", answers=Listed[InstanceView], refuses=["invalid-cursor"])
async def list_instances(
    request: Request,
    page: Paged,
    owner: Annotated[Text | None, Query(max_length=500)] = None,
    status: InstanceState | None = None,
    mapping_id: JobNumber | None = None,
    snapshot_id: JobNumber | None = None,
    search: Annotated[Text | None, Query(max_length=255)] = None,
) -> Response:
    """List graph instances, newest first. `search` looks in names and descriptions."""
    filters = {"owner": owner, "status": status, "mapping_id": mapping_id, "snapshot_id": snapshot_id, "search": search}
    async with plane_of(request).pool.connection() as conn:
        found = await read.listed(conn, limit=page.limit, before=page.after, **filters)
    some = [view_of(one) for one in found[: page.limit]]
    return page.answer(some, some[-1].id if len(found) > page.limit else None)


@routes.add(
    "GET", "/api/mappings/{mapping_id}/instances", action="instances.read", answers=Listed[InstanceView],
    refuses=["invalid-cursor"],
)  # fmt: skip
async def list_of_mapping(request: Request, mapping_id: JobNumber, page: Paged) -> Response:
    """List the graph instances of a mapping, newest first."""
    async with plane_of(request).pool.connection() as conn:
        found = await read.listed(conn, limit=page.limit, before=page.after, mapping_id=mapping_id)
    some = [view_of(one) for one in found[: page.limit]]
    return page.answer(some, some[-1].id if len(found) > page.limit else None)


@routes.add("GET", "/api/instances/{instance_id}", action="instances.read", answers=Data[InstanceView], refuses=["not-found"])
async def show_instance(request: Request, instance_id: JobNumber) -> Response:
    """Show a graph instance."""
    async with plane_of(request).pool.connection() as conn:
        return respond(view_of(await rows.get(conn, instance_id)))


@routes.add(
    "GET", "/api/instances/{instance_id}/progress", action="instances.read", answers=Data[InstanceProgress],
    refuses=["not-found"],
)  # fmt: skip
async def show_progress(request: Request, instance_id: JobNumber) -> Response:
    """Show how far the export and the load are, by table."""
    async with plane_of(request).pool.connection() as conn:
        return respond(await read.progress_of(conn, await rows.get(conn, instance_id)))


@routes.add(
    "GET", "/api/instances/{instance_id}/events", action="instances.read", answers=Listed[InstanceEvent],
    refuses=["not-found", "invalid-cursor"],
)  # fmt: skip
async def list_events(request: Request, instance_id: JobNumber, page: Paged) -> Response:
    """List what has happened to an instance, newest first."""
    async with plane_of(request).pool.connection() as conn:
        await rows.get(conn, instance_id)
        found = await events.listed(conn, instance_id, limit=page.limit, before=page.after)
    some = found[: page.limit]
    return page.answer(some, some[-1].id if len(found) > page.limit else None)


class Health(BaseModel):
    """Whether a graph server runs and answers. `runtime` is null if nothing runs, "unknown" if the runtime cannot tell."""

    status: InstanceState
    runtime: str | None
    server: str | None
    healthy: bool
    message: str | None


@routes.add("GET", "/api/instances/{instance_id}/health", action="instances.read", answers=Data[Health], refuses=["not-found"])
async def show_health(request: Request, instance_id: JobNumber, here: Here) -> Response:
    """Ask the runtime and the graph server itself, now."""
    async with plane_of(request).pool.connection() as conn:
        instance = await rows.get(conn, instance_id)
    runtime: str | None = None
    message = instance.error
    try:
        seen = await here.runtime.look(instance_id)
        if seen is not None and seen.start_token == instance.start_token:
            runtime, message = seen.phase, seen.message or message
    except Unknown as error:
        runtime, message = "unknown", str(error)
    said = None if instance.address is None else await here.proxy.status(instance.address, instance.secret)
    server = None if said is None else said.phase
    healthy = instance.status is InstanceState.RUNNING and server == "ready"
    return respond({"status": instance.status, "runtime": runtime, "server": server, "healthy": healthy, "message": message})


class Log(BaseModel):
    """The last lines of a graph server's log."""

    lines: list[str]


@routes.add(
    "GET", "/api/instances/{instance_id}/logs", action="instances.query", answers=Data[Log],
    refuses=["not-found", "graph-unreachable"],
)  # fmt: skip
async def show_logs(
    request: Request, instance_id: JobNumber, here: Here, tail: Annotated[int, Query(ge=1, le=5000)] = 200
) -> Response:
    """Show the last lines of the graph server's log; of a failed start those that were kept."""
    await readable(request, instance_id)
    async with plane_of(request).pool.connection() as conn:
        kept = await read.log_tail(conn, instance_id)
    try:
        text = await here.runtime.logs(instance_id, tail)
    except Unknown as error:
        raise Problem("graph-unreachable", str(error)) from None
    return respond({"lines": (text or kept).splitlines()[-tail:]})
