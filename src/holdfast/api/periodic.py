"""Periodic jobs and periodic loops over HTTP: list them, run one now, pause and resume.

Periodic jobs (`@job(cron=…)`) are rows of the kernel. Loops belong to the scheduler, which the API does not import:
`apps/api.py` passes an object with the interface `Loops`. If a kind has the name of a loop, these routes mean the loop.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, Protocol

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
from holdfast.jobs.periodic import steer
from holdfast.jobs.periodic.read import PeriodicJob, PeriodicRun, find_periodic, get_periodic, list_periodic, periodic_fields
from holdfast.jobs.periodic.read import list_runs as list_job_runs

routes = Routes("periodic")

Name = Annotated[str, Path(min_length=1, max_length=200)]
Conn = psycopg.AsyncConnection[Any]


class LoopShown(BaseModel):
    """A periodic job or a loop: its schedule, its next run and its last one."""

    job_name: str  # the kind of a periodic job, or the name of a loop
    type: Literal["job", "loop"] = "loop"
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
    timezone: str = "UTC"
    catch_up: Literal["skip", "last", "all"] | None = None  # of a periodic job
    next_runs: list[datetime] = []
    last_job_id: int | None = None
    missed: int = 0  # due times of a periodic job that were not enqueued
    workers: int | None = None  # alive, that can run a periodic job
    paused: bool
    paused_by: str | None
    paused_reason: str | None


class LoopRun(BaseModel):
    """One run of a loop, or one job of a periodic kind; `id` is then the job's id and `outcome` its state."""

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
    """A manual run; for a periodic job, `run_id` is the id of the job."""

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


def shown(job: PeriodicJob) -> LoopShown:
    """A periodic job as the API answers it."""
    return LoopShown(**periodic_fields(job))


def _run(run: PeriodicRun) -> LoopRun:
    return LoopRun(
        id=run.job_id,
        job_name=run.kind,
        trigger=run.trigger,
        outcome=run.state,
        due_at=run.due_at,
        started_at=run.claimed_at,
        finished_at=run.finished_at,
        actor=None,
        reason=None,
        error=run.error,
        items=0,
        failed_items=0,
    )


async def _is_loop(plane: Plane, conn: Conn, name: str) -> bool:
    return any(loop.job_name == name for loop in await loops_of(plane).all(conn))


async def _is_job(plane: Plane, conn: Conn, name: str) -> bool:
    """Whether a name means a periodic job."""
    return await find_periodic(conn, name) is not None and not await _is_loop(plane, conn, name)


@routes.add("GET", "/api/ops/jobs/status", action="periodic.read", answers=Data[list[LoopShown]], also=["/api/periodic"])
async def list_loops(request: Request) -> Response:
    """List the periodic jobs and the loops: the next run and the last run of each."""
    plane = plane_of(request)
    async with plane.pool.connection() as conn:
        jobs = [shown(job) for job in await list_periodic(conn)]
        return respond([*jobs, *await loops_of(plane).all(conn)])


@routes.add(
    "GET", "/api/periodic/{name}/runs", action="periodic.read", answers=Listed[LoopRun], refuses=["not-found", "invalid-cursor"]
)
async def list_runs(request: Request, page: Paged, name: Name) -> Response:
    """List the runs of a periodic job or a loop, newest first."""
    plane = plane_of(request)
    async with plane.pool.connection() as conn:
        if await _is_job(plane, conn, name):
            found = [_run(run) for run in await list_job_runs(conn, name, limit=page.limit + 1, before=page.after)]
        else:
            found = await loops_of(plane).runs(conn, name, limit=page.limit + 1, before=page.after)
    runs = found[: page.limit]
    return page.answer(runs, runs[-1].id if len(found) > page.limit else None)


class TriggerAsked(Model):
    """Run a periodic job or a loop now."""

    job_name: Annotated[str, Field(min_length=1, max_length=200)]
    reason: Reason


TRIGGER: dict[str, Any] = {
    "action": "periodic.trigger",
    "answers": Data[Triggered],
    "refuses": ["not-found", "refused", "idempotency-mismatch"],
}


@routes.add("POST", "/api/ops/jobs/trigger", **TRIGGER)
async def trigger_by_body(asked: TriggerAsked, act: Acting) -> Response:
    """Run a periodic job now, or a loop: a loop once a minute at most."""
    return await _trigger(act, asked.job_name, asked.reason)


@routes.add("POST", "/api/periodic/{name}/trigger", **TRIGGER)
async def trigger_by_path(name: Name, asked: Because, act: Acting) -> Response:
    """Run a periodic job now, or a loop: a loop once a minute at most."""
    return await _trigger(act, name, asked.reason)


async def _trigger(act: Act, name: str, reason: str) -> Response:
    async def do(conn: Conn) -> Answer:
        if not await _is_job(act.plane, conn, name):
            return Answer(200, await loops_of(act.plane).trigger(conn, name, actor=act.actor, reason=reason))
        run = await steer.run_now(conn, name, actor=act.actor, reason=reason)
        about = {"job_name": name, "status": "queued", "triggered_by": act.actor, "reason": reason}
        return Answer(200, Triggered(**about, triggered_at=run.at, run_id=run.job_id))

    return await act.run(f"periodic/{name}", do, reason=reason)


CONTROL: dict[str, Any] = {
    "action": "periodic.control",
    "answers": Data[LoopShown],
    "refuses": ["not-found", "idempotency-mismatch"],
}


@routes.add("POST", "/api/periodic/{name}/pause", **CONTROL)
async def pause_loop(name: Name, asked: Because, act: Acting) -> Response:
    """Pause the schedule of a periodic job or a loop until it is resumed."""

    async def do(conn: Conn) -> Answer:
        if await _is_job(act.plane, conn, name):
            await steer.pause(conn, name, actor=act.actor, reason=asked.reason)
            return Answer(200, shown(await get_periodic(conn, name)))
        return Answer(200, await loops_of(act.plane).pause(conn, name, actor=act.actor, reason=asked.reason))

    return await act.run(f"periodic/{name}", do, reason=asked.reason, detail={"paused": True})


@routes.add("POST", "/api/periodic/{name}/resume", **CONTROL)
async def resume_loop(name: Name, asked: Because, act: Acting) -> Response:
    """Resume the schedule of a periodic job or a loop. What was due during the pause is not run."""

    async def do(conn: Conn) -> Answer:
        if await _is_job(act.plane, conn, name):
            await steer.resume(conn, name)
            return Answer(200, shown(await get_periodic(conn, name)))
        return Answer(200, await loops_of(act.plane).resume(conn, name))

    return await act.run(f"periodic/{name}", do, reason=asked.reason, detail={"paused": False})
