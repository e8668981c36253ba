"""An engine that does as its test says: answers late, breaks half-way, never ends, or hands over what it was given."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from holdfast.engines.port import Capabilities, Column, Engine, Progress, Query
from holdfast.engines.trino import DIALECT

CAPABILITIES = Capabilities(DIALECT)
ONE = pa.record_batch({"x": pa.array([1, 2, 3], pa.int64())})


@dataclass
class FakeEngine:
    """`breaks` is called with the number of the try before each batch; what it raises is what the engine says."""

    name: str = "fake"
    capabilities: Capabilities = CAPABILITIES
    batches: list[pa.RecordBatch] = field(default_factory=lambda: [ONE])
    schema: pa.Schema = field(default_factory=lambda: ONE.schema)
    breaks: Callable[[int, int], None] = lambda number, batch: None
    ends: bool = True
    tries: int = 0
    asked: list[Query] = field(default_factory=list)
    left: int = 0  # how many streams were left, by their end or early
    share: float | None = None
    running: asyncio.Event = field(default_factory=asyncio.Event)

    async def describe(self, query: Query) -> tuple[Column, ...]:
        return tuple(Column(one.name, str(one.type), one.type) for one in self.schema)

    @asynccontextmanager
    async def stream(self, query: Query) -> AsyncIterator[Any]:
        self.tries += 1
        self.asked.append(query)
        rows = FakeRows(self, await self.describe(query), self.tries)
        try:
            yield rows
        finally:
            self.left += 1

    async def entries(self, catalogs: tuple[str, ...] | None = None) -> AsyncIterator[list[Any]]:
        yield []

    async def close(self) -> None:
        """Nothing is open."""


@dataclass
class FakeRows:
    engine: FakeEngine
    columns: tuple[Column, ...]
    number: int

    @property
    def progress(self) -> Progress:
        return Progress("RUNNING", self.engine.share, queued_ahead=2)

    async def batches(self) -> AsyncIterator[pa.RecordBatch]:
        for at, batch in enumerate(self.engine.batches):
            self.engine.breaks(self.number, at)
            yield batch
        self.engine.breaks(self.number, len(self.engine.batches))
        self.engine.running.set()
        if not self.engine.ends:
            await asyncio.Event().wait()


current = FakeEngine()


def capabilities(_: Any) -> Capabilities:
    return CAPABILITIES


def is_configured(_: Any) -> bool:
    return False


def open_engine(_: Any) -> Engine:
    """The engine of the test that runs."""
    return current
