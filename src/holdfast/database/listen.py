"""Hear that something was enqueued: a hint, never a promise. Called by: the worker's transport.

Whatever happens to this connection, nothing is lost: the worker looks by itself every few seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
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

    def __init__(self, url: str, *channels: str) -> None:
        """`channels`: what else to hear beside the hints that something was enqueued."""
        super().__init__(url)
        self._channels = (CHANNEL, *channels)
        self._wake: Callable[[str], None] | None = None
        self._lost = asyncio.Event()
        self._planned: asyncio.TimerHandle | None = None
        self._socket = -1  # the one that is being watched

    async def listen(self, wake: Callable[[str], None], *, again_after: float = 1.0) -> None:
        """Call `wake` for every hint, and once after every reconnect, for what was missed meanwhile. Runs until cancelled."""
        self._wake = wake
        await self.close()  # one that was opened before is deaf
        while True:
            self._lost.clear()
            try:
                async with self:
                    pass
                await self._lost.wait()
            except (psycopg.Error, OSError) as error:
                log.warning("listen_lost", error=str(error))
                await asyncio.sleep(again_after)

    async def __aenter__(self) -> psycopg.AsyncConnection[Any]:
        conn = await super().__aenter__()
        self._stop_watching()  # while it is used, the driver reads, and hears the hints that arrive meanwhile
        return conn

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await super().__aexit__(kind, error, trace)
        if self._wake is not None and self._conn is not None:
            # Not at once: whoever got jobs by this use has something better to do first.
            self._planned = asyncio.get_running_loop().call_later(0, self._watch, self._conn)

    async def _open(self) -> psycopg.AsyncConnection[Any]:
        conn = await super()._open()
        if self._wake is not None:
            conn.add_notify_handler(lambda hint: self._hear(hint.payload))
            try:
                for channel in self._channels:
                    await conn.execute(f"LISTEN {channel}")
            except BaseException:
                await conn.close()
                raise
            self._hear("")
        return conn

    async def _drop(self) -> None:
        self._stop_watching()
        await super()._drop()

    def _hear(self, hint: str) -> None:
        if self._wake is not None:
            self._wake(hint)

    def _watch(self, conn: psycopg.AsyncConnection[Any]) -> None:
        if not conn.closed:
            self._socket = conn.fileno()
            asyncio.get_running_loop().add_reader(self._socket, self._read, conn)

    def _stop_watching(self) -> None:
        """Before anybody else reads, and before the socket's number goes to another connection."""
        if self._planned is not None:
            self._planned.cancel()
            self._planned = None
        if self._socket >= 0:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket = -1

    def _read(self, conn: psycopg.AsyncConnection[Any]) -> None:
        """Something has arrived at an idle connection: hints, or its end."""
        try:
            conn.pgconn.consume_input()
            while hint := conn.pgconn.notifies():
                self._hear(hint.extra.decode())
        except psycopg.Error as error:
            log.warning("listen_lost", error=str(error))
            self._stop_watching()
            self._lost.set()
