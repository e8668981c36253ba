"""Receive notifications (hints) that a job was enqueued. Called by: the worker's transport.

Hints may be lost with this connection. Nothing depends on them: the worker also polls every few seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any

import psycopg

from holdfast.database.pool import Link
from holdfast.telemetry.error_text import error_line
from holdfast.telemetry.log import log

CHANNEL = "holdfast"


class ListeningLink(Link):
    """A link that receives notifications while it is idle.

    The notification wakes the Postgres backend of this connection, and the claim that follows uses the same backend, which is
    then faster than a second one that has to be woken too.
    """

    def __init__(self, url: str, *channels: str) -> None:
        """`channels`: further channels besides the one for enqueued jobs."""
        super().__init__(url)
        self._channels = (CHANNEL, *channels)
        self._wake: Callable[[str], None] | None = None
        self._lost = asyncio.Event()
        self._subscribed: psycopg.AsyncConnection[Any] | None = None
        self._planned: asyncio.TimerHandle | None = None
        self._socket = -1  # the file descriptor that the event loop watches

    async def listen(self, wake: Callable[[str], None], *, again_after: float = 1.0) -> None:
        """Call `wake` for every hint, and once after every reconnect, because hints may be missed. Runs until cancelled."""
        self._wake = wake
        while True:
            self._lost.clear()
            try:
                async with self as conn:
                    if conn is not self._subscribed:  # it was opened before
                        await self._subscribe(conn)
                await self._lost.wait()
            except (psycopg.Error, OSError) as error:
                log.warning("listen_lost", error=error_line(error))
                await asyncio.sleep(again_after)

    async def __aenter__(self) -> psycopg.AsyncConnection[Any]:
        conn = await super().__aenter__()
        self._stop_watching()  # while it is used, the driver reads and delivers hints
        return conn

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await super().__aexit__(kind, error, trace)
        if self._wake is not None and self._conn is not None:
            # Not at once: the caller may have claimed jobs and starts them first.
            self._planned = asyncio.get_running_loop().call_later(0, self._watch, self._conn)

    async def _open(self) -> psycopg.AsyncConnection[Any]:
        conn = await super()._open()
        if self._wake is not None:
            try:
                await self._subscribe(conn)
            except BaseException:
                await conn.close()
                raise
        return conn

    async def _subscribe(self, conn: psycopg.AsyncConnection[Any]) -> None:
        conn.add_notify_handler(lambda hint: self._hear(hint.payload))
        for channel in self._channels:
            await conn.execute(f"LISTEN {channel}")
        self._subscribed = conn
        self._hear("")

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
        """Stop before other code reads, and before another connection reuses the file descriptor."""
        if self._planned is not None:
            self._planned.cancel()
            self._planned = None
        if self._socket >= 0:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket = -1

    def _read(self, conn: psycopg.AsyncConnection[Any]) -> None:
        """Read from an idle connection: hints, or its end."""
        try:
            conn.pgconn.consume_input()
            while hint := conn.pgconn.notifies():
                self._hear(hint.extra.decode())
        except psycopg.Error as error:
            log.warning("listen_lost", error=error_line(error))
            self._stop_watching()
            self._lost.set()
