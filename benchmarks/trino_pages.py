"""A server that speaks Trino's protocol as fast as it can: pages that were encoded once, sent again and again.

It runs in its own process, so that neither client pays for it. Both get the same bytes, by plain pages and by spooled
segments, whichever they ask for. `python -m benchmarks.trino_pages wide 5000000` prints its port and serves until its
input closes.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

PAGE_ROWS = 50_000
ENCODING = "json+zstd"
NEXT = re.compile(rb"GET /v1/(statement/executing/q_1/s|spooled/(?:download|ack))/(\d+) ")


def signature(raw: str, *arguments: int) -> dict[str, Any]:
    return {"rawType": raw, "arguments": [{"kind": "LONG", "value": one} for one in arguments]}


WIDE = [
    ("id", signature("bigint")),
    ("customer", signature("bigint")),
    ("price", signature("double")),
    ("tax", signature("decimal", 12, 2)),
    ("name", signature("varchar", 40)),
    ("day", signature("date")),
    ("at", signature("timestamp", 6)),
    ("paid", signature("boolean")),
]
NARROW = [("from_id", signature("bigint")), ("to_id", signature("bigint"))]
TABLES = {"wide": WIDE, "narrow": NARROW}


def row(table: str, n: int) -> list[Any]:
    if table == "narrow":
        return [n, n * 7919 % 1_000_003]
    day = f"2024-{n % 12 + 1:02d}-{n % 28 + 1:02d}"
    at = f"{day} {n % 24:02d}:{n % 60:02d}:{n * 7 % 60:02d}.{n * 7919 % 1_000_000:06d}"
    name = None if n % 50 == 0 else f"customer {n * 31 % 99_991} of {n % 97}"
    return [n, n * 7919 % 100_003, n * 1.37 % 9973, f"{n % 9999}.{n % 100:02d}", name, day, at, n % 3 == 0]


@dataclass
class Pages:
    """One table, encoded once."""

    table: str
    rows: int

    def __post_init__(self) -> None:
        rows = [row(self.table, n) for n in range(PAGE_ROWS)]
        self.page = json.dumps(rows, separators=(",", ":")).encode()
        self.segment = pa.compress(self.page, codec="zstd", asbytes=True)
        columns = [{"name": name, "type": one["rawType"], "typeSignature": one} for name, one in TABLES[self.table]]
        self.columns = json.dumps(columns).encode()
        self.pages = self.rows // PAGE_ROWS

    def answer(self, base: str, token: int, spooled: bool) -> list[bytes]:
        """The answer of one step, in pieces that are not copied together."""
        last = token >= self.pages
        head = f'{{"id":"q_1","infoUri":"{base}/ui","stats":{{"state":"RUNNING"}},"columns":{self.columns.decode()}'.encode()
        if not last:
            head += f',"nextUri":"{base}/v1/statement/executing/q_1/s/{token + 1}"'.encode()
        data = [b""] if last else [b',"data":', self.spooled(base, token) if spooled else self.page]
        body = [head, *data, b"}"]
        length = sum(map(len, body))
        return [b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % length, *body]

    def spooled(self, base: str, token: int) -> bytes:
        metadata = {
            "rowOffset": 0,
            "rowsCount": PAGE_ROWS,
            "segmentSize": len(self.segment),
            "uncompressedSize": len(self.page),
        }
        uris = {"uri": f"{base}/v1/spooled/download/{token}", "ackUri": f"{base}/v1/spooled/ack/{token}"}
        segment = {"type": "spooled", **uris, "headers": {}, "metadata": metadata}
        return json.dumps({"encoding": ENCODING, "segments": [segment]}).encode()


async def serve(pages: Pages) -> None:
    spooled = False

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal spooled
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if length := re.search(rb"(?i)content-length: (\d+)", head):
                    await reader.readexactly(int(length[1]))
                if head.startswith(b"POST"):
                    spooled = ENCODING.encode() in head.lower()
                    writer.writelines(first(base))
                elif found := NEXT.match(head):
                    if found[1].startswith(b"statement"):
                        writer.writelines(pages.answer(base, int(found[2]), spooled))
                    else:
                        body = pages.segment if b"download" in found[1] else b""
                        writer.writelines([b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body), body])
                else:
                    writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(connection, "127.0.0.1", 0)
    base = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    print(base, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    os._exit(0)


def first(base: str) -> list[bytes]:
    uris = {"infoUri": f"{base}/ui", "nextUri": f"{base}/v1/statement/executing/q_1/s/0"}
    body = json.dumps({"id": "q_1", **uris, "stats": {"state": "QUEUED"}}).encode()
    return [b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body), body]


if __name__ == "__main__":
    asyncio.run(serve(Pages(sys.argv[1], int(sys.argv[2]))))
