"""The control plane as one FastAPI app. Called by: `apps/api.py`.

The nouns below are its table of contents: one file each. Around them, from the outside in: the edge (ids, headers), the
guard of each route (who, how often, may they), the body's bounds, and for what changes anything one transaction (`acts.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from psycopg.rows import tuple_row
from psycopg_pool import AsyncConnectionPool

from holdfast.api import health, jobs, problems, worker_protocol
from holdfast.api.edge import Edge
from holdfast.api.plane import ApiOptions, Plane
from holdfast.api.routes import Route, Routes, mount

NOUNS: tuple[Routes, ...] = (
    jobs.routes,
    health.routes,
)

READ_CURSOR_KEY = "SELECT value FROM holdfast.secrets WHERE name = 'cursor'"


def make_app(
    pool: AsyncConnectionPool[Any], options: ApiOptions | None = None, *, wanted_revision: str | None = None
) -> FastAPI:
    """The app on this pool, which it opens when it starts and closes when it ends."""
    options = options or ApiOptions()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with pool:
            app.state.plane = Plane(pool, options, await _cursor_key(pool), wanted_revision=wanted_revision)
            yield

    app = FastAPI(
        title="Holdfast",
        version=options.version,
        summary="Fenced background jobs in Postgres.",
        lifespan=lifespan,
        redirect_slashes=False,
        docs_url="/docs" if options.docs_open else None,
        redoc_url=None,
        openapi_url=None,
    )
    app.state.table = mount(app, NOUNS)
    app.include_router(worker_protocol.router)
    problems.install(app)
    app.add_middleware(Edge)
    app.openapi = lambda: openapi(app)  # type: ignore[method-assign]
    return app


def table() -> list[Route]:
    """Every route that is served."""
    return [route for noun in NOUNS for route in noun.declared]


def openapi(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document."""
    if app.openapi_schema is None:
        made = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes)
        schemas = made.setdefault("components", {}).setdefault("schemas", {})
        problem = problems.ProblemDetails.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas |= problem.pop("$defs", {}) | {"Problem": problem}
        made["components"]["securitySchemes"] = {
            "token": {"type": "http", "scheme": "bearer", "bearerFormat": "hf_<id>_<secret>"}
        }
        app.openapi_schema = made
    return app.openapi_schema


async def _cursor_key(pool: AsyncConnectionPool[Any]) -> bytes:
    async with pool.connection() as conn, conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(READ_CURSOR_KEY)
        row = await cursor.fetchone()
    assert row is not None, "the migration makes it"
    return bytes(row[0])
