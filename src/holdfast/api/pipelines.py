"""Pipelines: list, show, abort."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg
from fastapi import Request
from pydantic import BaseModel
from starlette.responses import Response

from holdfast.api.acts import Acting, Because
from holdfast.api.envelope import Answer, Data, Listed, respond
from holdfast.api.job_changes import shown
from holdfast.api.paging import Paged
from holdfast.api.plane import caller_of, plane_of
from holdfast.api.routes import Routes
from holdfast.jobs.cancel import abort
from holdfast.jobs.pipelines import PipelineLine, PipelineStatus, list_pipelines, read_pipeline
from holdfast.jobs.states import State
from holdfast.jobs.views import read
from holdfast.jobs.views.read import JobView

routes = Routes("pipelines")


@routes.add(
    "GET",
    "/api/pipelines",
    action="pipelines.read",
    answers=Listed[PipelineLine],
    refuses=["invalid-cursor"],
    also=["/sync/pipelines"],
)
async def list_them(request: Request, page: Paged) -> Response:
    """List pipelines, newest first."""
    before = None if page.after is None else (datetime.fromisoformat(page.after[0]), page.after[1])
    async with plane_of(request).pool.connection() as conn:
        found = await list_pipelines(conn, limit=page.limit + 1, before=before)
    lines = found[: page.limit]
    more = [lines[-1].created_at.isoformat(), lines[-1].id] if len(found) > page.limit else None
    return page.answer(lines, more)


class PipelineShown(BaseModel):
    """A pipeline and its newest jobs."""

    id: str
    name: str
    status: PipelineStatus
    counts: dict[State, int]
    jobs: list[JobView]


@routes.add(
    "GET",
    "/api/pipelines/{pipeline_id}",
    action="pipelines.read",
    answers=Data[PipelineShown],
    refuses=["not-found"],
    also=["/sync/pipelines/{pipeline_id}"],
)
async def show_pipeline(request: Request, pipeline_id: UUID) -> Response:
    """Show one pipeline with its newest jobs."""
    caller = caller_of(request)
    async with plane_of(request).pool.connection() as conn:
        found = await read_pipeline(conn, str(pipeline_id))
        page = await read.list_jobs(conn, limit=read.LONGEST_PAGE, pipeline_id=str(pipeline_id))
    jobs = [shown(job, caller) for job in page.jobs]
    return respond({"id": found.id, "name": found.name, "status": found.status, "counts": found.counts, "jobs": jobs})


class Aborted(BaseModel):
    """How many jobs of a pipeline were cancelled or got a cancel request."""

    id: str
    stopped: int


@routes.add(
    "POST",
    "/api/pipelines/{pipeline_id}/abort",
    action="pipelines.abort",
    status=202,
    answers=Data[Aborted],
    refuses=["not-found", "idempotency-mismatch"],
    also=["/sync/pipelines/{pipeline_id}/abort"],
)
async def abort_pipeline(pipeline_id: UUID, asked: Because, act: Acting) -> Response:
    """Cancel all jobs of a pipeline that have not ended."""

    async def do(conn: psycopg.AsyncConnection[Any]) -> Answer:
        stopped = await abort(conn, str(pipeline_id), actor=act.actor, reason=asked.reason)
        headers = {"Location": f"/api/pipelines/{pipeline_id}", "Retry-After": "1"}
        return Answer(202, {"id": str(pipeline_id), "stopped": stopped}, headers)

    return await act.run(f"pipeline/{pipeline_id}", do, reason=asked.reason)
