"""The whole app with the routes of exports, on a real Postgres and a real DuckDB, and a client for every role."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fastapi import FastAPI

from api_factories import GENEROUS
from export_factories import TablesEngine, exports
from factories import publish_kinds
from holdfast import catalog
from holdfast.api.app import make_app
from holdfast.apps.loops import ScheduledLoops
from holdfast.database.pool import pool
from holdfast.services.exports.setup import Exports
from holdfast.settings import settings


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
    made.share()
    yield made
    settings.cache_clear()


@pytest.fixture
async def app(database: str, here: Exports) -> AsyncIterator[FastAPI]:
    publish_kinds(database)
    made = make_app(pool(database, most=8), GENEROUS, loops=ScheduledLoops(), nouns=catalog.nouns(), services={"exports": here})
    async with made.router.lifespan_context(made):
        yield made
