"""A server that speaks Trino's protocol and unloads: when so many queries have begun, all go on for so long, and then end.

Like Trino it answers the first look at once, and keeps any later one for up to a second (`maxWait`) while there is nothing
new. It runs in a process of its own: `python -m benchmarks.trino_unloads 500 60` prints its address and serves until its input
closes.
"""

from __future__ import annotations

import asyncio
import io
import json
import math
import os
import re
import sys
import time
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

LONGEST_WAIT = 1.0  # seconds that an answer without news is kept, unless the client wants it sooner
NEXT = re.compile(rb"GET /v1/statement/executing/(q_\d+)/s/(\d+)(?:\?maxWait=(\d+)ms)? ")
PLACE = re.compile(r"location => 'file://([^']*)'")


def small_file() -> bytes:
    made = io.BytesIO()
    pq.write_table(pa.table({"id": [1, 2, 3]}), made)
    return made.getvalue()


class Unloads:
    """All queries: each begins with its first look, and has a file when it is done."""

    def __init__(self, awaited: int, seconds: float) -> None:
        self._awaited, self._seconds = awaited, seconds
        self._places: dict[str, Path] = {}
        self._begun: set[str] = set()
        self._ends_at = math.inf
        self._content = small_file()

    def submit(self, place: str) -> str:
        name = f"q_{len(self._places)}"
        self._places[name] = Path(unquote(place))
        return name

    async def is_done(self, name: str, wait: float) -> bool:
        """What a look finds."""
        if name not in self._begun:
            self._begun.add(name)
            if len(self._begun) == self._awaited:
                self._ends_at = time.monotonic() + self._seconds
            return False
        await asyncio.sleep(min(wait, max(0.0, self._ends_at - time.monotonic())))
        if time.monotonic() < self._ends_at:
            return False
        folder = self._places[name]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "part-0.parquet").write_bytes(self._content)
        return True


async def serve(unloads: Unloads) -> None:
    async def answer(head: bytes, body: bytes) -> bytes:
        if head.startswith(b"POST /v1/statement "):
            found = PLACE.search(body.decode())
            return page(base, unloads.submit(found[1]), "QUEUED", 1) if found else columns(base)
        if (at := NEXT.match(head)) is not None:
            name = at[1].decode()
            is_done = await unloads.is_done(name, min(LONGEST_WAIT, int(at[3]) / 1000 if at[3] else LONGEST_WAIT))
            return page(base, name, "FINISHED" if is_done else "RUNNING", None if is_done else int(at[2]) + 1)
        return reply(204)

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"(?i)content-length: (\d+)", head)
                writer.write(await answer(head, await reader.readexactly(int(length[1]) if length else 0)))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(connection, "127.0.0.1", 0)
    base = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    print(base, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    os._exit(0)


def page(base: str, name: str, state: str, token: int | None) -> bytes:
    body = {"id": name, "infoUri": f"{base}/ui/{name}", "stats": {"state": state, "progressPercentage": 50.0}}
    if token is not None:
        body["nextUri"] = f"{base}/v1/statement/executing/{name}/s/{token}"
    return reply(200, json.dumps(body).encode())


def columns(base: str) -> bytes:
    """What a query that is only asked for its columns is answered."""
    column = {"name": "id", "type": "bigint", "typeSignature": {"rawType": "bigint", "arguments": []}}
    body = {"id": "described", "infoUri": f"{base}/ui/described", "columns": [column], "stats": {"state": "FINISHED"}}
    return reply(200, json.dumps(body).encode())


def reply(status: int, body: bytes = b"") -> bytes:
    return b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (status, len(body)) + body


if __name__ == "__main__":
    asyncio.run(serve(Unloads(int(sys.argv[1]), float(sys.argv[2]))))
