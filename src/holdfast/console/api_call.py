"""Call a route of the API in this process, as the caller of the console. Used by: the forms of actions, uploads, pages.

The request goes through the whole application: limits, guard, validation, audit. The caller was authenticated by the console;
it is passed in the scope, which no client can set.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.types import Message, Receive

from holdfast.api.plane import caller_of


@dataclass(frozen=True, slots=True)
class Reply:
    """The response of a route."""

    status: int
    body: dict[str, Any]

    @property
    def is_refusal(self) -> bool:
        return self.status >= 400

    @property
    def data(self) -> Any:
        return self.body.get("data")

    @property
    def sentence(self) -> str:
        """Why it was refused, and what to do."""
        detail, advice = str(self.body.get("detail", "")), str(self.body.get("what_to_do", ""))
        detail = detail.rstrip(".")
        return f"{detail[:1].upper()}{detail[1:]}. {advice}".strip() if detail else f"The request failed with {self.status}."


async def call(
    request: Request, method: str, path: str, body: Mapping[str, Any] | None = None, query: Mapping[str, str] | None = None
) -> Reply:
    """Send a request to the API of this process."""
    content = b"" if body is None else json.dumps(body).encode()
    received: list[bool] = []

    async def receive() -> Message:
        if not received:
            received.append(True)
            return {"type": "http.request", "body": content, "more_body": False}
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return] # the client never goes away

    headers = {"content-type": "application/json", "content-length": str(len(content))}
    return await _send(request, _scope(request, method, path, headers, query or {}), receive)


async def send_stream(request: Request, path: str, pieces: AsyncIterator[bytes], content_type: str) -> Reply:
    """Send a body piece by piece to a route that reads it in pieces."""

    async def receive() -> Message:
        piece = await anext(pieces, None)
        return {"type": "http.request", "body": piece or b"", "more_body": piece is not None}

    return await _send(request, _scope(request, "POST", path, {"content-type": content_type}, {}), receive)


async def _send(request: Request, scope: dict[str, Any], receive: Receive) -> Reply:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    await request.app.state.api(scope, receive, send)
    text = b"".join(message.get("body", b"") for message in sent if message["type"] == "http.response.body")
    return Reply(sent[0]["status"], json.loads(text) if text else {})


def _scope(request: Request, method: str, path: str, more: Mapping[str, str], query: Mapping[str, str]) -> dict[str, Any]:
    headers = [
        (b"host", request.headers.get("host", "localhost").encode("latin-1")),
        (b"x-request-id", str(getattr(request.state, "request_id", "")).encode()),
        *((name.encode(), value.encode("latin-1")) for name, value in more.items()),
    ]
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},  # 2.4: a streamed response does not wait for a disconnect
        "http_version": "1.1",
        "method": method,
        "scheme": request.url.scheme,
        "path": path,
        "raw_path": quote(path).encode(),
        "root_path": "",
        "query_string": urlencode(query).encode(),
        "headers": headers,
        "client": request.scope.get("client"),
        "server": request.scope.get("server"),
        "state": {"known": caller_of(request)},
    }
