"""The whole app with the routes of exports, on a real Postgres and a real DuckDB, and a client for every role."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from fastapi import FastAPI

from api_factories import GENEROUS
from export_factories import TablesEngine, exports
from factories import publish_kinds
from holdfast import catalog
from holdfast.api.app import make_app
from holdfast.api.auth import create_token
from holdfast.api.policy import Role
from holdfast.apps.loops import ScheduledLoops
from holdfast.database.pool import pool
from holdfast.services.exports.setup import Exports, use_engines
from holdfast.settings import settings

Client = httpx.AsyncClient
AsRole = Callable[..., Awaitable[Client]]


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> TablesEngine:
    """An engine of the type that the module names as `ENGINE`; default: one that knows tables and writes nothing by itself."""
    made: TablesEngine = getattr(request.module, "ENGINE", TablesEngine)()
    return made


@pytest.fixture
async def here(engine: TablesEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Exports]:
    """What the API keeps open for exports. Handlers and loops find the same engine, and may write below `tmp_path`."""
    monkeypatch.setenv("HOLDFAST_EXPORT_DIRS", str(tmp_path))
    settings.cache_clear()
    made = exports(engine, root=str(tmp_path / "snapshots"))
    use_engines(made.engines)
    yield made
    settings.cache_clear()


@pytest.fixture
async def app(database: str, here: Exports) -> AsyncIterator[FastAPI]:
    publish_kinds(database)
    made = make_app(pool(database, most=8), GENEROUS, loops=ScheduledLoops(), nouns=catalog.nouns(), services={"exports": here})
    async with made.router.lifespan_context(made):
        yield made


@pytest.fixture
async def as_role(app: FastAPI, conn: psycopg.AsyncConnection[Any]) -> AsyncIterator[AsRole]:
    """Makes clients: `await as_role("ops")` sends a fresh token of this role."""
    async with AsyncExitStack() as stack:

        async def client(role: str, name: str | None = None, **token: Any) -> Client:
            _, secret = await create_token(conn, name or role, Role(role), by="test", **token)
            transport = httpx.ASGITransport(app, raise_app_exceptions=True)
            headers = {"Authorization": f"Bearer {secret}"}
            return await stack.enter_async_context(Client(transport=transport, base_url="http://plane", headers=headers))

        yield client


@pytest.fixture
async def ops(as_role: AsRole) -> Client:
    return await as_role("ops")


@pytest.fixture
async def analyst(as_role: AsRole) -> Client:
    return await as_role("analyst")


@pytest.fixture
async def viewer(as_role: AsRole) -> Client:
    return await as_role("viewer")


@pytest.fixture
async def admin(as_role: AsRole) -> Client:
    return await as_role("admin")
