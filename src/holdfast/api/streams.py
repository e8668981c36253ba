"""The streams: of one job, of one pipeline, and of everything for the console."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import Header, Request
from starlette.responses import Response

from holdfast.api.paging import JobNumber
from holdfast.api.plane import caller_of, plane_of
from holdfast.api.problems import Problem
from holdfast.api.routes import Routes
from holdfast.api.sse import Event, console_events, job_events, overview, pipeline_events
from holdfast.jobs.states import ENDED, State
from holdfast.jobs.views import watch

routes = Routes("streams")

STREAM = "text/event-stream"
SEEN = (204, "It has ended, and the caller has seen that")
REFUSES = ["not-found", "too-many-streams"]
LastEventId = Annotated[str | None, Header(max_length=100)]


@routes.add(
    "GET",
    "/api/jobs/{job_id}/events",
    action="jobs.read",
    refuses=REFUSES,
    media=STREAM,
    also=["/sync/jobs/{job_id}/stream"],
    others=[SEEN],
)
async def follow_job(request: Request, job_id: JobNumber, last_event_id: LastEventId = None) -> Response:
    """Follow one job: its moves, its progress, its end. 204 tells a client that has seen the end not to come back."""
    plane = plane_of(request)
    after = int(last_event_id) if last_event_id and last_event_id.isdigit() and len(last_event_id) < 19 else 0
    async with plane.pool.connection() as conn:
        glance = (await watch.glance(conn, [job_id])).get(job_id)
    if glance is None:
        raise Problem("not-found", f"there is no job {job_id}")
    if State(glance.state) in ENDED and 0 < glance.last_move <= after:
        return Response(status_code=204)

    async def begin() -> list[Event]:
        async with plane.pool.connection() as conn:
            now = (await watch.glance(conn, [job_id])).get(job_id)
            return [] if now is None else await job_events(conn, now, after)

    return plane.hub.respond(f"job:{job_id}", caller_of(request), begin)


@routes.add(
    "GET",
    "/api/pipelines/{pipeline_id}/events",
    action="pipelines.read",
    refuses=REFUSES,
    media=STREAM,
    also=["/sync/pipelines/{pipeline_id}/stream"],
    others=[SEEN],
)
async def follow_pipeline(request: Request, pipeline_id: UUID, last_event_id: LastEventId = None) -> Response:
    """Follow one pipeline until it has ended."""
    plane = plane_of(request)
    async with plane.pool.connection() as conn:
        found = (await watch.glance_at_pipelines(conn, [str(pipeline_id)])).get(str(pipeline_id))
    if found is None:
        raise Problem("not-found", f"there is no pipeline {pipeline_id}")
    if found["status"] != "running" and pipeline_events(found)[0].id == last_event_id:
        return Response(status_code=204)

    async def begin() -> list[Event]:
        async with plane.pool.connection() as conn:
            now = (await watch.glance_at_pipelines(conn, [str(pipeline_id)])).get(str(pipeline_id))
        events = pipeline_events(now)
        return events[1:] if events[0].id == last_event_id else events

    return plane.hub.respond(f"pipeline:{pipeline_id}", caller_of(request), begin)


@routes.add("GET", "/api/events", action="ops.read", refuses=["too-many-streams"], media=STREAM)
async def follow_everything(request: Request, last_event_id: LastEventId = None) -> Response:
    """Follow the counts and the controls: what the console shows first."""
    plane = plane_of(request)

    async def begin() -> list[Event]:
        async with plane.pool.connection() as conn:
            events = console_events(await overview(conn, plane.hub.words))
        return [] if events[0].id == last_event_id else events

    return plane.hub.respond("console", caller_of(request), begin)
