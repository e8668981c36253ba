"""A proxy before an object store that cuts uploads, loses answers and refuses keys. It knows just enough of HTTP for that."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

# half: the upload is cut in its middle; whole: when all of it has come and before the server has it;
# answer: the server has done it, and nobody hears of it; deny: the key is refused.
How = Literal["half", "whole", "answer", "deny"]
DENIED = (
    b"HTTP/1.1 403 Forbidden\r\nContent-Type: application/xml\r\nContent-Length: 50\r\nConnection: close\r\n\r\n"
    b"<Error><Code>InvalidAccessKeyId</Code></Error>    "
)


@dataclass(slots=True)
class Trouble:
    """What becomes of the next requests with this method and these words in their first line or head."""

    method: str
    words: str
    how: How
    left: int


class ObjectProxy:
    """Carries requests to the server, one connection for each."""

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._troubles: list[Trouble] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.seen: list[str] = []  # the first lines of the requests
        self.troubled = 0

    def trouble(self, method: str, how: How, words: str = "", times: int = 1) -> None:
        """Have the next such requests go wrong."""
        self._troubles.append(Trouble(method, words, how, times))

    def heal(self) -> None:
        self._troubles.clear()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def __aenter__(self) -> Self:
        self._listening = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self._port = self._listening.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listening.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        self.seen.append(lines[0])
        length = next((int(line.split(":")[1]) for line in lines if line.lower().startswith("content-length:")), 0)
        how = self._due(lines)
        body = await reader.readexactly(length // 2 if how == "half" else length)
        if how == "deny":
            writer.write(DENIED)
            await writer.drain()
        if how in ("half", "whole", "deny"):
            return
        answer = await self._ask(self._closing(lines) + body)
        if how != "answer":
            writer.write(answer)
            await writer.drain()

    def _due(self, lines: list[str]) -> How | None:
        for trouble in self._troubles:
            if trouble.left and lines[0].startswith(trouble.method) and trouble.words in "\n".join(lines):
                trouble.left -= 1
                self.troubled += 1
                return trouble.how
        return None

    @staticmethod
    def _closing(lines: list[str]) -> bytes:
        """The head, asking the server to close when it has answered: then the answer needs no parsing."""
        kept = [line for line in lines if line and not line.lower().startswith("connection:")]
        return ("\r\n".join([*kept, "Connection: close"]) + "\r\n\r\n").encode("latin-1")

    async def _ask(self, request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._server_port)
        try:
            writer.write(request)
            await writer.drain()
            return await reader.read()
        finally:
            writer.close()


def write_key(file: Path, key: str) -> None:
    """Credentials, as a rotated secret is mounted."""
    file.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = secret-of-{key}\n")
