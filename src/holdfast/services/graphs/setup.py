"""What graphs keep open in a process: the runtime, and the options of starts. The only module of graphs that reads settings.

The API opens it for its routes (`graphs_from`). Handlers and loops use the one of their event loop (`graphs_here`), because
connections belong to an event loop. In `holdfast serve` and `holdfast up`, the loops share the one of the routes.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from prometheus_client.metrics_core import Metric

from holdfast.api.plane import Resources
from holdfast.jobs.views.read import Count
from holdfast.services.graphs import figures
from holdfast.services.graphs.proxy import Proxy
from holdfast.services.graphs.runtimes.interface import Runtime
from holdfast.services.graphs.runtimes.select import open_runtime
from holdfast.services.graphs.settings import GraphsSettings, graphs_settings


@dataclass(slots=True)
class Graphs(Resources):
    """What the routes, handlers and loops of graphs need."""

    runtime: Runtime
    proxy: Proxy
    engine: str = "ladybug"
    default_memory_mb: int = 2048
    longest_start: timedelta = timedelta(minutes=30)
    longest_delete: timedelta = timedelta(seconds=30)
    callback_url: str | None = None
    min_age: timedelta = timedelta(seconds=60)
    sizing: bool = True

    async def measure(self, conn: psycopg.AsyncConnection[Any]) -> list[Metric]:
        """The metrics of graphs for `/metrics`."""
        return await figures.read(conn)

    async def inventory(self, conn: psycopg.AsyncConnection[Any]) -> dict[str, dict[str, Count]]:
        """The part of graphs in `/api/ops/state`."""
        return {"instances": await figures.instances_by_status(conn)}

    def share(self) -> None:
        """Let the handlers and loops of this event loop use this object."""
        _of_loops[asyncio.get_running_loop()] = self

    async def close(self) -> None:
        await self.proxy.close()
        await self.runtime.close()


def graphs_from(given: GraphsSettings) -> Graphs:
    """As the settings describe it."""
    return Graphs(
        runtime=open_runtime(given),
        proxy=Proxy(),
        engine=given.graph_engine,
        default_memory_mb=given.graph_default_memory_mb,
        longest_start=timedelta(seconds=given.graph_start_seconds),
        longest_delete=timedelta(seconds=given.graph_delete_seconds),
        callback_url=given.graph_report_url,
        min_age=timedelta(seconds=given.graph_min_age_seconds),
        sizing=given.graph_sizing,
    )


_of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, Graphs] = WeakKeyDictionary()


def graphs_here() -> Graphs:
    """What is open in this event loop; opened from the settings on the first call."""
    loop = asyncio.get_running_loop()
    if loop not in _of_loops:
        _of_loops[loop] = graphs_from(graphs_settings())
    return _of_loops[loop]
