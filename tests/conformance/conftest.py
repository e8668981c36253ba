"""Both ways from a worker to the kernel: Postgres itself, and the HTTP API on a real server in front of a real Postgres."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg
import pytest
import uvicorn

from holdfast.api.app import make_app
from holdfast.api.auth import create_token
from holdfast.api.plane import ApiOptions
from holdfast.api.policy import Role
from holdfast.database.pool import pool
from holdfast.worker.transports.direct import Direct
from holdfast.worker.transports.interface import Transport
from holdfast.worker.transports.remote import Remote

GENEROUS = ApiOptions(version="test", per_minute=1_000_000, burst=1_000_000, poll=timedelta(milliseconds=50))


@contextmanager
def serving(app: Any) -> Iterator[str]:
    """An ASGI app on a real server in a thread; its address."""
    config = uvicorn.Config(app, "127.0.0.1", 0, log_level="error", ws="none", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            threading.Event().wait(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(60)


@dataclass
class Api:
    """The address of the API, and a token of a worker."""

    url: str
    token: str


@pytest.fixture
async def api(database: str, conn: psycopg.AsyncConnection[Any]) -> AsyncIterator[Api]:
    _, secret = await create_token(conn, "remote", Role.WORKER, by="test")
    with serving(make_app(pool(database, most=8), GENEROUS)) as url:
        yield Api(url, secret)
        await asyncio.sleep(0)


Make = Callable[[], Transport]


@pytest.fixture(params=["direct", "remote"])
def sort(request: pytest.FixtureRequest) -> str:
    """Which of the two."""
    return str(request.param)


@pytest.fixture
def make(sort: str, database: str, request: pytest.FixtureRequest) -> Make:
    """Makes transports of one sort."""
    if sort == "direct":
        return lambda: Direct(database)
    api: Api = request.getfixturevalue("api")
    return lambda: Remote(api.url, api.token)


@pytest.fixture
async def transport(make: Make) -> AsyncIterator[Transport]:
    one = make()
    await one.open()
    yield one
    await one.close()
