"""The app on a real Postgres, and a client for every role."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest
from fastapi import FastAPI

from api_factories import GENEROUS
from factories import publish_kinds
from holdfast import catalog
from holdfast.api.app import make_app
from holdfast.api.auth import create_token
from holdfast.api.plane import ApiOptions
from holdfast.api.policy import Role
from holdfast.apps.loops import ScheduledLoops
from holdfast.database.pool import pool
from holdfast.settings import settings

Client = httpx2.AsyncClient
AsRole = Callable[..., Awaitable[Client]]
OPENAPI = Path(__file__).parents[2] / "docs/reference/openapi.json"


@pytest.fixture(autouse=True)
def uploads_go_to_a_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A test that calls every route uploads files, too."""
    monkeypatch.setenv("HOLDFAST_INGESTION_TO", str(tmp_path / "uploads"))
    settings.cache_clear()
    yield
    settings.cache_clear()


@pytest.fixture(scope="session")
def document() -> dict[str, Any]:
    """The OpenAPI document as it is committed. Making it takes seconds; `test_contract.py` compares it with the one that is
    served."""
    found: dict[str, Any] = json.loads(OPENAPI.read_text())
    return found


@pytest.fixture
def options() -> ApiOptions:
    """How the app behaves; a module that needs it otherwise overrides this."""
    return GENEROUS


@pytest.fixture
async def app(database: str, options: ApiOptions, document: dict[str, Any]) -> AsyncIterator[FastAPI]:
    publish_kinds(database)
    made = make_app(
        pool(database, most=8),
        options,
        hints_from=database,
        loops=ScheduledLoops(),
        nouns=catalog.nouns(),
        services=catalog.resources(settings()),
    )
    made.openapi_schema = document
    async with made.router.lifespan_context(made):
        yield made


@pytest.fixture
async def as_role(app: FastAPI, conn: psycopg.AsyncConnection[Any]) -> AsyncIterator[AsRole]:
    """Makes clients: `await as_role("ops")` sends a fresh token of this role, `await as_role(None)` sends none."""
    async with AsyncExitStack() as stack:

        async def client(role: str | None, name: str | None = None, **token: Any) -> Client:
            headers = {}
            if role is not None:
                _, secret = await create_token(conn, name or role, Role(role), by="test", **token)
                headers["Authorization"] = f"Bearer {secret}"
            transport = httpx2.ASGITransport(app, raise_app_exceptions=True)
            return await stack.enter_async_context(Client(transport=transport, base_url="http://plane", headers=headers))

        yield client


@pytest.fixture
async def ops(as_role: AsRole) -> Client:
    return await as_role("ops")


@pytest.fixture
async def viewer(as_role: AsRole) -> Client:
    return await as_role("viewer")


@pytest.fixture
async def analyst(as_role: AsRole) -> Client:
    return await as_role("analyst")


@pytest.fixture
async def admin(as_role: AsRole) -> Client:
    return await as_role("admin")


@pytest.fixture
async def anyone(as_role: AsRole) -> Client:
    return await as_role(None)
