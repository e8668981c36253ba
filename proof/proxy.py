"""A relay between a worker and Postgres that breaks what it carries, in a process of its own.

    with Proxy("127.0.0.1", 5432) as proxy:
        proxy.cut("UPDATE holdfast.jobs", side="after")    # the server has done it; nobody will hear of it
        proxy.black_hole()                                 # no packet comes through, and none is acknowledged
        proxy.heal()

A connection is cut *before* a round trip reaches the server, or *after* the server has answered and before the client
hears of it: to a client both look the same. A black hole is a real one: a filter on the proxy's sockets makes the kernel
drop every packet before TCP sees it, so nothing is acknowledged and the client's `tcp_user_timeout` is put to the test.

Standard library only: it starts in a moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import random
import socket
import struct
import subprocess
import sys
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

BEFORE_TYPED = (80877103, 80877104)  # asks for SSL or GSS: answered with one byte, and the client starts again
CANCEL = 80877102
SO_ATTACH_FILTER, SO_DETACH_FILTER = 26, 27


# ---------------------------------------------------------------------------------------------------------------------
# The relay
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Cut:
    """Where to cut: the n-th round trip whose statement contains `text`, before or after the server has handled it."""

    text: str
    side: str
    left: int = 1


@dataclass(slots=True)
class Relay:
    """What the proxy has been told, and the connections it carries."""

    server: tuple[str, int]
    cuts: list[Cut] = field(default_factory=list)
    share: float = 0.0  # of all round trips that are cut after the server has handled them
    chance: random.Random = field(default_factory=lambda: random.Random(1))
    done: int = 0
    delay: float = 0.0
    refusing: bool = False
    dark: bool = False
    carried: set[Carried] = field(default_factory=set)
    listening: socket.socket | None = None

    def due(self, text: str) -> str | None:
        """The side on which this round trip is to be cut, if it is."""
        for cut in self.cuts:
            if cut.text in text:
                cut.left -= 1
                if cut.left == 0:
                    self.cuts.remove(cut)
                    self.done += 1
                    return cut.side
        if self.share and self.chance.random() < self.share:
            self.done += 1
            return "after"
        return None

    def command(self, order: dict[str, Any]) -> dict[str, Any]:
        """Do as told; the answer says how many cuts were made so far."""
        match order["do"]:
            case "cut":
                self.cuts.append(Cut(order["text"], order["side"], order["nth"]))
            case "cut some":
                self.share, self.chance = order["share"], random.Random(order["seed"])
            case "cut all":
                for one in list(self.carried):
                    one.cut()
            case "refuse":
                self.refusing = True
            case "delay":
                self.delay = order["seconds"]
            case "black hole":
                self.darken()
            case "heal":
                self.cuts.clear()
                self.delay, self.share, self.refusing = 0.0, 0.0, False
                self.lighten()
        return {"cuts": self.done, "carried": len(self.carried)}

    def darken(self) -> None:
        self.dark = True
        for sock in self._sockets():
            drop_everything(sock)

    def lighten(self) -> None:
        self.dark = False
        for sock in self._sockets():
            let_everything_in(sock)

    def _sockets(self) -> list[Any]:
        assert self.listening is not None
        return [self.listening, *(one.client_socket for one in self.carried)]


class Carried:
    """One connection, with its two ends."""

    def __init__(self, relay: Relay, client: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
        self.relay = relay
        self.reader, self.writer = client
        self.client_socket = self.writer.get_extra_info("socket")
        self.server_writer: asyncio.StreamWriter | None = None
        self.statement, self.parsed = "", dict[bytes, str]()
        self.mute = False  # the server has handled it, and the client must not hear
        self.answered = asyncio.Event()

    async def carry(self) -> None:
        """Until either side closes, or we do."""
        if self.relay.refusing:
            self.cut()
            return
        if self.relay.dark:
            drop_everything(self.client_socket)
        server_reader, self.server_writer = await asyncio.open_connection(*self.relay.server)
        ways = [asyncio.create_task(self._to_server()), asyncio.create_task(self._to_client(server_reader))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            self.cut()

    def cut(self) -> None:
        """Both ends at once. `shutdown` first: a mere close can leave the other side waiting."""
        for writer in (self.writer, self.server_writer):
            if writer is not None:
                with contextlib.suppress(OSError):
                    writer.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
                writer.close()

    async def _to_server(self) -> None:
        assert self.server_writer is not None
        await self._opening()
        round_trip = bytearray()
        while True:
            head = await self.reader.readexactly(5)
            body = await self.reader.readexactly(struct.unpack("!i", head[1:])[0] - 4)
            round_trip += head + body
            if not self._ends_a_round_trip(head[:1], body):
                continue
            side = self.relay.due(self.statement)
            if side == "before":
                return
            if side == "after":
                self.mute = True
            if self.relay.delay:
                await asyncio.sleep(self.relay.delay)
            self.server_writer.write(bytes(round_trip))
            round_trip.clear()
            await self.server_writer.drain()
            if side == "after":
                await asyncio.wait_for(self.answered.wait(), 10)
                return

    async def _opening(self) -> None:
        assert self.server_writer is not None
        while True:
            length = await self.reader.readexactly(4)
            body = await self.reader.readexactly(struct.unpack("!i", length)[0] - 4)
            self.server_writer.write(length + body)
            code = struct.unpack("!i", body[:4])[0]
            if code not in BEFORE_TYPED:
                return

    def _ends_a_round_trip(self, kind: bytes, body: bytes) -> bool:
        """Whether the client waits for the server after this message; notes what was asked on the way."""
        if kind == b"Q":
            self.statement = body.decode(errors="replace")
        elif kind == b"P":
            name, sql, _ = body.split(b"\0", 2)
            self.parsed[name] = sql.decode(errors="replace")
            self.statement = self.parsed[name]
        elif kind == b"B":
            _, name, _ = body.split(b"\0", 2)
            self.statement = self.parsed.get(name, self.statement)
        return kind not in (b"P", b"B", b"D", b"E", b"C")

    async def _to_client(self, server: asyncio.StreamReader) -> None:
        while data := await server.read(65536):
            if self.mute:
                if data.endswith((b"Z\0\0\0\5I", b"Z\0\0\0\5T", b"Z\0\0\0\5E")):
                    self.answered.set()
                continue
            self.writer.write(data)
            await self.writer.drain()


class Filter(ctypes.Structure):
    """A program for the kernel's packet filter."""

    _fields_ = (("length", ctypes.c_ushort), ("program", ctypes.c_void_p))


DROP_ALL = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))  # "return 0": of each packet, keep 0 bytes


def drop_everything(sock: Any) -> None:
    """From now on the kernel drops what comes for this socket before TCP sees it."""
    sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, bytes(Filter(1, ctypes.addressof(DROP_ALL))))


def let_everything_in(sock: Any) -> None:
    with contextlib.suppress(OSError):  # it had no filter, or is closed
        sock.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)


async def serve(host: str, port: int) -> None:
    """Relay until the standard input ends; orders come from there, one line each."""
    relay = Relay((host, port))

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        one = Carried(relay, (reader, writer))
        relay.carried.add(one)
        try:
            await one.carry()
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            one.cut()
        finally:
            relay.carried.discard(one)

    listening = await asyncio.start_server(accept, "127.0.0.1", 0)
    relay.listening = listening.sockets[0]  # type: ignore[assignment]
    print(json.dumps({"port": listening.sockets[0].getsockname()[1]}), flush=True)
    orders = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    while line := await orders.readline():
        print(json.dumps(relay.command(json.loads(line))), flush=True)


# ---------------------------------------------------------------------------------------------------------------------
# Its user
# ---------------------------------------------------------------------------------------------------------------------


class Proxy:
    """A proxy process, and the orders it takes."""

    def __init__(self, host: str, port: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", __file__, host, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.port: int = self._read()["port"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def cut(self, text: str, *, side: str, nth: int = 1) -> None:
        """Cut the connection that brings the n-th statement with this text: `before` or `after` the server has handled it."""
        self._tell(do="cut", text=text, side=side, nth=nth)

    def cut_some(self, share: float, seed: int = 1) -> None:
        """Of all round trips, lose the answers to so many: the server has done it, the client sees a dead connection."""
        self._tell(do="cut some", share=share, seed=seed)

    def cut_all(self) -> int:
        """Cut every connection now; how many there were."""
        return int(self._tell(do="cut all")["carried"])

    def refuse(self) -> None:
        """Let nobody in any more."""
        self._tell(do="refuse")

    def delay(self, seconds: float) -> None:
        """Hold every round trip for so long."""
        self._tell(do="delay", seconds=seconds)

    def black_hole(self) -> None:
        """Lose every packet, acknowledge none."""
        self._tell(do="black hole")

    def heal(self) -> None:
        """Carry faithfully again."""
        self._tell(do="heal")

    @property
    def cuts(self) -> int:
        """How many cuts were made so far."""
        return int(self._tell(do="ask")["cuts"])

    def _tell(self, **order: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the proxy died; see its error above")
        answer: dict[str, Any] = json.loads(line)
        return answer


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2])))
