"""The app with the routes of ingestion on a real Postgres, files in a temporary folder, the CO2 model, and a harness."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from fastapi import FastAPI
from ingestion_factories import Back, apply_co2

from api_factories import GENEROUS
from holdfast import catalog
from holdfast.api.app import make_app
from holdfast.apps.loops import ScheduledLoops
from holdfast.console.served import ServedConsole
from holdfast.database.pool import pool
from holdfast.services.ingestion.kinds import KINDS
from holdfast.services.ingestion.setup import Ingestion, ingestion_from, ingestion_settings
from holdfast.settings import settings
from holdfast.testing import Harness, harness


@pytest.fixture
async def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Ingestion]:
    """What the API keeps open; handlers find the same folder."""
    monkeypatch.setenv("HOLDFAST_INGESTION_TO", str(tmp_path / "uploads"))
    settings.cache_clear()
    made = ingestion_from(ingestion_settings())
    made.share()
    yield made
    settings.cache_clear()


@pytest.fixture
async def h(database: str, here: Ingestion) -> AsyncIterator[Harness]:
    """A worker that the test controls."""
    async with harness(database, KINDS) as made:
        yield made


@pytest.fixture
async def back(conn: psycopg.AsyncConnection[Any], h: Harness, here: Ingestion) -> Back:
    """A back office without HTTP: it stores files, dispatches jobs, and runs them."""
    await apply_co2(conn)
    return Back(conn, h, here)


@pytest.fixture
async def app(database: str, here: Ingestion) -> AsyncIterator[FastAPI]:
    made = make_app(
        pool(database, most=8),
        GENEROUS,
        loops=ScheduledLoops(),
        nouns=catalog.nouns(),
        services=catalog.resources(settings()),
        topics=catalog.topics(),
        console=ServedConsole(catalog.console_parts()),
    )
    async with made.router.lifespan_context(made):
        yield made
