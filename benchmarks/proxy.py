"""A loopback relay between a worker and Postgres that counts the statements which pass.

Why on the wire: pg_stat_statements is not in every Postgres (the wheel's server has no contrib modules), the server's
log cannot be read when the server is elsewhere, and transaction counts miss statements that share a transaction. What
the client sends is exact, needs no setting, and shows the text, so that a heartbeat can be told from the rest.
A statement is an execution (`E`) of a parsed one, or each part of a simple query (`Q`) that holds several.
"""

from __future__ import annotations

import asyncio
import re
import struct
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit, urlunsplit

ENCRYPTION_REQUESTS = (80877103, 80877104)  # SSL and GSS: the server answers with one byte and the client starts again
CANCEL_REQUEST = 80877102


class StatementCounter:
    """The texts of all statements seen, with how often."""

    def __init__(self) -> None:
        self.statements: Counter[str] = Counter()

    async def relay(self, client: asyncio.StreamReader, writer: asyncio.StreamWriter, server: tuple[str, int]) -> None:
        """Carry one connection until either side closes it."""
        server_reader, server_writer = await asyncio.open_connection(*server)
        ways = {
            asyncio.create_task(self._forward(client, server_writer)),
            asyncio.create_task(copy(server_reader, writer)),
        }
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)  # a close of either side is a close of both
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            server_writer.close()
            writer.close()

    async def _forward(self, client: asyncio.StreamReader, server: asyncio.StreamWriter) -> None:
        while True:  # the messages before the typed ones
            length = await client.readexactly(4)
            body = await client.readexactly(struct.unpack("!i", length)[0] - 4)
            server.write(length + body)
            code = struct.unpack("!i", body[:4])[0]
            if code == CANCEL_REQUEST:
                return
            if code not in ENCRYPTION_REQUESTS:
                break
        parsed: dict[bytes, str] = {}
        portals: dict[bytes, str] = {}
        while True:
            head = await client.readexactly(5)
            body = await client.readexactly(struct.unpack("!i", head[1:])[0] - 4)
            self._note(head[:1], body, parsed, portals)
            server.write(head + body)
            await server.drain()

    def _note(self, kind: bytes, body: bytes, parsed: dict[bytes, str], portals: dict[bytes, str]) -> None:
        match kind:
            case b"Q":
                for text in split(body.rstrip(b"\0").decode(errors="replace")):
                    self.statements[text] += 1
            case b"P":
                name, sql, _ = body.split(b"\0", 2)
                parsed[name] = sql.decode(errors="replace")
            case b"B":
                portal, name, _ = body.split(b"\0", 2)
                portals[portal] = parsed.get(name, "?")
            case b"E":
                self.statements[portals.get(body.split(b"\0", 1)[0], "?")] += 1


def split(query: str) -> list[str]:
    """The statements of a simple query: a pool's reset is four in one message. An empty one is a ping, and counts."""
    parts = [part.strip() for part in re.sub(r"'[^']*'", "''", query).split(";")]
    return [part for part in parts if part] or [""]


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carry bytes one way until the end."""
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


@asynccontextmanager
async def counting(url: str) -> AsyncIterator[tuple[str, StatementCounter]]:
    """The address to use instead of `url`, and the counter of what is sent to it."""
    parts = urlsplit(url)
    server = (parts.hostname or "127.0.0.1", parts.port or 5432)
    counter = StatementCounter()
    connections: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(counter.relay(reader, writer, server))
        connections.add(task)
        task.add_done_callback(connections.discard)

    listening = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    credentials = parts.netloc.rpartition("@")[0]
    query = "&".join(filter(None, [parts.query, "sslmode=disable"]))
    netloc = f"{credentials}@127.0.0.1:{port}" if credentials else f"127.0.0.1:{port}"
    try:
        yield urlunsplit(parts._replace(netloc=netloc, query=query)), counter
    finally:
        listening.close()
        for task in list(connections):
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
