"""Ingestion jobs: list, show, follow, their bad rows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated
from uuid import UUID

from fastapi import Header, Query, Request
from starlette.responses import Response, StreamingResponse

from holdfast.api.envelope import UNCHANGED, Data, Listed, respond_tagged
from holdfast.api.paging import JobNumber, Paged
from holdfast.api.plane import caller_of, plane_of
from holdfast.api.problems import Problem
from holdfast.api.routes import Routes
from holdfast.api.sse import Event
from holdfast.services.ingestion import topics
from holdfast.services.ingestion.api.dependencies import Here, Name, Year
from holdfast.services.ingestion.setup import Ingestion
from holdfast.services.ingestion.staging import errors
from holdfast.services.ingestion.staging.errors import RowError
from holdfast.services.ingestion.views import runs
from holdfast.services.ingestion.views.runs import DocumentResult, DocumentState, Run
from holdfast.threads import in_thread

routes = Routes("ingestion jobs")
PIECE = 256 * 1024  # bytes
SEEN = (204, "It has finished, and the caller has seen that")


@routes.add(
    "GET", "/api/ingestion/jobs", action="ingestion.read", answers=Listed[Run], refuses=["invalid-cursor"],
    also=["/sync/jobs/by-status"],
)  # fmt: skip
async def list_jobs(
    request: Request,
    page: Paged,
    state: DocumentState | None = None,
    result: DocumentResult | None = None,
    job_type: Name | None = None,
    module: Name | None = None,
    det: Name | None = None,
    year: Annotated[Year | None, Query()] = None,
    pipeline_id: UUID | None = None,
    current: bool | None = None,
) -> Response:
    """List ingestion jobs, newest first. `current`: only the current job of each slot."""
    filters = {"state": state, "result": result, "job_type": job_type, "module": module, "det": det, "year": year}
    pipeline = None if pipeline_id is None else str(pipeline_id)
    async with plane_of(request).pool.connection() as conn:
        found = await runs.listed(
            conn, limit=page.limit, before=page.after, pipeline_id=pipeline, is_current=current, **filters
        )
    some = found[: page.limit]
    return page.answer(some, some[-1].job_id if len(found) > page.limit else None)


@routes.add("GET", "/sync/jobs/year/{year}", action="ingestion.read", answers=Listed[Run], refuses=["invalid-cursor"])
async def list_year(request: Request, year: Year, page: Paged) -> Response:
    """List the ingestion jobs of a year, at a path for existing clients."""
    return await list_jobs(request, page, year=year)


@routes.add("GET", "/sync/jobs/year/{year}/latest", action="ingestion.read", answers=Listed[Run], refuses=["invalid-cursor"])
async def list_latest(request: Request, year: Year, page: Paged) -> Response:
    """List the current job of each slot in a year, at a path for existing clients."""
    return await list_jobs(request, page, year=year, current=True)


@routes.add(
    "GET", "/api/ingestion/jobs/{job_id}", action="ingestion.read", answers=Data[Run], refuses=["not-found"],
    others=[UNCHANGED],
)  # fmt: skip
async def show_job(request: Request, job_id: JobNumber) -> Response:
    """Show an ingestion job: state, result, counts, the detected dialect."""
    async with plane_of(request).pool.connection() as conn:
        return respond_tagged(request, await runs.get(conn, job_id))


@routes.add(
    "GET", "/api/ingestion/jobs/{job_id}/errors", action="ingestion.read", answers=Listed[RowError],
    refuses=["not-found", "invalid-cursor"],
)  # fmt: skip
async def list_errors(request: Request, job_id: JobNumber, page: Paged) -> Response:
    """List the bad rows of a job: line, column, value, reason; in the order of the lines."""
    after = int(page.after or 0)
    async with plane_of(request).pool.connection() as conn:
        await runs.get(conn, job_id)
        found = await errors.listed(conn, job_id, limit=page.limit + 1, after=after)
    some = found[: page.limit]
    return page.answer(some, after + page.limit if len(found) > page.limit else None)


@routes.add("GET", "/api/ingestion/jobs/{job_id}/bad-rows", action="ingestion.read", refuses=["not-found"], media="text/csv")
async def download_bad_rows(request: Request, job_id: JobNumber, here: Here) -> Response:
    """Download the bad rows as CSV, with `_line` and `_errors`: correct them and upload the file again."""
    async with plane_of(request).pool.connection() as conn:
        run = await runs.get(conn, job_id)
    path = (run.outcome or {}).get("bad_rows")
    if path is None:
        raise Problem("not-found", f"job {job_id} has no bad rows")
    return StreamingResponse(
        pieces_of(here, path),
        media_type="text/csv",
        headers={"Content-Disposition": f'attachment; filename="bad-rows-{job_id}.csv"'},
    )


async def pieces_of(here: Ingestion, path: str) -> AsyncIterator[bytes]:
    """A file of the store in pieces."""
    async with here.store() as store:
        with (await store.local_copy(path)).open("rb") as file:
            while piece := await in_thread(file.read, PIECE):
                yield piece


@routes.add(
    "GET", "/api/ingestion/jobs/{job_id}/events", action="ingestion.read", refuses=["not-found", "too-many-streams"],
    media="text/event-stream", others=[SEEN],
)  # fmt: skip
async def follow_job(
    request: Request, job_id: JobNumber, last_event_id: Annotated[str | None, Header(max_length=100)] = None
) -> Response:
    """Follow an ingestion job until it has finished. 204 tells a client that has seen the end not to come back."""
    plane = plane_of(request)
    async with plane.pool.connection() as conn:
        run = await runs.get(conn, job_id)
    if run.state == "FINISHED" and topics.events_of(run)[0].id == last_event_id:
        return Response(status_code=204)

    async def begin() -> list[Event]:
        async with plane.pool.connection() as conn:
            events = (await topics.read(conn, [str(job_id)])).get(str(job_id), [])
        return events[1:] if events and events[0].id == last_event_id else events

    return plane.hub.respond(f"ingestion:{job_id}", caller_of(request), begin)
