"""The engines by name: what each can do, whether it is configured, and how it is opened.

Each engine is a package with three functions: `capabilities`, `is_configured` and `open_engine`, all of `EngineOptions`. To
add an engine, add its package to `ENGINES`. The packages are loaded when they are named; their drivers are loaded when they
are opened.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Final, cast

from holdfast.distribution import install_hint
from holdfast.engines.options import EngineOptions
from holdfast.engines.port import Capabilities, Engine
from holdfast.errors import UsageError

# In this order: the first one that is configured is the default of mappings.
ENGINES: Final[dict[str, str]] = {
    "trino": "holdfast.engines.trino",
    "duckdb": "holdfast.engines.duckdb",
}


def capabilities_of(name: str, options: EngineOptions) -> Capabilities:
    """What this engine can do with these options. It is not opened, and need not be configured here."""
    return cast("Capabilities", _package(name).capabilities(options))


def open_engine(name: str, options: EngineOptions) -> Engine:
    """Open the engine with this name. The caller closes it."""
    return cast("Engine", _package(name).open_engine(options))


@asynccontextmanager
async def opened_engine(name: str, options: EngineOptions) -> AsyncIterator[Engine]:
    """Open the engine with this name for the length of a block."""
    engine = open_engine(name, options)
    try:
        yield engine
    finally:
        await engine.close()


def _package(name: str) -> Any:
    package = ENGINES.get(name)
    if package is None:
        raise UsageError(f"there is no engine {name!r}; use one of: {', '.join(sorted(ENGINES))}")
    return import_module(package)


@dataclass(frozen=True, slots=True)
class Configured:
    """An engine that is configured in this process."""

    capabilities: Capabilities
    open: Callable[[], Engine]


class Engines:
    """The configured engines of a process by name. The first one is the default. Each is opened on first use and kept open."""

    def __init__(self, configured: Mapping[str, Configured]) -> None:
        self._configured = dict(configured)
        self._open: dict[str, Engine] = {}

    @property
    def names(self) -> list[str]:
        return list(self._configured)

    @property
    def default(self) -> str:
        if not self._configured:
            raise UsageError(f"no engine is configured; run {install_hint('exports')}, or set HOLDFAST_TRINO_URL")
        return self.names[0]

    def capabilities(self, name: str) -> Capabilities:
        """What this engine can do. It is not opened."""
        return self._of(name).capabilities

    def get(self, name: str) -> Engine:
        """The engine with this name."""
        configured = self._of(name)
        if name not in self._open:
            self._open[name] = configured.open()
        return self._open[name]

    async def close(self) -> None:
        """Close the engines that were opened."""
        opened, self._open = list(self._open.values()), {}
        for engine in opened:
            await engine.close()

    def _of(self, name: str) -> Configured:
        if name not in self._configured:
            raise UsageError(f"the engine {name!r} is not configured here; configured: {', '.join(self.names) or 'none'}")
        return self._configured[name]


def configured_engines(options: EngineOptions) -> Engines:
    """The engines that these options configure. Nothing is opened yet."""
    names = [name for name in ENGINES if _package(name).is_configured(options)]
    return Engines({name: Configured(capabilities_of(name, options), partial(open_engine, name, options)) for name in names})
