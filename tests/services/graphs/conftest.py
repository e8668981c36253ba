"""The whole app with the routes of graphs, on a real Postgres and the real local runtime, and a client for every role."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
from fastapi import FastAPI

from api_factories import GENEROUS
from export_factories import TablesEngine, exports
from factories import publish_kinds
from graph_factories import graphs, new_mapping, quick_runtime
from holdfast import catalog
from holdfast.api.app import make_app
from holdfast.apps.loops import ScheduledLoops
from holdfast.database.pool import Link, pool
from holdfast.schedule.tick import Place
from holdfast.services.graphs.runtimes.local.runtime import LocalRuntime
from holdfast.services.graphs.setup import Graphs

Client = httpx2.AsyncClient


@pytest.fixture
def says(tmp_path: Path) -> Path:
    """The folder in which a test tells graph servers how to behave."""
    return tmp_path / "says"


@pytest.fixture
async def runtime(tmp_path: Path, says: Path) -> AsyncIterator[LocalRuntime]:
    """The local runtime with a quick graph server. Everything that it started is gone after the test."""
    made = quick_runtime(tmp_path / "graphs", says)
    yield made
    for instance_id in made.folders.instances():
        assert await made.remove(instance_id)
    await made.close()


@pytest.fixture
async def here(runtime: LocalRuntime, tmp_path: Path) -> AsyncIterator[Graphs]:
    """What handlers and loops of this event loop use; with exports that write below `tmp_path`."""
    exports(TablesEngine(), root=str(tmp_path / "snapshots")).share()
    made = graphs(runtime)
    made.share()
    yield made
    await made.proxy.close()


@pytest.fixture
async def app(database: str, here: Graphs, tmp_path: Path) -> AsyncIterator[FastAPI]:
    publish_kinds(database)
    services = {"exports": exports(TablesEngine(), root=str(tmp_path / "snapshots")), "graphs": here}
    made = make_app(pool(database, most=20), GENEROUS, loops=ScheduledLoops(), nouns=catalog.nouns(), services=services)
    async with made.router.lifespan_context(made):
        yield made


@pytest.fixture
async def place(database: str, here: Graphs) -> AsyncIterator[Place]:
    """Where ticks of loops run."""
    made = Place(database, "here", Link(database), pool(database))
    await made.pool.open()
    yield made
    await made.rows.close()
    await made.pool.close()


@pytest.fixture
async def mapping_id(ops: Client) -> int:
    return await new_mapping(ops)
