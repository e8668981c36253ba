"""A proxy that cuts the line once, at a word of the protocol: before the server has seen it, or before its answer is back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal


class Cut:
    """Where the proxy listens, and whether it has cut."""

    def __init__(self) -> None:
        self.port = 0
        self.done = asyncio.Event()


@asynccontextmanager
async def cutting(host: str, port: int, word: bytes, when: Literal["before", "after"]) -> AsyncIterator[Cut]:
    """The first line that carries `word` is cut; all others, and all that come later, are let through."""
    cut = Cut()
    tasks: list[asyncio.Task[None]] = []
    writers: list[asyncio.StreamWriter] = []

    async def serve(client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        server, to_server = await asyncio.open_connection(host, port)
        writers.extend([to_client, to_server])
        doomed = asyncio.Event()

        async def forward() -> None:
            while data := await client.read(65536):
                if word in data and not cut.done.is_set():
                    cut.done.set()
                    doomed.set()
                    if when == "before":
                        to_client.close()
                        break
                to_server.write(data)
                await to_server.drain()
            to_server.close()

        async def backward() -> None:
            while data := await server.read(65536):
                if doomed.is_set():
                    break  # it is answered, so it is done; the client will never know
                to_client.write(data)
                await to_client.drain()
            to_client.close()

        tasks.extend([asyncio.create_task(forward()), asyncio.create_task(backward())])

    proxy = await asyncio.start_server(serve, "127.0.0.1", 0)
    cut.port = proxy.sockets[0].getsockname()[1]
    try:
        yield cut
    finally:
        proxy.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in writers:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)
