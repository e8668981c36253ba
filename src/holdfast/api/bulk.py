"""Bulk acts by filter, and how far they are: a dry run first, then a job of its own."""

from __future__ import annotations

from typing import Annotated, Any

import psycopg
from fastapi import Request
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StrictBool, ValidationError
from starlette.responses import Response

from holdfast.api.acts import Act, Acting, Model, Reason, Text
from holdfast.api.envelope import Answer, Data, respond
from holdfast.api.jobs import Fingerprint, shown
from holdfast.api.paging import JobNumber
from holdfast.api.plane import plane_of
from holdfast.api.problems import Problem
from holdfast.api.routes import Routes
from holdfast.jobs import bulk, read
from holdfast.jobs.enqueue import enqueue
from holdfast.jobs.filters import Condition
from holdfast.jobs.model import JobId, NewJob
from holdfast.jobs.owner import set_owner
from holdfast.jobs.read import JobView
from holdfast.jobs.states import State

routes = Routes("bulk")

Name = Annotated[Text, Field(min_length=1, max_length=500)]


class BulkFilter(Model):
    """Which jobs; all that is named must fit."""

    state: State | None = None
    kind: Name | None = None
    queue: Name | None = None
    condition: Condition | None = None
    pipeline_id: Annotated[str, Field(pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")] | None = None
    worker_id: Annotated[str, Field(pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")] | None = None
    slot_key: Name | None = None
    parent_id: JobNumber | None = None
    fingerprint: Fingerprint | None = None
    created_after: AwareDatetime | None = None
    created_before: AwareDatetime | None = None


class BulkAsked(Model):
    """An act on many jobs. Without `dry_run: false` nothing is changed."""

    action: bulk.BulkAction
    filter: BulkFilter | Annotated[Text, Field(min_length=1, max_length=1000)]
    dry_run: StrictBool = True
    expected_count: Annotated[int, Field(ge=0, le=bulk.MOST)] | None = None
    reason: Reason

    def filters(self) -> dict[str, Any]:
        """The filter as values, however it was written."""
        try:
            given = BulkFilter.model_validate(bulk.parse(self.filter)) if isinstance(self.filter, str) else self.filter
        except ValidationError as error:
            first = error.errors()[0]
            raise Problem("invalid-request", f"filter {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
        return given.model_dump(mode="json", exclude_none=True)


class BulkSeen(BaseModel):
    """What a bulk act would touch."""

    matched: int
    by_kind: dict[str, int]
    sample: list[JobView]
    filter: dict[str, Any]


class Operation(BaseModel):
    """A bulk act on its way."""

    model_config = ConfigDict(extra="forbid")

    id: int
    state: str
    action: str
    filter: dict[str, Any]
    matched: int
    done: int | None
    failed: int | None
    failures: list[dict[str, Any]]
    progress: float | None
    message: str | None


@routes.add(
    "POST",
    "/api/jobs/bulk",
    action="jobs.bulk",
    status=202,
    answers=Data[Operation],
    refuses=["expected-count", "draining", "idempotency-mismatch"],
    others=[(200, "The dry run: what would be touched")],
)
async def act_in_bulk(asked: BulkAsked, act: Acting) -> Response:
    """Cancel, retry or recover every job that a filter finds. A dry run says what it would be."""
    return await run_in_bulk(act, asked.action, asked.filters(), asked.reason, asked.expected_count, dry_run=asked.dry_run)


async def run_in_bulk(
    act: Act, action: bulk.BulkAction, filters: dict[str, Any], reason: str, expected: int | None, *, dry_run: bool
) -> Response:
    """The one way into a bulk act, also for the failures."""
    if dry_run:
        async with act.plane.pool.connection() as conn:
            found = await bulk.look(conn, action, filters)
        sample = [shown(job, act.caller) for job in found.sample]
        return respond({"matched": found.matched, "by_kind": found.by_kind, "sample": sample, "filter": filters})
    if expected is None:
        raise Problem("invalid-request", "pass `expected_count` from a dry run, so that no more is touched than was seen")

    async def do(conn: psycopg.AsyncConnection[Any]) -> Answer:
        match = await bulk.look(conn, action, filters)
        if match.matched > expected:
            raise Problem(
                "expected-count",
                f"{match.matched} jobs match by now, {expected} were expected",
                matched=match.matched,
                expected=expected,
            )
        payload = {"action": action, "filter": filters, "matched": match.matched, "newest": match.newest}
        payload |= {"actor": act.actor, "reason": reason}
        made = await enqueue(conn, NewJob(bulk.KIND, payload, queue=bulk.QUEUE, max_attempts=10, max_crashes=10))
        await set_owner(conn, made, act.actor)
        operation = operation_of(await read.get_job(conn, made.id))
        return Answer(202, operation, {"Location": f"/api/operations/{made.id}", "Retry-After": "1"})

    return await act.run("jobs", do, reason=reason, detail={"action": action, "filter": filters, "expected": expected})


@routes.add("GET", "/api/operations/{job_id}", action="jobs.read", answers=Data[Operation], refuses=["not-found"])
async def show_operation(request: Request, job_id: JobNumber) -> Response:
    """Show how far a bulk act is. It is a job: cancel it like one."""
    async with plane_of(request).pool.connection() as conn:
        job = await read.get_job(conn, JobId(job_id))
    if job.kind != bulk.KIND:
        raise Problem("not-found", f"job {job_id} is no bulk act")
    return respond(operation_of(job))


def operation_of(job: JobView) -> dict[str, Any]:
    """The job of a bulk act as an operation. Pure."""
    result = job.result or {}
    return {
        "id": job.id,
        "state": job.state,
        "action": job.payload["action"],
        "filter": job.payload["filter"],
        "matched": job.payload["matched"],
        "done": result.get("done"),
        "failed": result.get("failed"),
        "failures": result.get("failures", []),
        "progress": job.progress,
        "message": job.message,
    }
