"""The app with its console on a real Postgres, clients for every role, a scene, and a real server for browsers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest
import uvicorn
from fastapi import FastAPI
from tests.console import scene as scenes
from tests.console.browsing import chromium_process, connected

from api_factories import GENEROUS
from export_factories import TablesEngine, exports
from graph_factories import graphs
from holdfast import catalog
from holdfast.api.app import make_app
from holdfast.api.auth import create_token
from holdfast.api.policy import Role
from holdfast.api.sessions import SESSION, session_of_token
from holdfast.apps.loops import ScheduledLoops
from holdfast.console.served import ServedConsole
from holdfast.database.pool import pool
from holdfast.services.graphs.runtimes.local.runtime import LocalRuntime
from holdfast.services.ingestion.setup import Ingestion
from holdfast.services.maintenance.settings import maintenance_settings
from holdfast.services.maintenance.setup import maintenance_from
from holdfast.settings import settings
from holdfast.stores.opening import StoreOptions

Client = httpx2.AsyncClient
AsRole = Callable[..., Awaitable[Client]]
TokenOf = Callable[[str], Awaitable[str]]
LINKS = {"Grafana": "https://grafana.example/d/jobs?var-job={job_id}&kind={kind}"}


@pytest.fixture
async def app(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FastAPI]:
    monkeypatch.setenv("HOLDFAST_EXPORT_DIRS", str(tmp_path))
    monkeypatch.setenv("HOLDFAST_STORAGE_PRICE_PER_GIB_MONTH", "0.02")
    settings.cache_clear()
    here = exports(TablesEngine(), root="s3://lake/snapshots")
    graph_parts = graphs(LocalRuntime(tmp_path / "graphs"))
    made = make_app(
        pool(database, most=8),
        replace(GENEROUS, streams_each=1000),
        hints_from=database,
        loops=ScheduledLoops(),
        nouns=catalog.nouns(),
        services={
            "exports": here,
            "graphs": graph_parts,
            "maintenance": maintenance_from(maintenance_settings()),
            "ingestion": Ingestion(str(tmp_path / "uploads"), StoreOptions(allowed=(tmp_path,))),
        },
        console=ServedConsole(catalog.console_parts(), LINKS),
    )
    async with made.router.lifespan_context(made):
        yield made
    await graph_parts.close()
    settings.cache_clear()


@pytest.fixture
async def token_of(conn: psycopg.AsyncConnection[Any]) -> TokenOf:
    async def make(role: str) -> str:
        return (await create_token(conn, "ada" if role == "admin" else role, Role(role), by="test"))[1]

    return make


@pytest.fixture
async def as_role(app: FastAPI, conn: psycopg.AsyncConnection[Any]) -> AsyncIterator[AsRole]:
    """Makes clients that are signed in by cookie, as browsers are; None: not signed in."""
    async with AsyncExitStack() as stack:

        async def client(role: str | None, name: str | None = None) -> Client:
            cookies = {}
            if role is not None:
                made, _ = await create_token(conn, name or role, Role(role), by="test")
                cookies[SESSION] = session_of_token(app.state.plane.cursor_key, made.id)
            transport = httpx2.ASGITransport(app, raise_app_exceptions=True)
            return await stack.enter_async_context(Client(transport=transport, base_url="http://plane", cookies=cookies))

        yield client


@pytest.fixture
async def ops(as_role: AsRole) -> Client:
    return await as_role("ops")


@pytest.fixture
async def scene(app: FastAPI, conn: psycopg.AsyncConnection[Any], database: str, as_role: AsRole) -> scenes.Scene:
    return await scenes.build(conn, database, await as_role("admin", "ada"))


@asynccontextmanager
async def listening(app: FastAPI) -> AsyncIterator[str]:
    """The app on a free port of this machine."""
    config = uvicorn.Config(app, "127.0.0.1", 0, lifespan="off", log_level="error", timeout_graceful_shutdown=2)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        app.state.hub.close_streams()
        server.should_exit = True
        await serving


@pytest.fixture(scope="session")
def chromium_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with chromium_process(tmp_path_factory.mktemp("chromium")) as address:
        yield address


@pytest.fixture
async def chromium(chromium_address: str) -> AsyncIterator[Any]:
    """The browser that all tests of this process share."""
    async with connected(chromium_address) as browser:
        yield browser


@pytest.fixture
async def site(app: FastAPI) -> AsyncIterator[str]:
    async with listening(app) as url:
        yield url
