"""The whole app with the routes of maintenance, on a real Postgres, with the embedded catalog and a warehouse in a folder."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from fastapi import FastAPI

from api_factories import GENEROUS
from factories import publish_kinds
from holdfast import catalog
from holdfast.api.app import make_app
from holdfast.apps.loops import ScheduledLoops
from holdfast.database.pool import pool
from holdfast.schedule.context import Held, Pass
from holdfast.schedule.registry import Loop
from holdfast.services.maintenance.settings import maintenance_settings
from holdfast.services.maintenance.setup import Maintenance, maintenance_from
from holdfast.settings import settings
from iceberg_tables import end_threads
from loop_factories import HOUR, LONG, nothing, taken


@pytest.fixture(autouse=True)
def threads_of_pyiceberg() -> Iterator[None]:
    """PyIceberg keeps a pool of threads for the life of the process. It ends with each test that has used it."""
    yield
    end_threads()


@pytest.fixture
async def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> AsyncIterator[Maintenance]:
    """What is open for maintenance in this event loop: routes, handlers and loops use it. `SETTINGS` of a module are set."""
    monkeypatch.setenv("HOLDFAST_ICEBERG_WAREHOUSE", str(tmp_path / "warehouse"))
    for name, value in getattr(request.module, "SETTINGS", {}).items():
        monkeypatch.setenv(name, value)
    settings.cache_clear()
    made = maintenance_from(maintenance_settings())
    made.share()
    yield made
    await made.close()
    settings.cache_clear()


@pytest.fixture
async def app(database: str, here: Maintenance) -> AsyncIterator[FastAPI]:
    publish_kinds(database)
    services = {**catalog.resources(settings()), "maintenance": here}
    made = make_app(pool(database, most=8), GENEROUS, loops=ScheduledLoops(), nouns=catalog.nouns(), services=services)
    async with made.router.lifespan_context(made):
        yield made


@pytest.fixture
def pass_of(connect: Any, database: str) -> Callable[[str], Awaitable[Pass]]:
    """Makes a pass of a loop, under a term that lasts longer than the test."""

    async def make(name: str) -> Pass:
        conn = await connect()
        await conn.execute("DELETE FROM holdfast.loops WHERE name = %s", [name])
        term = await taken(conn, Loop(name, nothing, every=HOUR, first_run="at_once"))

        @asynccontextmanager
        async def borrow() -> AsyncIterator[psycopg.AsyncConnection[Any]]:
            async with await psycopg.AsyncConnection.connect(database, autocommit=True) as own:
                yield own

        return Pass(term, Held(LONG), borrow, database)

    return make
