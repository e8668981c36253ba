"""Periodic loops over HTTP: look at them, run one now, pause and resume. The loops themselves are behind `Loops`.

The control plane does not import the scheduler; `apps/api.py` hands it over. Without one these routes answer that there are no
loops.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Protocol

import psycopg
from fastapi import Path, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from holdfast.api.acts import Act, Acting, Because, Model, Reason
from holdfast.api.envelope import Answer, Data, Listed, respond
from holdfast.api.paging import Paged
from holdfast.api.plane import Plane, plane_of
from holdfast.api.problems import Problem
from holdfast.api.routes import Routes

routes = Routes("periodic")

LoopName = Annotated[str, Path(min_length=1, max_length=100, pattern=r"^[a-z][a-z0-9_]*$")]
Conn = psycopg.AsyncConnection[Any]


class LoopShown(BaseModel):
    """A loop as people see it."""

    job_name: str
    status: str
    healthy: bool
    next_run: datetime | None
    retry_at: datetime | None  # when a failed tick is tried again, before the next one
    last_run: datetime | None
    last_success: datetime | None
    last_outcome: str | None
    last_error: str | None
    consecutive_failures: int
    holder: str | None
    interval_seconds: float | None
    cron: str | None
    paused: bool
    paused_by: str | None
    paused_reason: str | None


class LoopRun(BaseModel):
    """One run of a loop."""

    id: int
    job_name: str
    trigger: str
    outcome: str
    due_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    actor: str | None
    reason: str | None
    error: str | None
    items: int
    failed_items: int


class Triggered(BaseModel):
    """A run that was asked for."""

    job_name: str
    status: str
    triggered_at: datetime
    triggered_by: str
    reason: str
    run_id: int


class Loops(Protocol):
    """What the control plane needs of the scheduler. Errors are the kernel's; `TriggeredTooOften` has the seconds to wait."""

    async def all(self, conn: Conn) -> list[LoopShown]: ...
    async def runs(self, conn: Conn, name: str, *, limit: int, before: int | None) -> list[LoopRun]: ...
    async def trigger(self, conn: Conn, name: str, *, actor: str, reason: str) -> Triggered: ...
    async def pause(self, conn: Conn, name: str, *, actor: str, reason: str) -> LoopShown: ...
    async def resume(self, conn: Conn, name: str) -> LoopShown: ...


class NoLoops:
    """A control plane without a scheduler."""

    async def all(self, conn: Conn) -> list[LoopShown]:
        return []

    async def runs(self, conn: Conn, name: str, *, limit: int, before: int | None) -> list[LoopRun]:
        raise _none(name)

    async def trigger(self, conn: Conn, name: str, *, actor: str, reason: str) -> Triggered:
        raise _none(name)

    async def pause(self, conn: Conn, name: str, *, actor: str, reason: str) -> LoopShown:
        raise _none(name)

    async def resume(self, conn: Conn, name: str) -> LoopShown:
        raise _none(name)


def _none(name: str) -> Problem:
    return Problem("not-found", f"there is no loop {name!r}: this control plane runs without a scheduler")


def loops_of(plane: Plane) -> Loops:
    found: Loops = plane.loops
    return found


@routes.add("GET", "/api/ops/jobs/status", action="periodic.read", answers=Data[list[LoopShown]], also=["/api/periodic"])
async def list_loops(request: Request) -> Response:
    """List the periodic loops: when each runs next, when it last did, and how it goes."""
    plane = plane_of(request)
    async with plane.pool.connection() as conn:
        return respond(await loops_of(plane).all(conn))


@routes.add(
    "GET", "/api/periodic/{name}/runs", action="periodic.read", answers=Listed[LoopRun], refuses=["not-found", "invalid-cursor"]
)
async def list_runs(request: Request, page: Paged, name: LoopName) -> Response:
    """List the runs of a loop, newest first."""
    plane = plane_of(request)
    async with plane.pool.connection() as conn:
        found = await loops_of(plane).runs(conn, name, limit=page.limit + 1, before=page.after)
    runs = found[: page.limit]
    return page.answer(runs, runs[-1].id if len(found) > page.limit else None)


class TriggerAsked(Model):
    """Run a loop now."""

    job_name: Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[a-z][a-z0-9_]*$")]
    reason: Reason


TRIGGER: dict[str, Any] = {
    "action": "periodic.trigger",
    "answers": Data[Triggered],
    "refuses": ["not-found", "refused", "idempotency-mismatch"],
}


@routes.add("POST", "/api/ops/jobs/trigger", **TRIGGER)
async def trigger_by_body(asked: TriggerAsked, act: Acting) -> Response:
    """Run a periodic loop now, once a minute at most."""
    return await _trigger(act, asked.job_name, asked.reason)


@routes.add("POST", "/api/periodic/{name}/trigger", **TRIGGER)
async def trigger_by_path(name: LoopName, asked: Because, act: Acting) -> Response:
    """Run a periodic loop now, once a minute at most."""
    return await _trigger(act, name, asked.reason)


async def _trigger(act: Act, name: str, reason: str) -> Response:
    async def do(conn: Conn) -> Answer:
        return Answer(200, await loops_of(act.plane).trigger(conn, name, actor=act.actor, reason=reason))

    return await act.run(f"loop/{name}", do, reason=reason)


CONTROL: dict[str, Any] = {
    "action": "periodic.control",
    "answers": Data[LoopShown],
    "refuses": ["not-found", "idempotency-mismatch"],
}


@routes.add("POST", "/api/periodic/{name}/pause", **CONTROL)
async def pause_loop(name: LoopName, asked: Because, act: Acting) -> Response:
    """Begin no more ticks of a loop until it is resumed."""

    async def do(conn: Conn) -> Answer:
        return Answer(200, await loops_of(act.plane).pause(conn, name, actor=act.actor, reason=asked.reason))

    return await act.run(f"loop/{name}", do, reason=asked.reason, detail={"paused": True})


@routes.add("POST", "/api/periodic/{name}/resume", **CONTROL)
async def resume_loop(name: LoopName, asked: Because, act: Acting) -> Response:
    """Let the schedule of a loop go on."""

    async def do(conn: Conn) -> Answer:
        return Answer(200, await loops_of(act.plane).resume(conn, name))

    return await act.run(f"loop/{name}", do, reason=asked.reason, detail={"paused": False})
