"""Engines by name. Each is a package here with `from_settings`, loaded when it is first named."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, cast

from holdfast.errors import UsageError
from holdfast.services.exports.engines.port import Engine
from holdfast.services.exports.extras import loaded
from holdfast.settings import Settings

ENGINES: Final[dict[str, str]] = {
    "duckdb": "holdfast.services.exports.engines.duckdb.engine",
    "trino": "holdfast.services.exports.engines.trino.engine",
}


def open_engine(name: str, settings: Settings) -> Engine:
    """The engine with this name, as the settings describe it. Whoever opens it closes it."""
    module = ENGINES.get(name)
    if module is None:
        raise UsageError(f"no engine {name!r}; there are: {', '.join(ENGINES)}")
    return cast("Engine", loaded(module).from_settings(settings))


@asynccontextmanager
async def opened_engine(name: str, settings: Settings) -> AsyncIterator[Engine]:
    """The engine with this name, for the length of a block."""
    engine = open_engine(name, settings)
    try:
        yield engine
    finally:
        await engine.close()
