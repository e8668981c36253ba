"""Hear that something was enqueued: a hint, never a promise. Called by: the worker's transport.

Whatever happens to this connection, nothing is lost: the worker looks by itself every few seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import psycopg

from holdfast.database.pool import Link
from holdfast.telemetry.log import log

CHANNEL = "holdfast"


class ListeningLink(Link):
    """A link that hears hints while nobody uses it.

    The hint wakes the server process at the other end, and the claim that follows goes to the same one: it is still
    warm, where a second connection's would have to be woken too.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._wake: Callable[[str], None] | None = None
        self._lost = asyncio.Event()

    async def listen(self, wake: Callable[[str], None], *, again_after: float = 1.0) -> None:
        """Call `wake` for every hint, and once after every reconnect, for what was missed meanwhile. Runs until cancelled."""
        self._wake = wake
        await self.close()  # one that was opened before is deaf
        while True:
            self._lost.clear()
            try:
                async with self.use():
                    pass
                await self._lost.wait()
            except (psycopg.Error, OSError) as error:
                log.warning("listen_lost", error=str(error))
                await asyncio.sleep(again_after)

    @asynccontextmanager
    async def use(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        """As of any link; hints that arrive meanwhile are heard as well."""
        async with super().use() as conn:
            loop, socket = asyncio.get_running_loop(), conn.fileno()
            loop.remove_reader(socket)  # while it is used, the driver reads
            yield conn
            if self._wake is not None:
                loop.add_reader(socket, self._read, conn)

    async def _open(self) -> psycopg.AsyncConnection[Any]:
        conn = await super()._open()
        if self._wake is not None:
            conn.add_notify_handler(lambda hint: self._hear(hint.payload))
            await conn.execute(f"LISTEN {CHANNEL}")
            self._hear("")
        return conn

    async def _drop(self) -> None:
        if self._conn is not None and not self._conn.closed:
            asyncio.get_running_loop().remove_reader(self._conn.fileno())
        await super()._drop()

    def _hear(self, hint: str) -> None:
        if self._wake is not None:
            self._wake(hint)

    def _read(self, conn: psycopg.AsyncConnection[Any]) -> None:
        """Something has arrived at an idle connection: hints, or its end."""
        try:
            conn.pgconn.consume_input()
            while hint := conn.pgconn.notifies():
                self._hear(hint.extra.decode())
        except psycopg.Error as error:
            log.warning("listen_lost", error=str(error))
            asyncio.get_running_loop().remove_reader(conn.fileno())
            self._lost.set()
