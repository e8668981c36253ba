"""A TCP proxy that injects network faults and counts SQL statements. Used by: proof, benchmarks, tests.

    with Proxy(url) as proxy:                              # in a process of its own
        proxy.cut("UPDATE holdfast.jobs", side="after")    # the server commits; the client never gets the answer
        proxy.black_hole()                                 # the kernel drops every packet: nothing is acknowledged
        proxy.heal()

    async with relaying(url) as relay:                     # in this event loop
        relay.cut("/finish", "before")

A connection is cut *before* a round trip reaches the server, or *after* the server has answered and before the client gets
the answer. The client cannot tell the two apart. A black hole is a packet filter on the proxy's sockets: the kernel drops
packets before TCP sees them, so it also tests `tcp_user_timeout`. `swallow` acknowledges packets and forwards nothing.

The scheme of the URL selects the protocol. For Postgres, the text of a cut is searched in SQL statements; otherwise in the
bytes of each read. Standard library only, so the process starts in about 50 ms.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import random
import re
import socket
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit, urlunsplit

ENCRYPTION_REQUESTS = (80877103, 80877104)  # SSL and GSS: the server answers with one byte and the client starts again
READY_FOR_QUERY = (b"Z\0\0\0\5I", b"Z\0\0\0\5T", b"Z\0\0\0\5E")
PIPELINED = (b"P", b"B", b"D", b"E", b"C")  # the client sends more before it waits for an answer
SO_ATTACH_FILTER, SO_DETACH_FILTER = 26, 27


# ---------------------------------------------------------------------------------------------------------------------
# The relay
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Cut:
    """Cut the n-th round trip that contains `text`, before or after the server has handled it."""

    text: str
    side: str
    left: int = 1


@dataclass(slots=True)
class Relay:
    """The faults to inject, the open connections, and the statements that clients sent."""

    server: tuple[str, int]
    is_postgres: bool
    cuts: list[Cut] = field(default_factory=list)
    share: float = 0.0  # of all round trips, cut this share after the server has handled them
    random: random.Random = field(default_factory=lambda: random.Random(1))
    cuts_made: int = 0
    delay: float = 0.0
    refusing: bool = False
    dropping: bool = False
    swallowing: bool = False
    connections: set[Connection] = field(default_factory=set)
    statements: Counter[str] = field(default_factory=Counter)
    listening: Any = None
    port: int = 0
    url: str = ""  # for clients

    def cut(self, text: str, side: str, nth: int = 1) -> None:
        self.cuts.append(Cut(text, side, nth))

    def side_to_cut(self, text: str) -> str | None:
        """The side on which to cut this round trip; None: forward it."""
        for cut in self.cuts:
            if cut.text in text:
                cut.left -= 1
                if cut.left == 0:
                    self.cuts.remove(cut)
                    self.cuts_made += 1
                    return cut.side
        if self.share and self.random.random() < self.share:
            self.cuts_made += 1
            return "after"
        return None

    def command(self, order: dict[str, Any]) -> dict[str, Any]:
        """Execute one order of the user."""
        connections = len(self.connections)
        match order["do"]:
            case "cut":
                self.cut(order["text"], order["side"], order["nth"])
            case "cut some":
                self.share, self.random = order["share"], random.Random(order["seed"])
            case "cut all":
                for connection in list(self.connections):
                    connection.cut()
            case "refuse":
                self.refusing = True
            case "delay":
                self.delay = order["seconds"]
            case "swallow":
                self.swallowing = True
            case "black hole":
                self.dropping = True
                for sock in self._client_sockets():
                    drop_packets(sock)
            case "heal":
                self.cuts.clear()
                self.delay, self.share, self.refusing, self.dropping, self.swallowing = 0.0, 0.0, False, False, False
                for sock in self._client_sockets():
                    accept_packets(sock)
        return {"cuts": self.cuts_made, "connections": connections}

    def _client_sockets(self) -> list[Any]:
        return [self.listening, *(connection.client_socket for connection in self.connections)]


class Connection:
    """One client connection and the server connection behind it."""

    def __init__(self, relay: Relay, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.relay, self.reader, self.writer = relay, reader, writer
        self.client_socket = writer.get_extra_info("socket")
        self.server_writer: asyncio.StreamWriter | None = None
        self.statement = ""
        self.prepared, self.portals = dict[bytes, str](), dict[bytes, str]()
        self.muted = False  # a cut on the side "after": the client gets no more answers
        self.answered = asyncio.Event()

    async def carry(self) -> None:
        """Forward until either side closes, or until the connection is cut."""
        if self.relay.refusing:
            return
        if self.relay.dropping:
            drop_packets(self.client_socket)
        await self._stop_if_swallowing()
        server_reader, self.server_writer = await asyncio.open_connection(*self.relay.server)
        tasks = [asyncio.create_task(self._to_server()), asyncio.create_task(self._to_client(server_reader))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def cut(self) -> None:
        """Close both ends. `shutdown` first: a close alone can leave the peer waiting."""
        for writer in (self.writer, self.server_writer):
            if writer is not None:
                with contextlib.suppress(OSError):
                    writer.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
                writer.close()

    async def _stop_if_swallowing(self) -> None:
        """Both ends stay open and neither hears of the other again, also when one of them closes."""
        if self.relay.swallowing:
            await asyncio.Event().wait()

    async def _to_server(self) -> None:
        if not self.relay.is_postgres:
            while data := await self.reader.read(65536):
                if await self._forward(data, data.decode("latin-1")) == "cut":
                    return
            await self._stop_if_swallowing()
            return
        await self._forward_startup()
        round_trip = bytearray()
        while True:
            try:
                head = await self.reader.readexactly(5)
                body = await self.reader.readexactly(struct.unpack("!i", head[1:])[0] - 4)
            except (OSError, asyncio.IncompleteReadError):
                await self._stop_if_swallowing()
                return
            round_trip += head + body
            self._note_statement(head[:1], body)
            if head[:1] not in PIPELINED:
                if await self._forward(bytes(round_trip), self.statement) == "cut":
                    return
                round_trip.clear()

    async def _forward(self, data: bytes, text: str) -> str:
        """Send one round trip to the server; the answer is "sent" or "cut"."""
        assert self.server_writer is not None
        await self._stop_if_swallowing()
        side = self.relay.side_to_cut(text)
        if side == "before":
            return "cut"
        self.muted = side == "after"
        if self.relay.delay:
            await asyncio.sleep(self.relay.delay)
        self.server_writer.write(data)
        await self.server_writer.drain()
        if side == "after":
            await asyncio.wait_for(self.answered.wait(), 10)
            return "cut"
        return "sent"

    async def _forward_startup(self) -> None:
        """The messages before the typed ones: encryption requests, and the startup or cancel message."""
        assert self.server_writer is not None
        while True:
            length = await self.reader.readexactly(4)
            body = await self.reader.readexactly(struct.unpack("!i", length)[0] - 4)
            self.server_writer.write(length + body)
            if struct.unpack("!i", body[:4])[0] not in ENCRYPTION_REQUESTS:
                return

    def _note_statement(self, kind: bytes, body: bytes) -> None:
        """Remember the current statement, and count executions: `E`, or each part of a simple query (`Q`)."""
        match kind:
            case b"Q":
                self.statement = body.rstrip(b"\0").decode(errors="replace")
                self.relay.statements.update(parts_of(self.statement))
            case b"P":
                name, sql, _ = body.split(b"\0", 2)
                self.statement = self.prepared[name] = sql.decode(errors="replace")
            case b"B":
                portal, name, _ = body.split(b"\0", 2)
                self.statement = self.prepared.get(name, self.statement)
                self.portals[portal] = self.prepared.get(name, "?")
            case b"E":
                self.relay.statements[self.portals.get(body.split(b"\0", 1)[0], "?")] += 1

    async def _to_client(self, server: asyncio.StreamReader) -> None:
        while data := await server.read(65536):
            await self._stop_if_swallowing()
            if self.muted:
                if not self.relay.is_postgres or data.endswith(READY_FOR_QUERY):
                    self.answered.set()
                continue
            self.writer.write(data)
            await self.writer.drain()
        await self._stop_if_swallowing()


def parts_of(query: str) -> list[str]:
    """The statements of a simple query: a pool's reset is four in one message. An empty one is a ping, and counts."""
    parts = [part.strip() for part in re.sub(r"'[^']*'", "''", query).split(";")]
    return [part for part in parts if part] or [""]


class Filter(ctypes.Structure):
    """A program for the kernel's packet filter (`struct sock_fprog`)."""

    _fields_ = (("length", ctypes.c_ushort), ("program", ctypes.c_void_p))


DROP_ALL = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))  # "return 0": keep 0 bytes of each packet


def drop_packets(sock: Any) -> None:
    """From now on the kernel drops the packets for this socket before TCP sees them."""
    sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, bytes(Filter(1, ctypes.addressof(DROP_ALL))))


def accept_packets(sock: Any) -> None:
    """Remove the filter of `drop_packets`."""
    with contextlib.suppress(OSError):  # the socket has no filter, or is closed
        sock.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)


def through(url: str, port: int) -> str:
    """The same URL by way of a proxy on this machine."""
    parts = urlsplit(url)
    credentials, at, _ = parts.netloc.rpartition("@")
    query = "&".join(filter(None, [parts.query, "sslmode=disable"])) if parts.scheme.startswith("postgres") else parts.query
    return urlunsplit(parts._replace(netloc=f"{credentials}{at}127.0.0.1:{port}", query=query))


@contextlib.asynccontextmanager
async def relaying(url: str) -> AsyncIterator[Relay]:
    """A proxy in this event loop: use `relay.url` instead of `url`."""
    parts = urlsplit(url)
    relay = Relay((parts.hostname or "127.0.0.1", parts.port or 5432), parts.scheme.startswith("postgres"))
    tasks: set[asyncio.Task[None]] = set()

    async def carry(connection: Connection) -> None:
        relay.connections.add(connection)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):  # one side closed, or the server is away
                await connection.carry()
        finally:
            relay.connections.discard(connection)
            connection.cut()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(carry(Connection(relay, reader, writer)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    relay.listening = server.sockets[0]
    relay.port = server.sockets[0].getsockname()[1]
    relay.url = through(url, relay.port)
    try:
        yield relay
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# ---------------------------------------------------------------------------------------------------------------------
# The proxy process
# ---------------------------------------------------------------------------------------------------------------------


async def serve(url: str) -> None:
    """Relay until standard input ends. Orders arrive there, one JSON object on each line."""
    async with relaying(url) as relay:
        print(json.dumps({"port": relay.port}), flush=True)
        orders = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
        while line := await orders.readline():
            print(json.dumps(relay.command(json.loads(line))), flush=True)


class Proxy:
    """A proxy in a process of its own, for tests without an event loop and for faults that must not block one."""

    def __init__(self, url: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", __file__, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.port: int = self._read()["port"]
        self.url = through(url, self.port)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def cut(self, text: str, *, side: str, nth: int = 1) -> None:
        """Cut the connection of the n-th round trip with this text, `before` or `after` the server has handled it."""
        self._order(do="cut", text=text, side=side, nth=nth)

    def cut_some(self, share: float, seed: int = 1) -> None:
        """Cut this share of all round trips after the server has handled them."""
        self._order(do="cut some", share=share, seed=seed)

    def cut_all(self) -> int:
        """Cut every open connection; returns their number."""
        return int(self._order(do="cut all")["connections"])

    def refuse(self) -> None:
        """Close new connections at once."""
        self._order(do="refuse")

    def delay(self, seconds: float) -> None:
        """Hold every round trip for this time."""
        self._order(do="delay", seconds=seconds)

    def swallow(self) -> None:
        """Keep connections open and forward nothing."""
        self._order(do="swallow")

    def black_hole(self) -> None:
        """Drop every packet and acknowledge none."""
        self._order(do="black hole")

    def heal(self) -> None:
        """Remove all faults."""
        self._order(do="heal")

    @property
    def cuts(self) -> int:
        """The number of cuts so far."""
        return int(self._order(do="ask")["cuts"])

    def _order(self, **order: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the proxy process ended; its error is above")
        return dict(json.loads(line))


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
