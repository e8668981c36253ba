"""A Trino of ours for each test, and an engine on it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from holdfast.engines.trino import TrinoOptions, open_trino
from holdfast.engines.trino.engine import TrinoEngine
from trino_server import TrinoServer


@pytest.fixture
async def server() -> AsyncIterator[TrinoServer]:
    async with TrinoServer() as server:
        yield server


@pytest.fixture
async def engines() -> AsyncIterator[Callable[..., TrinoEngine]]:
    """Opens engines that are closed after the test."""
    async with AsyncExitStack() as stack:

        def open_one(url: str, **more: Any) -> TrinoEngine:
            engine = open_trino(TrinoOptions(url, "export", **{"password": "hunter2", "connect_seconds": 20.0, **more}))
            stack.push_async_callback(engine.close)
            return engine

        yield open_one


@pytest.fixture
def engine(server: TrinoServer, engines: Callable[..., TrinoEngine]) -> TrinoEngine:
    return engines(server.url)
