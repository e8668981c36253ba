"""What exports keep open in a process: engines, options of stores, limits. The only module of exports that reads settings.

The API opens it for its routes (`exports_from`). Handlers and loops use the one of their event loop (`exports_here`):
connections belong to an event loop, so each has its own. In `holdfast serve` and `holdfast up`, the loops share the one of the
routes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from prometheus_client.metrics_core import Metric

from holdfast.api.plane import Resources
from holdfast.engines.options import EngineOptions
from holdfast.engines.registry import Engines, configured_engines
from holdfast.jobs.model import Json
from holdfast.jobs.views.read import Count
from holdfast.services.exports.export.admission import refuse_hopeless
from holdfast.services.exports.export.payload import RUN_KIND
from holdfast.services.exports.figures import ExportFigures, jobs_by_status, snapshots_by_status
from holdfast.services.exports.settings import ExportsSettings, exports_settings
from holdfast.stores.opening import StoreOptions


@dataclass(slots=True)
class Exports(Resources):
    """What the routes, handlers and loops of exports need."""

    engines: Engines  # for mappings and their snapshots
    run_engines: EngineOptions = field(default_factory=EngineOptions)  # for `exports.run`, which opens its engine itself
    stores: StoreOptions = field(default_factory=StoreOptions)
    files_allowed: bool = False  # whether the SQL of mappings may read files
    root: str = ""  # the folder or bucket for snapshots
    addresses: tuple[str, ...] = ()  # where `exports.run` may write in object stores
    direct: bool = True  # stream rows through the worker, unless a snapshot asks for another runtime
    streams: int = 2  # exports that one process streams at once
    figures: ExportFigures = field(default_factory=ExportFigures)

    async def admit(self, kind: str, payload: Mapping[str, Json]) -> None:
        """Refuse a job of a public kind of exports that could only fail."""
        if kind == RUN_KIND:
            await refuse_hopeless(self.run_engines, payload, self.addresses)

    async def measure(self, conn: psycopg.AsyncConnection[Any]) -> list[Metric]:
        """The metrics of exports for `/metrics`."""
        return await self.figures.read(conn)

    async def inventory(self, conn: psycopg.AsyncConnection[Any]) -> dict[str, dict[str, Count]]:
        """The part of exports in `/api/ops/state`."""
        return {"snapshots": await snapshots_by_status(conn), "export_jobs": await jobs_by_status(conn)}

    def share(self) -> None:
        """Let the handlers and loops of this event loop use this object."""
        _of_loops[asyncio.get_running_loop()] = self

    async def close(self) -> None:
        await self.engines.close()


def exports_from(given: ExportsSettings) -> Exports:
    """As the settings describe it. Engines are opened on first use."""
    options = EngineOptions.from_settings(given)
    return Exports(
        configured_engines(for_mappings(options, read_files=given.mappings_read_files)),
        run_engines=options,
        stores=StoreOptions.from_settings(given),
        files_allowed=given.mappings_read_files,
        root=root_of(given.snapshots_to),
        addresses=tuple(given.export_addresses),
        direct=given.direct_export,
        streams=given.export_streams,
    )


def for_mappings(options: EngineOptions, *, read_files: bool) -> EngineOptions:
    """The options of the engines for mappings.

    If mappings may not read files, DuckDB has no folders at all, so that no check of names decides whether a name is a file.
    """
    return options if read_files else replace(options, duckdb=replace(options.duckdb, folders=()))


def root_of(place: str) -> str:
    """The root of snapshots as an absolute path, so that every process means the same; an address stays as it is."""
    return place.rstrip("/") if "://" in place else str(Path(place).expanduser().absolute())


_of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, Exports] = WeakKeyDictionary()


def exports_here() -> Exports:
    """What is open in this event loop; opened from the settings on the first call."""
    loop = asyncio.get_running_loop()
    if loop not in _of_loops:
        _of_loops[loop] = exports_from(exports_settings())
    return _of_loops[loop]
