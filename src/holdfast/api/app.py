"""The control plane as one FastAPI app. Called by: `apps/api.py`.

The routers below are its table of contents: one file each. Around them, from the outside in: the edge (request ids, headers),
the guard of each route (authentication, rate limit, permission), the limits of the body, and for changes one transaction
(`acts.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from psycopg.rows import tuple_row
from psycopg_pool import AsyncConnectionPool
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp

from holdfast.api import (
    bulk,
    config,
    doctor,
    failures,
    health,
    index,
    jobs,
    locks,
    login,
    logs,
    metrics,
    ops,
    periodic,
    pipelines,
    problem_responses,
    streams,
    tokens,
    worker_protocol,
    workers,
)
from holdfast.api.edge import Edge
from holdfast.api.guarded import served
from holdfast.api.lazy_routes import LazyGroup, built
from holdfast.api.metrics import Gauges
from holdfast.api.oidc import Oidc
from holdfast.api.periodic import Loops, NoLoops
from holdfast.api.plane import ApiOptions, Plane, Resources, opened
from holdfast.api.policy import POLICY
from holdfast.api.routes import Route, Routes
from holdfast.api.sse import Hub, TopicReader

NOUNS: tuple[Routes, ...] = (
    bulk.routes,  # before the jobs, so that /api/jobs/bulk is not read as a job id
    jobs.routes,
    logs.routes,
    streams.routes,
    failures.routes,
    pipelines.routes,
    locks.routes,
    workers.routes,
    periodic.routes,
    ops.routes,
    doctor.routes,
    config.routes,
    tokens.routes,
    metrics.routes,
    health.routes,
    login.routes,
    index.routes,
)


class Beside(Protocol):
    """An application beside the API, such as the web console."""

    @property
    def path(self) -> str: ...
    @property
    def app(self) -> ASGIApp: ...
    def attach(self, plane: Plane, api: FastAPI) -> None: ...


READ_CURSOR_KEY = "SELECT value FROM holdfast.secrets WHERE name = 'cursor'"


def make_app(
    pool: AsyncConnectionPool[Any],
    options: ApiOptions | None = None,
    *,
    hints_from: str | None = None,
    oidc: Oidc | None = None,
    loops: Loops | None = None,
    wanted_revision: str | None = None,
    nouns: Sequence[Routes] = (),
    lazy_nouns: Sequence[Callable[[], Sequence[Routes]]] = (),
    services: Mapping[str, Resources] | None = None,
    topics: Mapping[str, TopicReader] | None = None,
    console: Beside | None = None,
) -> FastAPI:
    """The app on this connection pool, which it opens at its start and closes at its end.

    `hints_from`: the database address to listen on for notifications; without it the streams only poll. `nouns`: the routes of
    services. `lazy_nouns`: others, which are loaded when a request needs them. `services`: their open resources, which are
    closed with the app. `topics`: their event streams. `console`: an application that is served beside the API and uses the
    same plane.
    """
    options, services = options or ApiOptions(), {} if services is None else services
    hub = Hub(pool, hints_from, options, topics)
    gauges = Gauges(pool, options.version, services)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with pool:
            key = await _cursor_key(pool)
            app.state.plane = Plane(pool, options, key, hub, gauges, loops or NoLoops(), oidc, wanted_revision, services)
            if console is not None:
                console.attach(app.state.plane, app)
            hub.start()
            lag = asyncio.create_task(gauges.watch_the_loop())
            yield
            lag.cancel()
            await hub.close()
            for service in opened(services):
                await service.close()

    app = FastAPI(
        title="Holdfast",
        version=options.version,
        summary="Fenced background jobs in Postgres.",
        lifespan=lifespan,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    app.state.hub = hub
    app.state.login = None  # a one-time login link, for an installation without tokens
    app.state.table = table(nouns)
    app.router.routes += served([*NOUNS, *nouns])
    app.router.routes += [LazyGroup(lambda load=load: served(load())) for load in lazy_nouns]  # type: ignore[misc]
    app.router.routes += worker_protocol.router.routes
    _serve_beside(app, console)
    problem_responses.install(app)
    app.add_middleware(Edge)
    app.openapi = lambda: openapi(app)  # type: ignore[method-assign]
    return app


def table(nouns: Sequence[Routes] = ()) -> list[Route]:
    """All routes, with those of these services."""
    return [route for noun in (*NOUNS, *nouns) for route in noun.declared]


def openapi(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document."""
    if app.openapi_schema is None:
        made = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=built(app.routes))
        for path, operations in made["paths"].items():
            if path.startswith(f"{worker_protocol.router.prefix}/"):  # guarded as a whole, by one action
                for operation in operations.values():
                    operation |= {"x-action": "work", "x-roles": sorted(POLICY["work"].roles), "security": [{"token": []}]}
        schemas = made.setdefault("components", {}).setdefault("schemas", {})
        problem = problem_responses.ProblemDetails.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas |= problem.pop("$defs", {}) | {"Problem": problem}
        made["components"]["securitySchemes"] = {
            "token": {"type": "http", "scheme": "bearer", "bearerFormat": "hf_<id>_<secret>"}
        }
        app.openapi_schema = made
    return app.openapi_schema


def _serve_beside(app: FastAPI, console: Beside | None) -> None:
    """Mount the console, and send browsers there after their login."""
    app.state.home = login.HOME
    if console is not None:
        app.mount(console.path, console.app)
        app.add_route(console.path, _redirect_to(f"{console.path}/"), include_in_schema=False)
        app.state.home = f"{console.path}/"


def _redirect_to(path: str) -> Callable[[Request], Awaitable[Response]]:
    async def redirect(request: Request) -> Response:
        return RedirectResponse(path, 303)

    return redirect


async def _cursor_key(pool: AsyncConnectionPool[Any]) -> bytes:
    async with pool.connection() as conn, conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(READ_CURSOR_KEY)
        row = await cursor.fetchone()
    assert row is not None, "the migration creates the row"
    return bytes(row[0])
