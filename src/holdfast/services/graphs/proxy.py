"""Requests of the control plane to graph servers: status, and requests of users that are passed on.

Users never get the secret of a graph server. The control plane checks their token and sends the secret itself.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from holdfast.errors import Refused
from holdfast.extras import lazily
from holdfast.jobs.model import Json
from holdfast.services.graphs.server_status import ServerStatus, read_status

if TYPE_CHECKING:
    import httpx2
else:
    httpx2 = lazily("httpx2")

LONGEST: Final = 1830.0  # seconds until the first byte: a query may run for half an hour
CONNECT: Final = 5.0
SHORT: Final = 30.0  # seconds for a request of our own
PASSED_ON: Final = ("accept", "content-type", "accept-encoding", "x-request-id", "traceparent")
PASSED_BACK: Final = ("content-type", "content-encoding", "retry-after", "location")


class GraphUnreachable(Refused):
    """A graph server did not answer, or answered with an error of its own."""

    slug = "graph-unreachable"


class Reply(NamedTuple):
    """The answer of a graph server to a request of our own."""

    status: int
    body: dict[str, Any]

    @property
    def is_refusal(self) -> bool:
        """Whether the body is a problem: it has `code` and `detail`."""
        return self.status >= 400


class Proxy:
    """Connections to graph servers. One per process and event loop."""

    def __init__(self) -> None:
        self._client: httpx2.AsyncClient | None = None

    async def status(self, address: str, secret: str) -> ServerStatus | None:
        """What a graph server says of itself; None: it does not answer."""
        return await read_status(self._http(), address, secret)

    async def ask(
        self, method: str, address: str, path: str, *, secret: str, body: Json = None, query: Mapping[str, str] | None = None
    ) -> Reply:
        """Send a short request of our own. `GraphUnreachable` if there is no answer, or one that is not about the request."""
        headers = {"Authorization": f"Bearer {secret}"}
        url = f"{address.rstrip('/')}/{path}"
        try:
            answer = await self._http().request(method, url, headers=headers, json=body, params=query, timeout=SHORT)
            found = answer.json()
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
            raise GraphUnreachable(f"the graph server does not respond: {str(error) or type(error).__name__}") from None
        if answer.status_code >= 500 or answer.status_code in (401, 403) or not isinstance(found, dict):
            raise GraphUnreachable(f"the graph server answered with status {answer.status_code}")
        return Reply(answer.status_code, found)

    @asynccontextmanager
    async def send(
        self, method: str, address: str, path: str, *, secret: str, query: str, headers: Mapping[str, str], body: bytes
    ) -> AsyncIterator[httpx2.Response]:
        """Pass a request on; the response is open inside the block. `GraphUnreachable` if there is none."""
        url = f"{address.rstrip('/')}/{path}" + (f"?{query}" if query else "")
        passed = {name: headers[name] for name in PASSED_ON if name in headers}
        passed |= {"Authorization": f"Bearer {secret}"}
        timeout = httpx2.Timeout(LONGEST, connect=CONNECT)
        try:
            async with self._http().stream(method, url, headers=passed, content=body, timeout=timeout) as answer:
                yield answer
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise GraphUnreachable(f"the graph server does not respond: {str(error) or type(error).__name__}") from None

    async def close(self) -> None:
        """Close all connections."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    def _http(self) -> httpx2.AsyncClient:
        if self._client is None:
            self._client = httpx2.AsyncClient(trust_env=False, follow_redirects=False)
        return self._client
