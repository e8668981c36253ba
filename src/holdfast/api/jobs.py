"""Jobs: enqueue, list, show. `job_changes.py` has the changes of one job."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any, Literal
from uuid import UUID

import psycopg
from fastapi import Query, Request
from pydantic import AwareDatetime, Field
from starlette.responses import Response

from holdfast.api import job_changes
from holdfast.api.acts import Acting, Model, Text
from holdfast.api.bodies import Small
from holdfast.api.envelope import UNCHANGED, Answer, Data, Listed, respond, respond_tagged
from holdfast.api.job_changes import shown
from holdfast.api.paging import JobNumber, Paged
from holdfast.api.plane import caller_of, plane_of
from holdfast.api.reserved import known_to_services, refuse_private, refuse_reserved
from holdfast.api.routes import Routes
from holdfast.jobs.declare import requested_job
from holdfast.jobs.enqueue import enqueue
from holdfast.jobs.kinds import require
from holdfast.jobs.model import JobId, Lock
from holdfast.jobs.owner import set_owner
from holdfast.jobs.states import State
from holdfast.jobs.views import explain, history, read
from holdfast.jobs.views.filters import MOST_LOOKED_AT, Condition
from holdfast.jobs.views.read import JobView

routes = Routes("jobs")

Key = Annotated[Text, Field(min_length=1, max_length=500)]
Name = Annotated[Text, Field(min_length=1, max_length=200)]
Fingerprint = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
SEARCH = f"Its number, or a part of its kind, queue, step, slot, message or error; among the newest {MOST_LOOKED_AT:,} jobs."


# ---------------------------------------------------------------------------------------------------------------------
# Looking
# ---------------------------------------------------------------------------------------------------------------------


@routes.add("GET", "/api/jobs", action="jobs.read", answers=Listed[JobView], refuses=["invalid-cursor", "too-slow"])
async def list_jobs(
    request: Request,
    page: Paged,
    state: State | None = None,
    kind: Name | None = None,
    queue: Name | None = None,
    condition: Condition | None = None,
    pipeline_id: UUID | None = None,
    worker_id: UUID | None = None,
    slot_key: Key | None = None,
    parent_id: JobNumber | None = None,
    fingerprint: Fingerprint | None = None,
    created_after: AwareDatetime | None = None,
    created_before: AwareDatetime | None = None,
    q: Annotated[Name | None, Query(description=SEARCH)] = None,
    count: Annotated[bool, Query(description="Also count them, up to a cap.")] = False,
) -> Response:
    """List jobs, newest first."""
    filters: dict[str, Any] = {
        "state": state,
        "kind": kind,
        "queue": queue,
        "condition": condition,
        "pipeline_id": pipeline_id,
        "worker_id": worker_id,
        "slot_key": slot_key,
        "parent_id": parent_id,
        "fingerprint": fingerprint,
        "created_after": created_after,
        "created_before": created_before,
        "q": q,
    }
    async with plane_of(request).pool.connection() as conn:
        found = await read.list_jobs(conn, limit=page.limit, before=page.after, **filters)
        total = await read.count_jobs(conn, **filters) if count else None
    caller = caller_of(request)
    counted = None if total is None else {"value": total.count, "capped": total.capped}
    return page.answer([shown(job, caller) for job in found.jobs], found.before, counted)


@routes.add(
    "GET",
    "/api/jobs/{job_id}",
    action="jobs.read",
    answers=Data[JobView],
    refuses=["not-found"],
    also=["/jobs/{job_id}"],
    others=[UNCHANGED],
)
async def show_job(request: Request, job_id: JobNumber) -> Response:
    """Show one job."""
    async with plane_of(request).pool.connection() as conn:
        job = await read.get_job(conn, JobId(job_id))
    return respond_tagged(request, shown(job, caller_of(request)))


class Explanation(Model):
    """Why a job is in its state."""

    job_id: int
    sentence: str


@routes.add("GET", "/api/jobs/{job_id}/explain", action="jobs.read", answers=Data[Explanation], refuses=["not-found"])
async def explain_job(request: Request, job_id: JobNumber) -> Response:
    """Explain why a job is in its state, and which job or worker it waits for."""
    async with plane_of(request).pool.connection() as conn:
        sentence = await explain.explain(conn, JobId(job_id))
    return respond({"job_id": job_id, "sentence": sentence})


class Move(Model):
    """One entry of a job's history. An attempt lasted from `claimed_at` to `at`."""

    at: datetime
    move: str
    state: str
    attempt_no: int | None
    attempt_id: str | None
    worker_id: str | None
    claimed_at: datetime | None
    actor: str | None
    reason: str | None
    detail: Any
    xid: str


@routes.add("GET", "/api/jobs/{job_id}/attempts", action="jobs.read", answers=Data[list[Move]], refuses=["not-found"])
async def list_attempts(request: Request, job_id: JobNumber) -> Response:
    """List the moves that ended an attempt, oldest first."""
    entries = await _entries(request, job_id)
    return respond([entry for entry in entries if entry["attempt_id"] is not None])


@routes.add("GET", "/api/jobs/{job_id}/history", action="jobs.read", answers=Data[list[Move]], refuses=["not-found"])
async def list_history(request: Request, job_id: JobNumber) -> Response:
    """List every move of a job, oldest first."""
    return respond(await _entries(request, job_id))


async def _entries(request: Request, job_id: int) -> list[dict[str, Any]]:
    async with plane_of(request).pool.connection() as conn:
        await read.get_job(conn, JobId(job_id))
        return [entry._asdict() for entry in await history.history(conn, JobId(job_id))]


# ---------------------------------------------------------------------------------------------------------------------
# Acting
# ---------------------------------------------------------------------------------------------------------------------


class LockAsked(Model):
    """A lock that the job needs."""

    key: Key
    most: Annotated[int, Field(ge=1, le=1_000_000)] | None = 1
    when_busy: Literal["wait", "reject"] = "wait"


OVERRIDES = "Default: what the kind declares."
ADDED = "Added to the locks that the kind declares; required if the kind declares them as a function."
KEYED = "Only for kinds that declare none, or declare it as a function, which makes it required."


class JobAsked(Model):
    """A new job. Omitted fields have the values that the kind declares."""

    kind: Name
    payload: dict[str, Any] = Field(default_factory=dict, description="The arguments of the handler, by name.")
    queue: Name | None = Field(None, description=OVERRIDES)
    priority: Annotated[int, Field(ge=-32768, le=32767)] | None = Field(None, description=OVERRIDES)
    run_after: AwareDatetime | None = None
    delay_seconds: Annotated[float, Field(ge=0, le=31_536_000)] | None = None
    max_attempts: Small | None = Field(None, description=OVERRIDES)
    max_crashes: Small | None = Field(None, description=OVERRIDES)
    max_runtime_seconds: Annotated[float, Field(ge=0.001, le=31_536_000)] | None = Field(None, description=OVERRIDES)
    unique_key: Key | None = Field(None, description=KEYED)
    unique_while: Literal["waiting", "live"] | None = None
    slot_key: Key | None = Field(None, description=KEYED)
    locks: Annotated[list[LockAsked], Field(max_length=20)] | None = Field(None, description=ADDED)
    after: Annotated[list[JobNumber], Field(max_length=1000)] | None = None
    if_parent_fails: Literal["cancel", "run"] | None = None
    allow_unknown_kind: bool = Field(False, description="Enqueue it with defaults if no worker has published the kind.")

    def options(self) -> dict[str, Any]:
        """The options of the request, as fields of `NewJob`."""
        said = self.model_dump(
            exclude={"kind", "payload", "delay_seconds", "max_runtime_seconds", "locks", "allow_unknown_kind"}
        )
        delay, runtime = self.delay_seconds, self.max_runtime_seconds
        said |= {
            "run_after": self.run_after or (None if delay is None else timedelta(seconds=delay)),
            "max_runtime": None if runtime is None else timedelta(seconds=runtime),
            "locks": None if self.locks is None else tuple(Lock(one.key, one.most, one.when_busy) for one in self.locks),
        }
        return {name: value for name, value in said.items() if value is not None}


class JobMade(Model):
    """The result of an enqueue: `created` is false if an equal job existed already."""

    id: int
    created: bool
    job: JobView


REFUSALS = [
    "invalid-payload",
    "unknown-kind",
    "key-not-given",
    "lock-busy",
    "draining",
    "reserved-kind",
    "not-found",
    "idempotency-mismatch",
]


@routes.add("POST", "/api/jobs", action="jobs.enqueue", status=202, answers=Data[JobMade], refuses=REFUSALS)
async def enqueue_job(asked: JobAsked, act: Acting) -> Response:
    """Enqueue a job as its kind declares it: with its locks, keys, queue and limits. The arguments are validated."""
    refuse_reserved(asked.kind)
    service = act.plane.services.get(asked.kind.partition(".")[0])  # the kinds of a service begin with its name
    if service is not None:
        await service.admit(asked.kind, asked.payload)

    async def do(conn: psycopg.AsyncConnection[Any]) -> Answer:
        declared = await require(
            conn, asked.kind, allow_unknown=asked.allow_unknown_kind, otherwise=known_to_services(asked.kind)
        )
        refuse_private(declared)
        made = await enqueue(conn, requested_job(declared, asked.payload, asked.options()))
        await set_owner(conn, made, act.actor)
        job = shown(await read.get_job(conn, made.id), act.caller)
        headers = {"Location": f"/api/jobs/{made.id}", "Retry-After": "1"}
        return Answer(202, {"id": made.id, "created": made.created, "job": job}, headers)

    return await act.run("job", do, detail={"kind": asked.kind})


routes.include(job_changes.routes)
