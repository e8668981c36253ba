"""Answer every error of a request with a problem response. Installed by: `app.py`; also used at the edge."""

from __future__ import annotations

from typing import Any, cast

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
from holdfast.api.problems import Problem, body_of, code_of, of_ours, of_the_database
from holdfast.database.pool import LOST
from holdfast.telemetry.log import log


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


def answer(request: Request, problem: Problem) -> JSONResponse:
    """The problem as a response."""
    body = body_of(problem, request.url.path, getattr(request.state, "request_id", ""))
    return JSONResponse(body, problem.status, problem.headers, media_type="application/problem+json")


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
