"""Liveness, readiness and the descriptions of problem types: routes without authentication; and whoami."""

from __future__ import annotations

from typing import Any, Literal

import psycopg
from fastapi import Request
from psycopg.rows import tuple_row
from psycopg_pool import PoolTimeout
from starlette.responses import JSONResponse, Response

from holdfast.api.acts import Model
from holdfast.api.envelope import Data, respond
from holdfast.api.plane import caller_of, plane_of
from holdfast.api.problem_types import PROBLEMS
from holdfast.api.problems import Problem, code_of
from holdfast.api.routes import Routes
from holdfast.database.revision import OLDEST_CODE, Found, fits, said_of

routes = Routes("health")


class Health(Model):
    """The process is up."""

    status: Literal["ok"]
    version: str


class Ready(Model):
    """Whether the process is ready, or why not."""

    ready: bool
    database: Literal["ok", "unreachable"]
    schema_revision: str | None
    wanted_revision: str | None
    draining: bool
    version: str


@routes.add("GET", "/health", action="health.read", answers=Data[Health], also=["/api/health"])
async def health(request: Request) -> Response:
    """Show that the process is up. It does not check the database: a lost database is no reason to restart this process."""
    return respond({"status": "ok", "version": plane_of(request).options.version})


READINESS = f"""
    SELECT (SELECT version_num FROM holdfast.alembic_version), {OLDEST_CODE},
           EXISTS (SELECT FROM holdfast.controls WHERE kind = '*' AND drained_at IS NOT NULL)
"""


@routes.add("GET", "/ready", action="health.read", answers=Data[Ready], refuses=["not-ready"], also=["/api/ready"])
async def ready(request: Request) -> Response:
    """Show whether the database is reachable and has the schema that this code needs."""
    plane = plane_of(request)
    found: dict[str, Any] = {"ready": False, "database": "unreachable", "schema_revision": None, "draining": False}
    found |= {"wanted_revision": plane.wanted_revision, "version": plane.options.version}
    try:
        async with plane.pool.connection(timeout=2) as conn, conn.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(READINESS.encode())
            revision, oldest, draining = await cursor.fetchone() or (None, None, False)
            found |= {"database": "ok", "schema_revision": revision, "draining": draining}
            found["ready"] = plane.wanted_revision is None or fits(Found(revision, oldest), plane.wanted_revision)
    except psycopg.errors.UndefinedTable:
        found["database"] = "ok"
    except (psycopg.Error, PoolTimeout, OSError):
        pass  # the response says that it is unreachable
    if not found["ready"]:
        raise Problem("not-ready", _missing(found), headers={"Retry-After": "5"}, **found)
    return respond(found)


def _missing(found: dict[str, Any]) -> str:
    if found["database"] != "ok":
        return "the database cannot be reached"
    return said_of(found["schema_revision"], found["wanted_revision"])


class WhoAmI(Model):
    """The caller: its name, role and permissions."""

    actor: str
    method: str
    role: str | None


@routes.add("GET", "/api/whoami", action="whoami.read", answers=Data[WhoAmI])
async def whoami(request: Request) -> Response:
    """Show the caller's name, role and permissions."""
    caller = caller_of(request)
    return respond({"actor": caller.actor, "method": caller.method, "role": caller.role})


@routes.add("GET", "/openapi.json", action="openapi.read", media="application/json")
async def show_openapi(request: Request) -> Response:
    """Show the OpenAPI document."""
    return JSONResponse(request.app.openapi())


class ProblemMeaning(Model):
    """The description of a problem type."""

    type: str
    code: str
    status: int
    title: str
    what_to_do: str


@routes.add("GET", "/problems/{slug}", action="problems.read", answers=Data[ProblemMeaning], refuses=["not-found"])
async def show_problem(slug: str) -> Response:
    """Describe a problem type and how to fix it."""
    kind = PROBLEMS.get(slug)
    if kind is None:
        raise Problem("not-found", "there is no such problem type")
    return respond(
        {
            "type": f"/problems/{slug}",
            "code": code_of(slug),
            "status": kind.status,
            "title": kind.title,
            "what_to_do": kind.advice,
        }
    )
