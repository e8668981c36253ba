"""From settings to the parts of exports: which engines there are, where snapshots go. The one place that knows both."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import psycopg
from prometheus_client.metrics_core import Metric

from holdfast.jobs.model import Json
from holdfast.jobs.read import Count
from holdfast.services.exports.engines.opened import Engines
from holdfast.services.exports.engines.opening import open_engine
from holdfast.services.exports.export.admission import refuse_hopeless
from holdfast.services.exports.export.payload import RUN_KIND
from holdfast.services.exports.figures import ExportFigures, jobs_by_status, snapshots_by_status
from holdfast.settings import Settings, settings


@dataclass(slots=True)
class Exports:
    """What exports need in this process as long as it lives."""

    open_kinds: ClassVar[frozenset[str]] = frozenset({RUN_KIND})

    engines: Engines
    files_allowed: bool = False  # whether the SQL of mappings may name files
    root: str = ""  # where snapshots go
    figures: ExportFigures = field(default_factory=ExportFigures)
    addresses: tuple[str, ...] = ()  # where `export.run` may write in object stores

    async def admit(self, kind: str, payload: Mapping[str, Json]) -> None:
        """Refuse a job of a kind of ours that anybody may enqueue, if it could only fail."""
        if kind == RUN_KIND:
            await refuse_hopeless(self.engines, payload, self.addresses)

    async def measure(self, conn: psycopg.AsyncConnection[Any]) -> list[Metric]:
        """What `/metrics` says of exports."""
        return await self.figures.read(conn)

    async def inventory(self, conn: psycopg.AsyncConnection[Any]) -> dict[str, dict[str, Count]]:
        """What `/api/ops/state` says of exports."""
        return {"snapshots": await snapshots_by_status(conn), "export_jobs": await jobs_by_status(conn)}

    def share(self) -> None:
        """Let the loops and the jobs of this event loop use the same engines as the routes."""
        use_engines(self.engines)

    async def close(self) -> None:
        await self.engines.close()


def exports_from(given: Settings) -> Exports:
    """As these settings say. Nothing is opened before somebody asks for it."""
    return Exports(
        engines_from(given), given.mappings_read_files, root_of(given.snapshots_to), addresses=tuple(given.export_addresses)
    )


def engines_from(given: Settings) -> Engines:
    """The engines that are set up: Trino if its address is known, and DuckDB always.

    Mappings are asked and exported with them; unless those may read files, DuckDB is shown no folder at all, so that it does
    not depend on what a parser makes of a name whether it is a table's or a file's.
    """
    if not given.mappings_read_files:
        given = given.model_copy(update={"duckdb_dirs": ""})
    names = ["duckdb"] if given.trino_url is None else ["trino", "duckdb"]
    need_role = {"trino"} if given.trino_role_required else set()
    return Engines({name: partial(open_engine, name, given) for name in names}, need_role=frozenset(need_role))


def root_of(place: str) -> str:
    """Where snapshots go, as every process understands it: a folder is named from the top. Pure but for the working folder."""
    return place.rstrip("/") if "://" in place else str(Path(place).expanduser().absolute())


# Their connections belong to an event loop, so each loop has its own.
_of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, Engines] = WeakKeyDictionary()


def engines_here() -> Engines:
    """The engines of the event loop that asks: opened once for all jobs that run in it."""
    loop = asyncio.get_running_loop()
    if loop not in _of_loops:
        _of_loops[loop] = engines_from(settings())
    return _of_loops[loop]


def use_engines(engines: Engines) -> None:
    """Let everything in this event loop use these."""
    _of_loops[asyncio.get_running_loop()] = engines
