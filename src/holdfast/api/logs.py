"""Log lines of the handler of a job: a bounded number for each attempt, oldest line first."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import Query, Request
from pydantic import Field
from starlette.responses import Response

from holdfast.api.acts import Model
from holdfast.api.envelope import Listed
from holdfast.api.paging import JobNumber, Paged
from holdfast.api.plane import plane_of
from holdfast.api.routes import Routes
from holdfast.jobs.logs import Level
from holdfast.jobs.model import JobId
from holdfast.jobs.views import read
from holdfast.jobs.views.logs import read_lines

routes = Routes("jobs")

AttemptNumber = Annotated[int, Field(ge=1, le=2**31 - 1)]


class LogLine(Model):
    """One line. `at`: when it was written to the database; `said_at`: when it was logged, by the worker's clock."""

    id: Annotated[str, Field(description="Attempt and line, as in `2.17`; pass it as `after` to continue.")]
    attempt_no: int
    line_no: int
    at: datetime
    said_at: datetime
    level: Level
    message: str
    fields: dict[str, Any]


@routes.add(
    "GET",
    "/api/jobs/{job_id}/logs",
    action="jobs.read_logs",
    answers=Listed[LogLine],
    refuses=["not-found", "invalid-cursor"],
)
async def list_lines(
    request: Request,
    job_id: JobNumber,
    page: Paged,
    attempt: Annotated[AttemptNumber | None, Query(description="Only lines of this attempt.")] = None,
    level: Annotated[Level, Query(description="Only lines of this level and above.")] = "debug",
    tail: Annotated[int | None, Query(ge=1, le=100_000, description="Only the last lines, this many.")] = None,
    after: Annotated[
        str | None,
        Query(pattern=r"^[0-9]{1,9}\.[0-9]{1,9}$", description="Only lines after this one, to follow the log."),
    ] = None,
) -> Response:
    """List the log lines of the handler of a job. The last 1,000 lines of each attempt are kept as long as the job.

    All lines of an attempt are written before the attempt ends: a client that sees an ended job and then reads once more has
    all.
    """
    begin = page.after or (None if after is None else [int(part) for part in after.split(".")])
    async with plane_of(request).pool.connection() as conn:
        await read.get_job(conn, JobId(job_id))
        found = await read_lines(
            conn,
            JobId(job_id),
            after=None if begin is None else (begin[0], begin[1]),
            attempt=attempt,
            level=level,
            tail=tail,
            limit=page.limit + 1,
        )
    shown, more = found[: page.limit], found[page.limit :]
    return page.answer([{"id": line.id, **line._asdict()} for line in shown], shown[-1].place if more else None)
