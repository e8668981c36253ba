"""Change graph instances: name, lifetime, CPU, memory, suspend, resume, delete."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import psycopg
from fastapi import Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from holdfast.api.acts import Act, Acting, Model, Reason
from holdfast.api.envelope import Answer, Data
from holdfast.api.paging import JobNumber
from holdfast.api.routes import Routes
from holdfast.services.graphs.api.dependencies import Cores, Description, Duration, Gigabytes, Here, Title, owner_of
from holdfast.services.graphs.instances import change, delete, move, resize, rows
from holdfast.services.graphs.instances.read import InstanceView, view_of

routes = Routes("instances")

Conn = psycopg.AsyncConnection[Any]
CHANGES = ["not-found", "wrong-state", "idempotency-mismatch"]


async def changed(
    act: Act,
    instance_id: int,
    do: Callable[[Conn], Awaitable[object]],
    *,
    status: int = 200,
    reason: str | None = None,
    **detail: Any,
) -> Response:
    """Run a change, and answer with the instance as it is afterwards."""

    async def run(conn: Conn) -> Answer:
        await do(conn)
        return Answer(status, view_of(await rows.get(conn, instance_id)))

    return await act.run(f"instance/{instance_id}", run, owner=owner_of(instance_id), reason=reason, detail=detail)


class Why(Model):
    """The reason, recorded in the audit log."""

    reason: Reason | None = None


class Named(Model):
    """What to change; fields that are left out stay."""

    name: Title | None = None
    description: Description | None = None


@routes.add("PUT", "/api/instances/{instance_id}", action="instances.change", answers=Data[InstanceView], refuses=CHANGES)
async def rename_instance(instance_id: JobNumber, asked: Named, act: Acting) -> Response:
    """Change the name or the description."""

    async def do(conn: Conn) -> None:
        await change.rename(conn, instance_id, name=asked.name, description=asked.description)

    return await changed(act, instance_id, do, **asked.model_dump(exclude_none=True))


class Lifetime(Model):
    """How long an instance lives; a field that is left out gets the default."""

    ttl: Duration | None = None
    inactivity_timeout: Duration | None = None


@routes.add(
    "PUT", "/api/instances/{instance_id}/lifecycle", action="instances.change", answers=Data[InstanceView], refuses=CHANGES
)
async def set_lifecycle(instance_id: JobNumber, asked: Lifetime, act: Acting) -> Response:
    """Set the TTL, counted from the creation, and the inactivity timeout."""

    async def do(conn: Conn) -> None:
        await change.set_lifetime(conn, instance_id, asked.ttl, asked.inactivity_timeout)

    return await changed(act, instance_id, do, **asked.model_dump(exclude_none=True))


class Extension(Why):
    """How much longer an instance shall live."""

    by: Duration


@routes.add(
    "POST", "/api/instances/{instance_id}/extend", action="instances.change", answers=Data[InstanceView], refuses=CHANGES
)
async def extend_instance(instance_id: JobNumber, asked: Extension, act: Acting) -> Response:
    """Let an instance live so much longer, up to the maximum TTL."""

    async def do(conn: Conn) -> None:
        await change.extend(conn, instance_id, asked.by)

    return await changed(act, instance_id, do, reason=asked.reason, by=asked.by)


class Processors(Model):
    """The CPU to give an instance."""

    cpu_cores: Cores


@routes.add(
    "PUT", "/api/instances/{instance_id}/cpu", action="instances.change", status=202, answers=Data[InstanceView],
    refuses=[*CHANGES, "draining"],
)  # fmt: skip
async def set_cpu(instance_id: JobNumber, asked: Processors, act: Acting) -> Response:
    """Change the CPU of a running instance. The job `job_id` applies it."""

    async def do(conn: Conn) -> None:
        await resize.request(conn, instance_id, cpu=asked.cpu_cores)

    return await changed(act, instance_id, do, status=202, cpu_cores=asked.cpu_cores)


class Memory(Model):
    """The memory to give an instance; only more than it has."""

    memory_gb: Gigabytes


@routes.add(
    "PUT", "/api/instances/{instance_id}/memory", action="instances.change", status=202, answers=Data[InstanceView],
    refuses=[*CHANGES, "limit-exceeded", "draining"],
)  # fmt: skip
async def set_memory(instance_id: JobNumber, asked: Memory, act: Acting) -> Response:
    """Increase the memory of a running instance. The job `job_id` applies it."""

    async def do(conn: Conn) -> None:
        await resize.request(conn, instance_id, memory_mb=int(asked.memory_gb * 1024))

    return await changed(act, instance_id, do, status=202, memory_gb=asked.memory_gb)


@routes.add(
    "POST", "/api/instances/{instance_id}/suspend", action="instances.change", status=202, answers=Data[InstanceView],
    refuses=[*CHANGES, "draining"],
)  # fmt: skip
async def suspend_instance(instance_id: JobNumber, act: Acting, asked: Why | None = None) -> Response:
    """Remove the graph server of a running instance and keep its snapshot. The job `job_id` removes it."""

    async def do(conn: Conn) -> None:
        await move.suspend(conn, instance_id)

    return await changed(act, instance_id, do, status=202, reason=(asked or Why()).reason)


@routes.add(
    "POST", "/api/instances/{instance_id}/resume", action="instances.change", status=202, answers=Data[InstanceView],
    refuses=[*CHANGES, "limit-exceeded", "draining"],
)  # fmt: skip
async def resume_instance(instance_id: JobNumber, act: Acting, here: Here, asked: Why | None = None) -> Response:
    """Start a suspended or failed instance again. The job `job_id` starts it."""

    async def do(conn: Conn) -> None:
        await move.resume(conn, instance_id, longest=here.longest_start)

    return await changed(act, instance_id, do, status=202, reason=(asked or Why()).reason)


# ---------------------------------------------------------------------------------------------------------------------
# Delete
# ---------------------------------------------------------------------------------------------------------------------


class Deletion(BaseModel):
    """A deletion that has begun. `job_id` is the job that continues it."""

    id: int
    job_id: Annotated[int, Field(description="The job that removes the graph server and then the instance.")]


@routes.add(
    "DELETE", "/api/instances/{instance_id}", action="instances.change", status=202, answers=Data[Deletion],
    refuses=["not-found", "wrong-state", "draining", "idempotency-mismatch"],
    others=[(204, "The instance and everything of it is gone")],
)  # fmt: skip
async def delete_instance(
    instance_id: JobNumber, act: Acting, here: Here, reason: Annotated[Reason | None, Query()] = None
) -> Response:
    """Delete an instance: its graph server first, its row last. 204 when it is gone, 202 if that takes longer."""

    async def do(conn: Conn) -> Answer:
        job_id = await delete.begin(conn, instance_id, actor=act.actor, reason=reason)
        return Answer(202, {"id": instance_id, "job_id": job_id}, {"Location": f"/api/jobs/{job_id}", "Retry-After": "1"})

    begun = await act.run(f"instance/{instance_id}", do, owner=owner_of(instance_id), reason=reason)
    is_gone = await until_gone(act, instance_id, here.longest_delete.total_seconds())
    return Response(status_code=204) if is_gone else begun


async def until_gone(act: Act, instance_id: int, seconds: float) -> bool:
    """Whether the row is gone within this time. Each look borrows a connection for an instant."""
    pause = 0.02
    try:
        async with asyncio.timeout(seconds):
            while True:
                async with act.plane.pool.connection() as conn:
                    if await rows.find(conn, instance_id) is None:
                        return True
                await asyncio.sleep(pause)
                pause = min(0.25, pause * 1.3)
    except TimeoutError:
        return False
