"""HTTP requests with a limited duration and response size, sent to checked addresses only.

Redirects are not followed, and no proxy or credential comes from the environment. Credentials are attached to each request
after its address was checked; the connection does not keep them. A body is read up to a limit, which also holds for
decompressed gzip. Only idempotent requests are retried.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import zlib
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass

import httpx2

from holdfast.engines.port import (
    EngineTimeout,
    EngineUnavailable,
    ProtocolBroken,
    QueryRefused,
    UntrustedUri,
)
from holdfast.engines.trino.backoff import backoff, retry_after
from holdfast.engines.trino.options import TrinoOptions
from holdfast.engines.trino.origin import origin_of_setting

RETRIED_STATUSES = frozenset({429, 502, 503, 504})
REQUEST_SECONDS = 240.0  # for one request, including the whole body
SHOWN = 300


@dataclass(frozen=True, slots=True)
class Reply:
    """A response with its whole body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Transport:
    """A connection pool for one Trino and its object stores."""

    def __init__(self, options: TrinoOptions) -> None:
        self.origin = origin_of_setting(options.url, with_secret=bool(options.password or options.token))
        self._options = options
        self._authorization = _authorization(options)
        self._client: httpx2.AsyncClient | None = None
        # It logs addresses, and the addresses of segments contain signatures.
        logging.getLogger("httpx2").setLevel(logging.WARNING)

    async def once(
        self,
        method: str,
        uri: str,
        headers: Mapping[str, str] | None = None,
        *,
        content: bytes | None = None,
        is_ours: bool = True,
        cap: int | None = None,
    ) -> Reply:
        """Send a request once. `is_ours`: the address was checked and is our Trino's, so credentials are sent."""
        encoding = "gzip" if self._options.compress and is_ours else "identity"
        sent = {"User-Agent": "holdfast", "Accept-Encoding": encoding, **(headers or {})}
        if is_ours:
            sent["X-Trino-User"] = self._options.user
            if self._authorization:
                sent["Authorization"] = self._authorization
        async with (
            asyncio.timeout(REQUEST_SECONDS),
            self._connections().stream(method, uri, headers=sent, content=content) as reply,
        ):
            if reply.is_redirect:
                raise UntrustedUri(f"{self.origin} answered with a redirect ({reply.status_code}); redirects are not followed")
            return Reply(reply.status_code, reply.headers, await read_bounded(reply, cap or self._options.max_body_bytes))

    async def repeat(
        self,
        method: str,
        uri: str,
        headers: Mapping[str, str] | None = None,
        *,
        retry_seconds: float,
        is_ours: bool = True,
        cap: int | None = None,
    ) -> Reply:
        """Send an idempotent request, and retry it for up to `retry_seconds`."""
        clock = asyncio.get_running_loop().time
        give_up, tries = clock() + retry_seconds, 0
        while True:
            pause, tries = backoff(tries), tries + 1
            failure: EngineUnavailable
            try:
                reply = await self.once(method, uri, headers, is_ours=is_ours, cap=cap)
            except (httpx2.TimeoutException, TimeoutError) as slow:
                failure = EngineTimeout(f"the engine did not answer in time ({type(slow).__name__})")
            except httpx2.TransportError as broken:
                failure = EngineUnavailable(f"the request to the engine failed ({type(broken).__name__})")
            else:
                if reply.status not in RETRIED_STATUSES:
                    return reply
                pause = retry_after(reply.headers) or pause
                failure = EngineUnavailable(f"the engine answered {reply.status}", retry_after=pause)
            if clock() + pause > give_up:
                raise failure
            await asyncio.sleep(pause)

    def refused(self, reply: Reply) -> QueryRefused | ProtocolBroken:
        """Return the error for a response without a query. It quotes the first line of the body, with our secrets removed."""
        line = reply.body[: SHOWN * 4].decode("utf-8", "replace").partition("\n")[0]
        for secret in (self._authorization, self._options.password, self._options.token):
            line = line.replace(secret, "…") if secret else line
        message = f"the engine answered {reply.status}: {' '.join(line.split())[:SHOWN]}"
        return QueryRefused(message) if reply.status >= 400 else ProtocolBroken(message)

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    def _connections(self) -> httpx2.AsyncClient:
        if self._client is None:
            options = self._options
            self._client = httpx2.AsyncClient(
                verify=_tls_context(options),
                follow_redirects=False,
                trust_env=False,
                timeout=httpx2.Timeout(options.read_seconds, connect=options.connect_seconds),
                limits=httpx2.Limits(max_connections=100, max_keepalive_connections=60),
            )
        return self._client


async def read_bounded(reply: httpx2.Response, cap: int) -> bytes:
    """Read the body. Raises `ProtocolBroken` as soon as it is larger than `cap`."""
    encoding = reply.headers.get("content-encoding", "identity").lower()
    if encoding not in ("identity", "gzip"):
        raise ProtocolBroken(f"the response has an encoding that was not requested: {encoding[:20]!r}")
    decompressor = zlib.decompressobj(wbits=31) if encoding == "gzip" else None
    parts: list[bytes] = []
    size = 0
    async for part in reply.aiter_raw():
        try:
            whole = decompressor.decompress(part, cap + 1 - size) if decompressor else part
        except zlib.error as wrong:
            raise ProtocolBroken("the response is not valid gzip") from wrong
        size += len(whole)
        if size > cap:
            raise ProtocolBroken(f"the response has more than {cap:,} bytes; the rest was not read")
        parts.append(whole)
    if decompressor and not decompressor.eof:
        raise ProtocolBroken("the gzip of the response is truncated")
    return b"".join(parts)


def _tls_context(options: TrinoOptions) -> ssl.SSLContext | bool:
    """The TLS context. If every address is plain http, no certificates are loaded: that takes a tenth of a second."""
    if not any(url.startswith("https:") for url in (options.url, *options.segment_origins)):
        return False  # requests go to these addresses only, so TLS is not used
    return ssl.create_default_context(cafile=options.ca_file)


def _authorization(options: TrinoOptions) -> str | None:
    if options.token:
        return f"Bearer {options.token}"
    if options.password:
        return "Basic " + b64encode(f"{options.user}:{options.password}".encode()).decode()
    return None
