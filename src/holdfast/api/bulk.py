"""Bulk actions by filter and their progress: first a dry run, then a job that runs the action."""

from __future__ import annotations

from typing import Annotated, Any

import psycopg
from fastapi import Request
from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, ValidationError
from starlette.responses import Response

from holdfast.api.acts import Act, Acting, Model, Reason, Text
from holdfast.api.envelope import Answer, Data, respond
from holdfast.api.job_changes import shown
from holdfast.api.jobs import Fingerprint
from holdfast.api.paging import JobNumber
from holdfast.api.plane import plane_of
from holdfast.api.problems import Problem
from holdfast.api.routes import Routes
from holdfast.jobs import bulk
from holdfast.jobs.enqueue import enqueue
from holdfast.jobs.model import JobId, NewJob
from holdfast.jobs.owner import set_owner
from holdfast.jobs.states import State
from holdfast.jobs.views import read
from holdfast.jobs.views.filters import MOST_IDS, Condition
from holdfast.jobs.views.read import JobView

routes = Routes("bulk")

Name = Annotated[Text, Field(min_length=1, max_length=500)]


def _listed(given: Any) -> Any:
    """`7,9` as a list. Pure."""
    return given.split(",") if isinstance(given, str) else given


class BulkFilter(Model):
    """Which jobs; all given fields must match. `ids`: only these, as text with commas between them."""

    ids: Annotated[list[JobNumber], BeforeValidator(_listed), Field(min_length=1, max_length=MOST_IDS)] | None = None
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
    """An action on many jobs. Without `dry_run: false` nothing is changed."""

    action: bulk.BulkAction
    filter: BulkFilter | Annotated[Text, Field(min_length=1, max_length=1000)]
    dry_run: StrictBool = True
    expected_count: Annotated[int, Field(ge=0, le=bulk.MOST)] | None = None
    reason: Reason

    def filters(self) -> dict[str, Any]:
        """The filter as values, from text or from fields."""
        try:
            given = BulkFilter.model_validate(bulk.parse(self.filter)) if isinstance(self.filter, str) else self.filter
        except ValidationError as error:
            first = error.errors()[0]
            raise Problem("invalid-request", f"filter {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
        return given.model_dump(mode="json", exclude_none=True)


class BulkSeen(BaseModel):
    """The jobs that a bulk action would change."""

    matched: int
    by_kind: dict[str, int]
    sample: list[JobView]
    filter: dict[str, Any]


class Operation(BaseModel):
    """A bulk action that was started."""

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
    others=[(200, "The dry run: what would be changed")],
)
async def act_in_bulk(asked: BulkAsked, act: Acting) -> Response:
    """Cancel, retry or recover every job that matches a filter. A dry run shows what would be changed."""
    return await run_in_bulk(act, asked.action, asked.filters(), asked.reason, asked.expected_count, dry_run=asked.dry_run)


async def run_in_bulk(
    act: Act, action: bulk.BulkAction, filters: dict[str, Any], reason: str, expected: int | None, *, dry_run: bool
) -> Response:
    """Start a bulk action; also used by the routes for failures."""
    if dry_run:
        async with act.plane.pool.connection() as conn:
            found = await bulk.dry_run(conn, action, filters)
        sample = [shown(job, act.caller) for job in found.sample]
        return respond({"matched": found.matched, "by_kind": found.by_kind, "sample": sample, "filter": filters})
    if expected is None:
        raise Problem(
            "invalid-request", "send `expected_count` from a dry run, so that no more jobs are changed than it showed"
        )

    async def do(conn: psycopg.AsyncConnection[Any]) -> Answer:
        match = await bulk.dry_run(conn, action, filters)
        if match.matched > expected:
            raise Problem(
                "expected-count",
                f"{match.matched} jobs match now, {expected} were expected",
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
    """Show the progress of a bulk action. It is a job and can be cancelled like one."""
    async with plane_of(request).pool.connection() as conn:
        job = await read.get_job(conn, JobId(job_id))
    if job.kind != bulk.KIND:
        raise Problem("not-found", f"job {job_id} is not a bulk action")
    return respond(operation_of(job))


def operation_of(job: JobView) -> dict[str, Any]:
    """The job of a bulk action as an operation. Pure."""
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
