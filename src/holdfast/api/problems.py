"""Say what went wrong, in one form: RFC 9457, a stable `code`, and what to do about it.

Each kind of problem is a line below; `/problems/<slug>` serves it, and the reference page is made from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import psycopg
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from psycopg_pool import PoolTimeout
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.routing import Match

from holdfast import errors
from holdfast.database.pool import LOST
from holdfast.telemetry.log import log


@dataclass(frozen=True, slots=True)
class ProblemKind:
    """A kind of problem, and what to do about it."""

    status: int
    title: str
    advice: str


KINDS: Final[Mapping[str, ProblemKind]] = {
    "invalid-request": ProblemKind(
        422, "The request is not valid", "Mend what `errors` points at, or `detail` says, and send it again."
    ),
    "invalid-payload": ProblemKind(
        422, "The payload is not valid", "Change the payload as `detail` says; `errors` names each argument that does not fit."
    ),
    "invalid-cursor": ProblemKind(
        422, "The cursor is not one of ours", "Start again from the first page with the same filters."
    ),
    "unknown-kind": ProblemKind(
        422,
        "Unknown kind",
        "Use a kind that a worker has published (GET /api/kinds; `near` has similar ones), or send `allow_unknown_kind: true`.",
    ),
    "key-not-given": ProblemKind(
        422, "The request has to give a key", "Send the `field`, or declare the key as a template and restart the workers."
    ),
    "validation-failed": ProblemKind(
        422, "The mapping is not valid", "Mend what each of `errors` points at and send it again."
    ),
    "missing-use-case": ProblemKind(
        422, "In whose name?", "Send X-Use-Case-Id: the engine runs nothing without a role, and there is no default."
    ),
    "unreadable": ProblemKind(400, "The request cannot be read", "Send well-formed HTTP with a JSON body in UTF-8."),
    "unauthenticated": ProblemKind(401, "Nobody known", "Send `Authorization: Bearer <token>` with a live token."),
    "forbidden": ProblemKind(403, "Not for this role", "Ask somebody with one of the roles in `required_roles`."),
    "not-own-worker": ProblemKind(
        403,
        "Another principal's worker",
        "Use a token with the name of the one that registered the worker, or register a new id.",
    ),
    "cross-origin": ProblemKind(403, "From another site", "Call from the same origin, or with a token of your own."),
    "reserved-kind": ProblemKind(
        403, "A kind of our own", "Kinds of `holdfast.` and of the services (`exports.`) are made by their own routes only."
    ),
    "not-found": ProblemKind(404, "There is no such thing", "Check the id; what has ended long ago may have been pruned."),
    "method-not-allowed": ProblemKind(405, "Not with this method", "Use one of the methods in the `Allow` header."),
    "wrong-state": ProblemKind(409, "This state does not lead there", "Look at the job again; it has moved."),
    "not-stale": ProblemKind(409, "The holder is alive", "Wait until its lease is over, or cancel the job."),
    "lock-busy": ProblemKind(409, "The lock is held", "Wait for the holder to end, or enqueue with `when_busy: wait`."),
    "lock-held": ProblemKind(409, "The holder is not done", "Cancel the job that holds it; its end releases the lock."),
    "idempotency-mismatch": ProblemKind(409, "The key was used for something else", "Use a new Idempotency-Key."),
    "idempotency-in-progress": ProblemKind(
        409, "The first request is still at work", "Send the same request again after a moment."
    ),
    "cancel-requested": ProblemKind(409, "Somebody wants it to stop", "End the attempt with `cancel`."),
    "already-exists": ProblemKind(409, "The name is taken", "Choose another name, or change the one that has it."),
    "resource-has-dependencies": ProblemKind(409, "Something stands on it", "Delete what `detail` names first."),
    "expected-count": ProblemKind(409, "More match than expected", "Do the dry run again and pass its count."),
    "refused": ProblemKind(409, "Not now", "Do what `detail` says."),
    "busy": ProblemKind(409, "Somebody else is changing it", "Send it again after a moment."),
    "stale-attempt": ProblemKind(412, "The attempt was replaced", "Stop: somebody else owns this job now."),
    "changed-meanwhile": ProblemKind(412, "It changed meanwhile", "Read it again and decide anew."),
    "too-large": ProblemKind(413, "The body is too large", "Store it elsewhere and send its address."),
    "attempt-required": ProblemKind(428, "Under which attempt?", "Send the attempt id of your claim in `If-Match`."),
    "rate-limited": ProblemKind(429, "Too many requests", "Wait as many seconds as `Retry-After` says."),
    "internal": ProblemKind(500, "A fault of ours", "Report the `request_id`; the log has the rest under it."),
    "engine-unavailable": ProblemKind(503, "The engine does not answer", "Try again after a moment; nothing was changed."),
    "draining": ProblemKind(503, "No new jobs are taken", "Wait as many seconds as `Retry-After` says, or ask who drained it."),
    "database-unavailable": ProblemKind(503, "The database cannot be reached", "Wait and try again; nothing was changed."),
    "too-slow": ProblemKind(503, "It took too long", "Narrow the filter and try again."),
    "too-many-streams": ProblemKind(503, "Too many open streams", "Close some, or wait as `Retry-After` says."),
    "not-ready": ProblemKind(503, "Not ready", "Wait; the body says what is missing."),
}


class Problem(Exception):
    """A problem on its way to the caller."""

    def __init__(self, slug: str, detail: str, *, headers: Mapping[str, str] | None = None, **members: Any) -> None:
        super().__init__(detail)
        self.slug, self.detail, self.headers, self.members = slug, detail, dict(headers or {}), members

    @property
    def status(self) -> int:
        return KINDS[self.slug].status


class ErrorAt(BaseModel):
    """One thing that is wrong with a request, and where."""

    pointer: str
    message: str


class ProblemDetails(BaseModel):
    """RFC 9457: the answer to everything that did not go well."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"title": "Problem"})

    type: str
    title: str
    status: int
    detail: str
    code: str
    what_to_do: str
    instance: str
    request_id: str
    errors: list[ErrorAt] | None = None


def code_of(slug: str) -> str:
    """The stable word for machines."""
    return slug.upper().replace("-", "_")


def advice_for(problem: Problem) -> str:
    """What to do; of a request that is wrong as a whole there is no list of mistakes. Pure."""
    if problem.slug == "invalid-request" and "errors" not in problem.members:
        return "Mend what `detail` names and send it again."
    return KINDS[problem.slug].advice


def answer(request: Request, problem: Problem) -> JSONResponse:
    """The problem as a response."""
    kind = KINDS[problem.slug]
    body = {
        "type": f"/problems/{problem.slug}",
        "title": kind.title,
        "status": kind.status,
        "detail": problem.detail,
        "code": code_of(problem.slug),
        "what_to_do": advice_for(problem),
        "instance": request.url.path,
        "request_id": getattr(request.state, "request_id", ""),
        **problem.members,
    }
    return JSONResponse(body, kind.status, problem.headers, media_type="application/problem+json")


# ---------------------------------------------------------------------------------------------------------------------
# What others raise
# ---------------------------------------------------------------------------------------------------------------------

SOON = {"Retry-After": "1"}
LATER = {"Retry-After": "30"}

# The first that fits counts: the nearer ones stand above what they are a kind of.
OF_OUR_ERRORS: Final[Sequence[tuple[type[errors.HoldfastError], str]]] = (
    (errors.NotFound, "not-found"),
    (errors.UnknownKind, "unknown-kind"),
    (errors.PayloadInvalid, "invalid-payload"),
    (errors.UsageError, "invalid-request"),
    (errors.LockBusy, "lock-busy"),
    (errors.IdempotencyConflict, "idempotency-mismatch"),
    (errors.NotStale, "not-stale"),
    (errors.IllegalMove, "wrong-state"),
    (errors.Draining, "draining"),
    (errors.TriggeredTooOften, "rate-limited"),
    (errors.Refused, "refused"),
    (errors.ClaimLost, "stale-attempt"),
    (errors.CancelRequested, "cancel-requested"),
    (errors.TermLost, "refused"),
    (errors.DatabaseProblem, "database-unavailable"),
)


def of_ours(error: errors.HoldfastError) -> Problem:
    """Our own error as a problem; what it carries becomes members."""
    slug = error.slug or next((slug for kind, slug in OF_OUR_ERRORS if isinstance(error, kind)), "internal")
    if isinstance(error, errors.LockBusy):
        return Problem(slug, str(error), lock_key=error.key, holder_job_id=error.holder)
    if isinstance(error, errors.Draining):
        return Problem(slug, str(error), headers=LATER, kind=error.kind, reason=error.reason)
    if isinstance(error, errors.CancelRequested):
        return Problem(slug, str(error), reason=error.reason)
    if isinstance(error, errors.TriggeredTooOften):
        seconds = error.retry_after
        return Problem(slug, str(error), headers={"Retry-After": str(seconds)}, retry_after=seconds, job_name=error.loop)
    if isinstance(error, errors.DatabaseProblem):
        return Problem(slug, "the database cannot be used at the moment", headers=LATER)
    return Problem(slug, str(error), **error.members())


def of_the_database(error: Exception) -> Problem:
    """What Postgres or the way to it says. Its own words stay in the log: they may hold what others stored."""
    if isinstance(error, psycopg.errors.LockNotAvailable | psycopg.errors.DeadlockDetected):
        return Problem("busy", "somebody else is changing the same thing", headers=SOON)
    if isinstance(error, psycopg.errors.QueryCanceled):
        return Problem("too-slow", "the database did not answer in time", headers=SOON)
    if isinstance(error, psycopg.DataError | psycopg.errors.IntegrityError | psycopg.errors.ProgramLimitExceeded):
        return Problem("invalid-request", "the database cannot store this value")
    if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
        return Problem("database-unavailable", "the database takes no writes at the moment", headers=SOON)
    return Problem("database-unavailable", "the database cannot be reached", headers=SOON)


def of_validation(error: RequestValidationError) -> Problem:
    """What does not fit the model. The values themselves are not repeated: they may be secret."""
    found = [
        {"pointer": "/" + "/".join(str(part) for part in one["loc"]), "message": str(one["msg"])} for one in error.errors()[:20]
    ]
    first = found[0]
    return Problem("invalid-request", f"{first['pointer']}: {first['message']}", errors=found)


def of_http(error: HTTPException) -> Problem:
    """What the framework refuses by itself: unknown paths and methods, bodies that cannot be parsed."""
    slug = {404: "not-found", 405: "method-not-allowed"}.get(error.status_code, "unreadable")
    detail = {"not-found": "there is nothing at this path", "method-not-allowed": "not with this method"}
    return Problem(slug, detail.get(slug, "the request cannot be read"), headers=error.headers)


def install(app: FastAPI) -> None:
    """Answer every known error with a problem; what nobody knows is caught at the edge."""

    def answers(make: Any, *kinds: type[Exception]) -> None:
        async def handle(request: Request, error: Exception) -> JSONResponse:
            problem = make(error)
            if problem.status >= 500:
                log.warning("http_unavailable", code=code_of(problem.slug), error=f"{type(error).__name__}: {error}")
            return answer(request, problem)

        for kind in kinds:
            app.add_exception_handler(kind, handle)

    answers(lambda problem: problem, Problem)
    answers(of_ours, errors.HoldfastError)
    answers(of_the_database, *LOST, PoolTimeout)
    answers(of_the_database, psycopg.DataError, psycopg.errors.IntegrityError, psycopg.errors.ReadOnlySqlTransaction)
    answers(of_validation, RequestValidationError)

    async def of_the_framework(request: Request, error: Exception) -> JSONResponse:
        problem = of_http(cast("HTTPException", error))
        if problem.slug == "method-not-allowed":  # the framework names those of one route; there may be more at this path
            problem.headers["Allow"] = ", ".join(sorted(methods_at(request) | {problem.headers["Allow"]}))
        return answer(request, problem)

    app.add_exception_handler(HTTPException, of_the_framework)


def methods_at(request: Request) -> set[str]:
    """The methods of all routes at the path of this request."""
    there = [route for route in request.app.routes if route.matches(request.scope)[0] is Match.PARTIAL]
    return {method for route in there for method in getattr(route, "methods", ())}
