"""A pooler in transaction mode, as small as it can be: real Postgres backends, shared by real connections.

Each client opens a backend with its own startup and password; from then on a transaction gets the backend that has been idle
for the longest. A real PgBouncer is used in `tests/real`; here, no program has to be installed.
"""

from __future__ import annotations

import asyncio
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import NamedTuple, cast
from urllib.parse import urlsplit, urlunsplit

MADE_UP = struct.pack("!II", 4_000_000, 1)  # a process id that no backend has, and a key
ENDS_A_TURN = b"QSF"  # Query, Sync, FunctionCall: each is answered with one ReadyForQuery


class Backend(NamedTuple):
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class Pooler:
    """Backends that nobody uses, and how they are handed around."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self.idle: deque[Backend] = deque()
        self.returned = asyncio.Event()
        self.serving: list[asyncio.Task[None]] = []
        self.writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        self.serving.append(cast("asyncio.Task[None]", asyncio.current_task()))
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await self._log_in(reader, writer)
            while await self._transaction(reader, writer):
                pass
        writer.close()

    async def _log_in(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass the startup and the password on; what the server tells of its process is replaced."""
        while True:
            startup = await _untyped(reader)
            if startup[4:8] not in (struct.pack("!I", 80877103), struct.pack("!I", 80877104)):  # not for SSL or GSS
                break
            writer.write(b"N")
        backend = Backend(*await asyncio.open_connection(self.host, self.port))
        self.writers.append(backend.writer)
        backend.writer.write(startup)
        while True:
            kind, body = await _typed(backend.reader)
            writer.write(_message(kind, MADE_UP if kind == b"K" else body))
            if kind == b"Z":
                break
            if kind == b"E":
                raise ConnectionError
            if kind == b"R" and body[:4] in (struct.pack("!I", n) for n in (3, 5, 10, 11)):  # it wants an answer
                backend.writer.write(_message(*await _typed(reader)))
        self._give_back(backend)

    async def _transaction(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One transaction on one backend; whether the client may have another."""
        kind, body = await _typed(reader)
        if kind == b"X":
            return False
        while not self.idle:
            self.returned.clear()
            await self.returned.wait()
        backend = self.idle.popleft()
        pending = asyncio.Queue[bool]()
        forward = asyncio.create_task(self._forward(reader, backend, kind, body, pending))
        open_turns = 0
        while True:
            kind, body = await _typed(backend.reader)
            writer.write(_message(kind, body))
            if kind == b"Z":
                while not pending.empty():
                    open_turns += pending.get_nowait()
                open_turns -= 1
                if body == b"I" and open_turns <= 0:
                    break
        forward.cancel()
        await asyncio.gather(forward, return_exceptions=True)
        self._give_back(backend)
        await writer.drain()
        return not reader.at_eof()

    async def _forward(
        self, reader: asyncio.StreamReader, backend: Backend, kind: bytes, body: bytes, pending: asyncio.Queue[bool]
    ) -> None:
        while kind != b"X":
            if kind in ENDS_A_TURN:
                pending.put_nowait(True)
            backend.writer.write(_message(kind, body))
            kind, body = await _typed(reader)

    def _give_back(self, backend: Backend) -> None:
        self.idle.append(backend)
        self.returned.set()


async def _typed(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """A message: its letter and its content. The head is peeked at, so that a cancelled read loses nothing."""
    while len(reader._buffer) < 5 or len(reader._buffer) < 1 + int.from_bytes(reader._buffer[1:5]):  # type: ignore[attr-defined]
        if reader.at_eof():
            raise asyncio.IncompleteReadError(b"", 5)
        await reader._wait_for_data("message")  # type: ignore[attr-defined]
    head = await reader.readexactly(5)
    return head[:1], await reader.readexactly(int.from_bytes(head[1:]) - 4)


async def _untyped(reader: asyncio.StreamReader) -> bytes:
    length = await reader.readexactly(4)
    return length + await reader.readexactly(int.from_bytes(length) - 4)


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!I", len(body) + 4) + body


@contextmanager
def transaction_pooler(url: str) -> Iterator[str]:
    """The address of a pooler in front of this database, in a thread of its own."""
    parts = urlsplit(url)
    started: Future[tuple[int, Callable[[], object]]] = Future()

    async def run() -> None:
        pooler, over = Pooler(parts.hostname or "", parts.port or 5432), asyncio.Event()
        server = await asyncio.start_server(pooler.serve, "127.0.0.1", 0, limit=2**24)
        loop = asyncio.get_running_loop()
        started.set_result((server.sockets[0].getsockname()[1], lambda: loop.call_soon_threadsafe(over.set)))
        await over.wait()
        server.close()
        for task in pooler.serving:
            task.cancel()
        await asyncio.gather(*pooler.serving, return_exceptions=True)
        for writer in pooler.writers:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in pooler.writers), return_exceptions=True)

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    port, end = started.result(60)
    login = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
    try:
        yield urlunsplit(parts._replace(netloc=f"{login}127.0.0.1:{port}", query=""))
    finally:
        end()
        thread.join(60)
