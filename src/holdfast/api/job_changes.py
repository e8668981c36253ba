"""Changes of one job: cancel, retry, recover. Without a web framework: the command line calls them without a server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from holdfast.api.answers import Answer, etag_of, jsonable, require_match
from holdfast.api.bodies import Body, Flag, JobNumber, Reason, Small
from holdfast.api.change import Change, Conn
from holdfast.api.plane import Principal
from holdfast.api.routes import Routes
from holdfast.jobs.cancel import cancel
from holdfast.jobs.model import JobId
from holdfast.jobs.owner import owner_of
from holdfast.jobs.recover import recover
from holdfast.jobs.rerun import rerun
from holdfast.jobs.views import read
from holdfast.jobs.views.read import JobView

routes = Routes("jobs")


def shown(job: JobView, caller: Principal) -> dict[str, Any]:
    """A job as this caller may see it: viewers see no payloads and results, analysts see handles of their own jobs only."""
    found: dict[str, Any] = jsonable(job)
    if not caller.may("jobs.read_payload"):
        found |= {"payload": None, "result": None}
    if not may_see_handle(job, caller):
        found["handle"] = None
    return found


def may_see_handle(job: JobView, caller: Principal) -> bool:
    """Whether this caller may see the handle of the job: how to reach its work in the external engine. Pure."""
    action = "jobs.read_handle"
    return caller.may(action) and (job.owner == caller.actor or not caller.only_own(action))


@dataclass(frozen=True)
class CancelAsked(Body):
    """Cancel a job; `force` does not wait for its handler."""

    reason: Reason | None = None
    force: Flag = False


CHANGES = ["not-found", "wrong-state", "changed-meanwhile", "idempotency-mismatch"]


@routes.change(
    "POST",
    "/api/jobs/{job_id}/cancel",
    action="jobs.cancel",
    status=202,
    answers=JobView,
    refuses=CHANGES,
    also=["/jobs/{job_id}/cancel"],
)
async def cancel_job(change: Change, job_id: JobNumber, asked: CancelAsked | None = None) -> Answer:
    """Cancel a job; a running one gets a cancel request."""
    asked = asked or CancelAsked()
    act = partial(cancel, job_id=JobId(job_id), actor=change.actor, reason=asked.reason, force=asked.force)
    return await _change_job(change, job_id, act, reason=asked.reason, detail={"force": asked.force})


@dataclass(frozen=True)
class RetryAsked(Body):
    """Run an ended job again, with at least this many attempts left."""

    reason: Reason | None = None
    grant: Small = 1


@routes.change(
    "POST", "/api/jobs/{job_id}/retry", action="jobs.retry", status=202, answers=JobView, refuses=[*CHANGES, "refused"]
)
async def retry_job(change: Change, job_id: JobNumber, asked: RetryAsked | None = None) -> Answer:
    """Run a failed or cancelled job again."""
    asked = asked or RetryAsked()
    act = partial(rerun, job_id=JobId(job_id), actor=change.actor, reason=asked.reason, grant=asked.grant)
    return await _change_job(change, job_id, act, reason=asked.reason, detail={"grant": asked.grant})


@dataclass(frozen=True)
class RecoverAsked(Body):
    """Take a job from a worker whose lease has expired."""

    reason: Reason = "recovered by an operator"
    grant: Small = 1


@routes.change(
    "POST",
    "/api/jobs/{job_id}/recover",
    action="jobs.recover",
    answers=JobView,
    refuses=["not-found", "not-stale", "idempotency-mismatch"],
    also=["/sync/jobs/{job_id}/recover", "/jobs/{job_id}/recover"],
)
async def recover_job(change: Change, job_id: JobNumber, asked: RecoverAsked | None = None) -> Answer:
    """Return a job whose worker's lease has expired to the queue."""
    asked = asked or RecoverAsked()

    async def do(conn: Conn) -> Answer:
        await recover(conn, JobId(job_id), actor=change.actor, reason=asked.reason, grant=asked.grant)
        return Answer(200, shown(await read.get_job(conn, JobId(job_id)), change.caller))

    return await change.perform(f"job/{job_id}", do, reason=asked.reason, detail={"grant": asked.grant})


async def _change_job(
    change: Change, job_id: int, act: Callable[[Conn], Awaitable[object]], *, reason: str | None, detail: dict[str, Any]
) -> Answer:
    """Change a job of its owner, unless it is not the one that If-Match names. Answers with the job as it is then."""

    async def do(conn: Conn) -> Answer:
        if "if-match" in change.request.headers:
            require_match(change.request, etag_of(shown(await read.get_job(conn, JobId(job_id)), change.caller)))
        await act(conn)
        job = shown(await read.get_job(conn, JobId(job_id)), change.caller)
        return Answer(202, job, {"Location": f"/api/jobs/{job_id}", "Retry-After": "1"})

    owner = partial(owner_of, job_id=JobId(job_id))
    return await change.perform(f"job/{job_id}", do, owner=owner, reason=reason, detail=detail)
