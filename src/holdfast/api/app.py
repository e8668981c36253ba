"""The control plane as one FastAPI app. Called by: `apps/api.py`.

The nouns below are its table of contents: one file each. Around them, from the outside in: the edge (ids, headers), the
guard of each route (who, how often, may they), the body's bounds, and for what changes anything one transaction (`acts.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.openapi.utils import get_openapi
from psycopg.rows import tuple_row
from psycopg_pool import AsyncConnectionPool

from holdfast.api import (
    bulk,
    config,
    doctor,
    failures,
    health,
    jobs,
    locks,
    login,
    logs,
    metrics,
    ops,
    periodic,
    pipelines,
    problems,
    streams,
    tokens,
    worker_protocol,
    workers,
)
from holdfast.api.edge import Edge
from holdfast.api.metrics import Gauges
from holdfast.api.oidc import Oidc
from holdfast.api.periodic import Loops, NoLoops
from holdfast.api.plane import ApiOptions, Plane, Service
from holdfast.api.policy import POLICY
from holdfast.api.routes import Route, Routes, mount
from holdfast.api.sse import Hub

NOUNS: tuple[Routes, ...] = (
    bulk.routes,  # before the jobs: /api/jobs/bulk is no job's id
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
)

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
    services: Mapping[str, Service] | None = None,
) -> FastAPI:
    """The app on this pool, which it opens when it starts and closes when it ends.

    `hints_from` is the address to listen at for hints; without it the streams look by themselves. `nouns` are the routes of
    services, and `services` what those keep open; it is closed with the app.
    """
    options = options or ApiOptions()
    hub = Hub(pool, hints_from, options)
    gauges = Gauges(pool, options.version, services or {})

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with pool:
            key = await _cursor_key(pool)
            app.state.plane = Plane(
                pool, options, key, hub, gauges, loops or NoLoops(), oidc, wanted_revision, dict(services or {})
            )
            hub.start()
            lag = asyncio.create_task(gauges.watch_the_loop())
            yield
            lag.cancel()
            await hub.close()
            for service in (services or {}).values():
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
    app.state.login = None  # a link that works once, where nobody can sign in yet
    app.state.table = mount(app, [*NOUNS, *nouns])
    app.include_router(worker_protocol.router)
    if options.docs_open:
        app.add_route("/docs", _docs, include_in_schema=False)
    problems.install(app)
    app.add_middleware(Edge)
    app.openapi = lambda: openapi(app)  # type: ignore[method-assign]
    return app


def table(nouns: Sequence[Routes] = ()) -> list[Route]:
    """Every route that is served, with those of these services."""
    return [route for noun in (*NOUNS, *nouns) for route in noun.declared]


def openapi(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document."""
    if app.openapi_schema is None:
        made = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes)
        for path, operations in made["paths"].items():
            if path.startswith(f"{worker_protocol.router.prefix}/"):  # guarded as a whole, by one action
                for operation in operations.values():
                    operation |= {"x-action": "work", "x-roles": sorted(POLICY["work"].roles), "security": [{"token": []}]}
        schemas = made.setdefault("components", {}).setdefault("schemas", {})
        problem = problems.ProblemDetails.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas |= problem.pop("$defs", {}) | {"Problem": problem}
        made["components"]["securitySchemes"] = {
            "token": {"type": "http", "scheme": "bearer", "bearerFormat": "hf_<id>_<secret>"}
        }
        app.openapi_schema = made
    return app.openapi_schema


async def _docs(_: Request) -> Response:
    return get_swagger_ui_html(openapi_url="/openapi.json", title="Holdfast")


async def _cursor_key(pool: AsyncConnectionPool[Any]) -> bytes:
    async with pool.connection() as conn, conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(READ_CURSOR_KEY)
        row = await cursor.fetchone()
    assert row is not None, "the migration makes it"
    return bytes(row[0])
