"""Workers and the kinds that they can run. `controls.py` has their changes."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import Request
from pydantic import Field
from starlette.responses import Response

from holdfast.api import controls
from holdfast.api.acts import Text
from holdfast.api.envelope import Data, Listed, respond
from holdfast.api.paging import Paged
from holdfast.api.plane import plane_of
from holdfast.api.routes import Routes
from holdfast.jobs.kinds import PublishedKind, show
from holdfast.jobs.views.workers import KindView, WorkerView, get_worker, list_kinds, list_workers

routes = Routes("workers")

Kind = Annotated[Text, Field(min_length=1, max_length=200)]


@routes.add(
    "GET",
    "/api/workers",
    action="workers.read",
    answers=Listed[WorkerView],
    refuses=["invalid-cursor"],
    also=["/sync/workers"],
)
async def list_them(request: Request, page: Paged, alive: bool = False) -> Response:
    """List workers; with `alive` only those whose lease has not expired."""
    async with plane_of(request).pool.connection() as conn:
        found = await list_workers(conn, alive=alive, after=page.after, limit=page.limit + 1)
    workers = found[: page.limit]
    return page.answer(workers, workers[-1].id if len(found) > page.limit else None)


@routes.add("GET", "/api/workers/{worker_id}", action="workers.read", answers=Data[WorkerView], refuses=["not-found"])
async def show_worker(request: Request, worker_id: UUID) -> Response:
    """Show one worker."""
    async with plane_of(request).pool.connection() as conn:
        return respond(await get_worker(conn, str(worker_id)))


@routes.add("GET", "/api/kinds", action="kinds.read", answers=Data[list[KindView]], also=["/api/job-kinds"])
async def list_job_kinds(request: Request) -> Response:
    """List the kinds that a worker can run or has published, that wait, or that are paused or drained."""
    async with plane_of(request).pool.connection() as conn:
        return respond(await list_kinds(conn))


@routes.add("GET", "/api/kinds/{kind}", action="kinds.read", answers=Data[PublishedKind], refuses=["not-found"])
async def show_kind(request: Request, kind: Kind) -> Response:
    """Show what a kind declares: its options, its keys and the schema of its arguments, by version."""
    async with plane_of(request).pool.connection() as conn:
        return respond(await show(conn, kind))


routes.include(controls.routes)
