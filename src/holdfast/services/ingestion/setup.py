"""What ingestion keeps open in a process: the options of the store, and limits. The only module of it that reads settings.

The API opens it for its routes. Handlers and loops use the one of their event loop, as in exports.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from prometheus_client.metrics_core import Metric

from holdfast.api.plane import Resources
from holdfast.jobs.views.read import Count
from holdfast.services.ingestion.figures import by_result, measure
from holdfast.services.ingestion.settings import IngestionSettings, ingestion_settings
from holdfast.stores.opening import StoreOptions, opened_store
from holdfast.stores.paths import location_of
from holdfast.stores.port import Store


@dataclass(slots=True)
class Ingestion(Resources):
    """What the routes, handlers and loops of ingestion need."""

    root: str
    stores: StoreOptions
    largest_upload: int = 2 * 1024**3
    most_errors: int = 10_000
    model: str = "co2"
    api_origins: tuple[str, ...] = ()
    api_token: str | None = field(default=None, repr=False)

    def store(self) -> AbstractAsyncContextManager[Store]:
        """The store of uploads, for the length of a block."""
        return opened_store(location_of(self.root), self.stores)

    async def measure(self, conn: psycopg.AsyncConnection[Any]) -> list[Metric]:
        """The metrics of ingestion for `/metrics`."""
        return await measure(conn)

    async def inventory(self, conn: psycopg.AsyncConnection[Any]) -> dict[str, dict[str, Count]]:
        """The part of ingestion in `/api/ops/state`."""
        return {"ingestions": await by_result(conn)}

    def share(self) -> None:
        """Let the handlers and loops of this event loop use this object."""
        _of_loops[asyncio.get_running_loop()] = self


def ingestion_from(given: IngestionSettings) -> Ingestion:
    """As the settings describe it."""
    place = given.ingestion_to
    root = place.rstrip("/") if "://" in place else str(Path(place).expanduser().absolute())
    token = given.ingestion_api_token
    return Ingestion(
        root,
        replace(StoreOptions.from_settings(given), allowed=tuple(given.upload_folders)),
        largest_upload=given.ingestion_largest_upload,
        most_errors=given.ingestion_most_errors,
        model=given.ingestion_model,
        api_origins=tuple(one.strip().rstrip("/") for one in given.ingestion_api_origins.split(",") if one.strip()),
        api_token=None if token is None else token.get_secret_value(),
    )


_of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, Ingestion] = WeakKeyDictionary()


def ingestion_here() -> Ingestion:
    """What is open in this event loop; made from the settings on the first call."""
    loop = asyncio.get_running_loop()
    if loop not in _of_loops:
        _of_loops[loop] = ingestion_from(ingestion_settings())
    return _of_loops[loop]
