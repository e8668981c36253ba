"""Workers and the kinds that they can run; make a worker quiet; pause, drain and resume a kind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any
from uuid import UUID

import psycopg
from fastapi import Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from holdfast.api.acts import Act, Acting, Because, Text
from holdfast.api.envelope import Answer, Data, Listed, respond
from holdfast.api.paging import Paged
from holdfast.api.plane import plane_of
from holdfast.api.reserved_kinds import KINDS
from holdfast.api.routes import Routes
from holdfast.jobs import control
from holdfast.jobs.kinds import PublishedKind, show
from holdfast.jobs.quiet import make_quiet
from holdfast.jobs.views.workers import KindView, WorkerView, get_worker, list_kinds, list_workers, require_known_kind

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


class QuietAsked(Because):
    """Claim no more jobs, or with `quiet: false` claim again."""

    quiet: bool = True


@routes.add(
    "POST",
    "/api/workers/{worker_id}/quiet",
    action="workers.quiet",
    answers=Data[WorkerView],
    refuses=["not-found", "idempotency-mismatch"],
)
async def quiet_worker(worker_id: UUID, asked: QuietAsked, act: Acting) -> Response:
    """Make a worker claim no more jobs from its next heartbeat on. It finishes the jobs that it holds; a restart undoes it."""

    async def do(conn: psycopg.AsyncConnection[Any]) -> Answer:
        return Answer(200, await make_quiet(conn, str(worker_id), quiet=asked.quiet))

    return await act.run(f"worker/{worker_id}", do, reason=asked.reason, detail={"quiet": asked.quiet})


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


class KindControlled(BaseModel):
    """Whether a kind is paused or drained; `changed` is false if there was nothing to undo."""

    kind: str
    changed: bool


Change = Callable[[psycopg.AsyncConnection[Any]], Awaitable[Any]]


class KindAsked(Because):
    """Pause or drain a kind."""

    allow_unknown_kind: bool = Field(False, description="Also if no worker has published the kind.")


async def _control(act: Act, kind: str, reason: str, change: Change, *, must_be_known: bool = False) -> Response:
    async def do(conn: psycopg.AsyncConnection[Any]) -> Answer:
        if must_be_known and kind not in KINDS:  # kinds of services are known without a worker
            await require_known_kind(conn, kind)
        changed = await change(conn)
        return Answer(200, {"kind": kind, "changed": changed is not False})

    return await act.run(f"kind/{kind}", do, reason=reason, detail={"path": act.request.url.path.rpartition("/")[2]})


CONTROL: dict[str, Any] = {"action": "kinds.control", "answers": Data[KindControlled], "refuses": ["idempotency-mismatch"]}


@routes.add("POST", "/api/job-kinds/{kind}/pause", **CONTROL)
async def pause_kind(kind: Kind, asked: KindAsked, act: Acting) -> Response:
    """Claim no more jobs of this kind until it is resumed."""

    def pause(conn: psycopg.AsyncConnection[Any]) -> Awaitable[None]:
        return control.pause(conn, kind, actor=act.actor, reason=asked.reason)

    return await _control(act, kind, asked.reason, pause, must_be_known=not asked.allow_unknown_kind)


@routes.add("POST", "/api/job-kinds/{kind}/drain", **CONTROL)
async def drain_kind(kind: Kind, asked: KindAsked, act: Acting) -> Response:
    """Accept no new jobs of this kind until it is resumed."""

    def drain(conn: psycopg.AsyncConnection[Any]) -> Awaitable[None]:
        return control.drain(conn, kind, actor=act.actor, reason=asked.reason)

    return await _control(act, kind, asked.reason, drain, must_be_known=not asked.allow_unknown_kind)


@routes.add("POST", "/api/job-kinds/{kind}/resume", **CONTROL)
async def resume_kind(kind: Kind, asked: Because, act: Acting) -> Response:
    """Undo pause and drain of this kind."""
    return await _control(act, kind, asked.reason, lambda c: control.resume(c, kind))
