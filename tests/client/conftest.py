"""A control plane on a port of its own, a worker with the kinds of exports, and the client that a notebook has."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
import uvicorn

from api_factories import GENEROUS
from factories import publish_kinds
from holdfast import catalog
from holdfast.api.app import make_app
from holdfast.api.auth import create_token
from holdfast.api.policy import Role
from holdfast.apps.loops import ScheduledLoops
from holdfast.client import Connection, connect
from holdfast.database.pool import pool
from holdfast.services.exports.kinds import KINDS
from holdfast.services.exports.setup import exports_from
from holdfast.settings import settings, settings_class
from holdfast.worker.loop import Worker
from holdfast.worker.options import WorkerOptions


class _Server(uvicorn.Server):
    """One that leaves the signals to the tests."""

    def install_signal_handlers(self) -> None: ...


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where exports may write."""
    monkeypatch.setenv("HOLDFAST_EXPORT_DIRS", str(tmp_path))
    settings.cache_clear()
    yield tmp_path
    settings.cache_clear()


@pytest.fixture
def served(database: str, tmp_path: Path) -> Iterator[str]:
    """Its address."""
    here = exports_from(settings_class()(snapshots_to=str(tmp_path / "snapshots")))
    publish_kinds(database)
    app = make_app(pool(database, most=8), GENEROUS, loops=ScheduledLoops(), nouns=catalog.nouns(), services={"exports": here})
    server = _Server(uvicorn.Config(app, port=0, log_config=None, access_log=False, ws="none"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server ended while it started"
        time.sleep(0.005)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(30)
    assert not thread.is_alive()


def _token(database: str, role: Role) -> str:
    async def make() -> str:
        async with await psycopg.AsyncConnection.connect(database, autocommit=True) as conn:
            _, secret = await create_token(conn, role.value, role, by="test")
            return str(secret)

    return asyncio.run(make())


@pytest.fixture
def hf(served: str, database: str) -> Iterator[Connection]:
    """A client whose token may do everything."""
    with connect(served, _token(database, Role.ADMIN)) as connection:
        yield connection


@pytest.fixture
def viewer(served: str, database: str) -> Iterator[Connection]:
    with connect(served, _token(database, Role.VIEWER)) as connection:
        yield connection


@pytest.fixture
def as_role(served: str, database: str) -> Iterator[Callable[[Role], Connection]]:
    """A client of anybody."""
    with ExitStack() as stack:
        yield lambda role: stack.enter_context(connect(served, _token(database, role)))


@pytest.fixture
def at_work(database: str) -> Iterator[Any]:
    """A worker in a thread of its own, for as long as the test runs."""
    ready = threading.Event()
    found: dict[str, Any] = {}

    async def run() -> None:
        found["worker"] = worker = Worker(database, KINDS, WorkerOptions(concurrency=2))
        found["loop"] = asyncio.get_running_loop()
        ready.set()
        await worker.run()

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    assert ready.wait(30)
    yield found["worker"]
    found["loop"].call_soon_threadsafe(found["worker"].stop)
    thread.join(60)
    assert not thread.is_alive()
