"""What maintenance keeps open in a process: engines, options, prices. With `opening.py`, the only reader of the settings.

The API opens it for its routes (`maintenance_from`). Handlers and loops use the one of their event loop (`maintenance_here`).
In `holdfast serve` and `holdfast up`, the loops share the one of the routes. An engine is opened when it is first needed, in a
thread, and then used by all threads. The embedded catalog is in our own database, whose address is that of the connection at
hand.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final
from weakref import WeakKeyDictionary

import psycopg
from prometheus_client.metrics_core import Metric

from holdfast.api.plane import Resources
from holdfast.errors import HoldfastError
from holdfast.jobs.views.read import Count
from holdfast.services.maintenance import figures
from holdfast.services.maintenance.engines.catalogs import EMBEDDED
from holdfast.services.maintenance.engines.interface import Engine, TableRef
from holdfast.services.maintenance.opening import configured_catalogs, configured_engines, open_engine, properties_of
from holdfast.services.maintenance.run.request import OnSigterm
from holdfast.services.maintenance.savings import Prices
from holdfast.services.maintenance.settings import MaintenanceSettings, maintenance_settings
from holdfast.threads import in_thread

Conn = psycopg.AsyncConnection[Any]
Borrow = Callable[[], AbstractAsyncContextManager[Conn]]
MOST_MISSES: Final = 1000
PATIENCE: Final = 1.0  # seconds that a job waits for a turn before it goes back to the queue


class NoTurn(HoldfastError):
    """This process maintains as many tables as it may."""

    def __init__(self, most: int) -> None:
        super().__init__(
            f"waits for a turn: its worker maintains as many tables as it may (HOLDFAST_MAINTENANCE_STREAMS={most})"
        )


@dataclass(slots=True)
class Maintenance(Resources):
    """What the routes, handlers and loops of maintenance need."""

    settings: MaintenanceSettings
    engine_names: tuple[str, ...] = ("pyiceberg",)
    catalogs: tuple[str, ...] = ("default",)
    _engines: dict[str, Engine] = field(default_factory=dict)
    _opening: threading.Lock = field(default_factory=threading.Lock)
    _turns: asyncio.Semaphore | None = None
    _missing: dict[TableRef, float] = field(default_factory=dict)

    @property
    def default_engine(self) -> str:
        return self.settings.maintenance_engine

    @property
    def default_catalog(self) -> str:
        return self.catalogs[0]

    @property
    def only_embedded(self) -> bool:
        """Whether all catalogs are in our own database, and the embedded engine reads them."""
        return self.default_engine == "pyiceberg" and all(
            one.get("type") == EMBEDDED for one in properties_of(self.settings).values()
        )

    def embeds(self, catalog: str) -> bool:
        """Whether the embedded engine has this catalog."""
        return catalog in properties_of(self.settings)

    @property
    def on_sigterm(self) -> OnSigterm:
        return self.settings.maintenance_on_sigterm

    @property
    def keep_runs(self) -> timedelta:
        return timedelta(days=self.settings.maintenance_history_days)

    @property
    def prices(self) -> Prices:
        given = self.settings
        return Prices(given.storage_price_per_gib_month, given.engine_price_per_hour, given.price_currency)

    # ---- engines -------------------------------------------------------------------------------------------------------

    async def engine(self, name: str, borrow: Borrow) -> Engine:
        """The engine with this name, opened on first use."""
        if name in self._engines:
            return self._engines[name]
        async with borrow() as conn:
            return await self.engine_at(name, conn)

    async def engine_at(self, name: str, conn: Conn) -> Engine:
        """The engine with this name. The embedded catalog is in the database of this connection."""
        if name in self._engines:
            return self._engines[name]
        return await in_thread(self._open, name, url_of(conn))

    def _open(self, name: str, url: str) -> Engine:
        with self._opening:  # two threads must not open the same engine
            if name not in self._engines:
                self._engines[name] = open_engine(name, self.settings, url)
            return self._engines[name]

    async def close(self) -> None:
        engines, self._engines = self._engines, {}
        for engine in engines.values():
            await in_thread(engine.close)

    async def remote_engine(self, name: str) -> Engine:
        """An engine that does not use our database."""
        return await in_thread(self._open, name, "")

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """One of the turns of this process, because each run needs memory; `NoTurn` if none is free soon."""
        if self._turns is None:
            self._turns = asyncio.Semaphore(self.settings.maintenance_streams)
        try:
            async with asyncio.timeout(PATIENCE):
                await self._turns.acquire()
        except TimeoutError:
            raise NoTurn(self.settings.maintenance_streams) from None
        try:
            yield
        finally:
            self._turns.release()

    # ---- tables that do not exist --------------------------------------------------------------------------------------

    def is_known_missing(self, table: TableRef) -> bool:
        """Whether its catalog said a moment ago that this table does not exist."""
        return time.monotonic() - self._missing.get(table, -1e9) < self.settings.table_lookup_seconds

    def note_missing(self, table: TableRef) -> None:
        """Its catalog does not have this table."""
        if len(self._missing) >= MOST_MISSES:
            self.forget_missing()
        self._missing[table] = time.monotonic()

    def forget_missing(self) -> None:
        """Ask the catalogs again about every table."""
        self._missing.clear()

    # ---- hooks of the control plane ------------------------------------------------------------------------------------

    async def measure(self, conn: Conn) -> list[Metric]:
        """The metrics of maintenance for `/metrics`."""
        return await figures.metrics(conn)

    async def inventory(self, conn: Conn) -> dict[str, dict[str, Count]]:
        """The part of maintenance in `/api/ops/state`."""
        return await figures.inventory(conn)

    def share(self) -> None:
        """Let the handlers and loops of this event loop use this object."""
        _of_loops[asyncio.get_running_loop()] = self


def url_of(conn: Conn) -> str:
    """The address of the database of a connection, with its password."""
    info = conn.info
    return psycopg.conninfo.make_conninfo(info.dsn, password=info.password) if info.password else info.dsn


def maintenance_from(given: MaintenanceSettings) -> Maintenance:
    """As the settings describe it. Engines are opened on first use."""
    return Maintenance(given, configured_engines(given), configured_catalogs(given))


_of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, Maintenance] = WeakKeyDictionary()


def maintenance_here() -> Maintenance:
    """What is open in this event loop; opened from the settings on the first call."""
    loop = asyncio.get_running_loop()
    if loop not in _of_loops:
        _of_loops[loop] = maintenance_from(maintenance_settings())
    return _of_loops[loop]
