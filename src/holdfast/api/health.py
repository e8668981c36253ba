"""Up, ready, and what a kind of problem means. The only routes that ask for no credentials."""

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
from holdfast.api.problems import KINDS, Problem, code_of
from holdfast.api.routes import Routes

routes = Routes("health")


class Health(Model):
    """The process is up."""

    status: Literal["ok"]
    version: str


class Ready(Model):
    """The process can do its work, or why not."""

    ready: bool
    database: Literal["ok", "unreachable"]
    schema_revision: str | None
    wanted_revision: str | None
    draining: bool
    version: str


@routes.add("GET", "/health", action="health.read", answers=Data[Health], also=["/api/health"])
async def health(request: Request) -> Response:
    """Say that the process is up. Asks nobody else: a database that is away is no reason to restart us."""
    return respond({"status": "ok", "version": plane_of(request).options.version})


READINESS = """
    SELECT (SELECT version_num FROM holdfast.alembic_version),
           EXISTS (SELECT FROM holdfast.controls WHERE kind = '*' AND drained_at IS NOT NULL)
"""


@routes.add("GET", "/ready", action="health.read", answers=Data[Ready], refuses=["not-ready"], also=["/api/ready"])
async def ready(request: Request) -> Response:
    """Say whether the database is there and its schema is the one that this code needs."""
    plane = plane_of(request)
    found: dict[str, Any] = {"ready": False, "database": "unreachable", "schema_revision": None, "draining": False}
    found |= {"wanted_revision": plane.wanted_revision, "version": plane.options.version}
    try:
        async with plane.pool.connection(timeout=2) as conn, conn.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(READINESS)
            revision, draining = await cursor.fetchone() or (None, False)
            found |= {"database": "ok", "schema_revision": revision, "draining": draining}
            found["ready"] = plane.wanted_revision in (None, revision)
    except psycopg.errors.UndefinedTable:
        found["database"] = "ok"
    except (psycopg.Error, PoolTimeout, OSError):
        pass  # that it is unreachable is what the answer says
    if not found["ready"]:
        raise Problem("not-ready", _missing(found), headers={"Retry-After": "5"}, **found)
    return respond(found)


def _missing(found: dict[str, Any]) -> str:
    if found["database"] != "ok":
        return "the database cannot be reached"
    return f"the schema is at {found['schema_revision']}, this code needs {found['wanted_revision']}; run `holdfast db migrate`"


class WhoAmI(Model):
    """Who the caller is to us."""

    actor: str
    method: str
    role: str | None


@routes.add("GET", "/api/whoami", action="whoami.read", answers=Data[WhoAmI])
async def whoami(request: Request) -> Response:
    """Say who the caller is."""
    caller = caller_of(request)
    return respond({"actor": caller.actor, "method": caller.method, "role": caller.role})


@routes.add("GET", "/openapi.json", action="openapi.read", media="application/json")
async def show_openapi(request: Request) -> Response:
    """Show the OpenAPI document of all this."""
    return JSONResponse(request.app.openapi())


class ProblemMeaning(Model):
    """What a kind of problem means."""

    type: str
    code: str
    status: int
    title: str
    what_to_do: str


@routes.add("GET", "/problems/{slug}", action="problems.read", answers=Data[ProblemMeaning], refuses=["not-found"])
async def show_problem(slug: str) -> Response:
    """Say what a kind of problem means and what to do about it."""
    kind = KINDS.get(slug)
    if kind is None:
        raise Problem("not-found", "there is no such kind of problem")
    return respond(
        {
            "type": f"/problems/{slug}",
            "code": code_of(slug),
            "status": kind.status,
            "title": kind.title,
            "what_to_do": kind.advice,
        }
    )
