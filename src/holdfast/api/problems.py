"""Error responses: RFC 9457 problem details with a stable `code` and a fix.

The types are in `problem_types.py`; `/problems/<slug>` serves each of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from holdfast.api.lazy_routes import flat
from holdfast.api.problem_types import PROBLEMS
from holdfast.database.pool import LOST
from holdfast.telemetry.log import log


class Problem(Exception):
    """An error that is answered with a problem response."""

    def __init__(self, slug: str, detail: str, *, headers: Mapping[str, str] | None = None, **members: Any) -> None:
        super().__init__(detail)
        self.slug, self.detail, self.headers, self.members = slug, detail, dict(headers or {}), members

    @property
    def status(self) -> int:
        return PROBLEMS[self.slug].status


class ErrorAt(BaseModel):
    """One error in a request, with its position."""

    pointer: str
    message: str


class ProblemDetails(BaseModel):
    """RFC 9457: the body of every error response."""

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
    """The stable code for programs."""
    return slug.upper().replace("-", "_")


def advice_for(problem: Problem) -> str:
    """How to fix it; a request that is invalid as a whole has no list of errors. Pure."""
    if problem.slug == "invalid-request" and "errors" not in problem.members:
        return "Fix what `detail` names, and send it again."
    return PROBLEMS[problem.slug].advice


def answer(request: Request, problem: Problem) -> JSONResponse:
    """The problem as a response."""
    kind = PROBLEMS[problem.slug]
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
# Errors of other layers
# ---------------------------------------------------------------------------------------------------------------------

SOON = {"Retry-After": "1"}
LATER = {"Retry-After": "30"}

# The first match counts, so subclasses are listed before their base classes.
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
    """An error of Holdfast as a problem; its `members()` become extension members."""
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
    """An error of Postgres or of the connection. Its message is only logged, because it may contain stored data."""
    if isinstance(error, psycopg.errors.LockNotAvailable | psycopg.errors.DeadlockDetected):
        return Problem("busy", "another request is changing the same object", headers=SOON)
    if isinstance(error, psycopg.errors.QueryCanceled):
        return Problem("too-slow", "the database did not answer in time", headers=SOON)
    if isinstance(error, psycopg.DataError | psycopg.errors.IntegrityError | psycopg.errors.ProgramLimitExceeded):
        return Problem("invalid-request", "the database cannot store this value")
    if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
        return Problem("database-unavailable", "the database takes no writes at the moment", headers=SOON)
    return Problem("database-unavailable", "the database cannot be reached", headers=SOON)


def of_validation(error: RequestValidationError) -> Problem:
    """Validation errors. The values are not repeated, because they may be secret."""
    found = [
        {"pointer": "/" + "/".join(str(part) for part in one["loc"]), "message": str(one["msg"])} for one in error.errors()[:20]
    ]
    first = found[0]
    return Problem("invalid-request", f"{first['pointer']}: {first['message']}", errors=found)


def of_http(error: HTTPException) -> Problem:
    """Errors of the framework: unknown paths and methods, bodies that cannot be parsed."""
    slug = {404: "not-found", 405: "method-not-allowed"}.get(error.status_code, "unreadable")
    detail = {"not-found": "there is nothing at this path", "method-not-allowed": "this path does not support this method"}
    return Problem(slug, detail.get(slug, "the request is malformed"), headers=error.headers)


def install(app: FastAPI) -> None:
    """Answer every known error with a problem; other errors are caught at the edge."""

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
        if problem.slug == "method-not-allowed":  # the framework lists the methods of one route; there may be more at this path
            problem.headers["Allow"] = ", ".join(sorted(methods_at(request) | {problem.headers["Allow"]}))
        return answer(request, problem)

    app.add_exception_handler(HTTPException, of_the_framework)


def methods_at(request: Request) -> set[str]:
    """The methods of all routes at the path of this request."""
    there = [route for route in flat(request.app.routes) if route.matches(request.scope)[0] is Match.PARTIAL]
    return {method for route in there for method in getattr(route, "methods", ())}
