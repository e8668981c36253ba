"""Requests that end: in time, in size, and at the address that was checked.

No redirect is followed and no proxy or credential is taken from the environment. Credentials are attached to a single
request after its address was checked, and never kept on the connection. A body is read up to a bound, also the unpacked
one of a gzip. Only requests that may be repeated are.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import zlib
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass

import httpx

from holdfast.services.exports.engines.port import (
    EngineTimeout,
    EngineUnavailable,
    ProtocolBroken,
    QueryRefused,
    UntrustedUri,
)
from holdfast.services.exports.engines.trino.options import TrinoOptions
from holdfast.services.exports.engines.trino.origin import origin_of_setting
from holdfast.services.exports.engines.trino.pauses import backoff, retry_after

AGAIN = frozenset({429, 502, 503, 504})
WHOLE_SECONDS = 240.0  # for one answer, however slowly it trickles in
SHOWN = 300


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer that was read to its end."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Transport:
    """One pool of connections to one Trino, and to its object stores."""

    def __init__(self, options: TrinoOptions) -> None:
        self.origin = origin_of_setting(options.url, with_secret=bool(options.password or options.token))
        self._options = options
        self._authorization = _authorization(options)
        self._client: httpx.AsyncClient | None = None
        logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs addresses, and those of segments hold a signature

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
        """One request, sent once. `is_ours`: the address was checked to be our Trino's, and gets our credentials."""
        packed = "gzip" if self._options.compress and is_ours else "identity"
        sent = {"User-Agent": "holdfast", "Accept-Encoding": packed, **(headers or {})}
        if is_ours:
            sent["X-Trino-User"] = self._options.user
            if self._authorization:
                sent["Authorization"] = self._authorization
        async with (
            asyncio.timeout(WHOLE_SECONDS),
            self._connections().stream(method, uri, headers=sent, content=content) as reply,
        ):
            if reply.is_redirect:
                raise UntrustedUri(f"{self.origin} answered with a redirect ({reply.status_code}), which is never followed")
            return Reply(reply.status_code, reply.headers, await read_bounded(reply, cap or self._options.max_body_bytes))

    async def repeat(
        self,
        method: str,
        uri: str,
        headers: Mapping[str, str] | None = None,
        *,
        patience: float,
        is_ours: bool = True,
        cap: int | None = None,
    ) -> Reply:
        """A request that may be sent again, and is, until it was answered or patience runs out."""
        clock = asyncio.get_running_loop().time
        give_up, tries = clock() + patience, 0
        while True:
            pause, tries = backoff(tries), tries + 1
            failure: EngineUnavailable
            try:
                reply = await self.once(method, uri, headers, is_ours=is_ours, cap=cap)
            except (httpx.TimeoutException, TimeoutError) as slow:
                failure = EngineTimeout(f"no answer from the engine in time ({type(slow).__name__})")
            except httpx.TransportError as broken:
                failure = EngineUnavailable(f"no answer from the engine ({type(broken).__name__})")
            else:
                if reply.status not in AGAIN:
                    return reply
                pause = retry_after(reply.headers) or pause
                failure = EngineUnavailable(f"the engine answered {reply.status}", retry_after=pause)
            if clock() + pause > give_up:
                raise failure
            await asyncio.sleep(pause)

    def refused(self, reply: Reply) -> QueryRefused | ProtocolBroken:
        """A refusal without a query; its first line is shown without anything that we sent in secret."""
        said = reply.body[: SHOWN * 4].decode("utf-8", "replace").partition("\n")[0]
        for secret in (self._authorization, self._options.password, self._options.token):
            said = said.replace(secret, "…") if secret else said
        message = f"the engine answered {reply.status}: {' '.join(said.split())[:SHOWN]}"
        return QueryRefused(message) if reply.status >= 400 else ProtocolBroken(message)

    async def close(self) -> None:
        """Give back the connections."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    def _connections(self) -> httpx.AsyncClient:
        if self._client is None:
            options = self._options
            self._client = httpx.AsyncClient(
                verify=_trusted(options),
                follow_redirects=False,
                trust_env=False,
                timeout=httpx.Timeout(options.read_seconds, connect=options.connect_seconds),
                limits=httpx.Limits(max_connections=100, max_keepalive_connections=60),
            )
        return self._client


async def read_bounded(reply: httpx.Response, cap: int) -> bytes:
    """The body, or `ProtocolBroken` as soon as it is larger than it may be."""
    encoding = reply.headers.get("content-encoding", "identity").lower()
    if encoding not in ("identity", "gzip"):
        raise ProtocolBroken(f"an answer in an encoding that was not asked for: {encoding[:20]!r}")
    unpack = zlib.decompressobj(wbits=31) if encoding == "gzip" else None
    parts: list[bytes] = []
    size = 0
    async for part in reply.aiter_raw():
        try:
            whole = unpack.decompress(part, cap + 1 - size) if unpack else part
        except zlib.error as wrong:
            raise ProtocolBroken("an answer that is not the gzip that it says it is") from wrong
        size += len(whole)
        if size > cap:
            raise ProtocolBroken(f"an answer of more than {cap:,} bytes; nothing more of it was read")
        parts.append(whole)
    if unpack and not unpack.eof:
        raise ProtocolBroken("an answer whose gzip has no end")
    return b"".join(parts)


def _trusted(options: TrinoOptions) -> ssl.SSLContext | bool:
    """The certificates that count. Where every address is plain http they are not loaded: that takes a tenth of a second."""
    if not any(url.startswith("https:") for url in (options.url, *options.segment_origins)):
        return False  # nothing is sent to any other address, so nothing is sent over TLS
    return ssl.create_default_context(cafile=options.ca_file)


def _authorization(options: TrinoOptions) -> str | None:
    if options.token:
        return f"Bearer {options.token}"
    if options.password:
        return "Basic " + b64encode(f"{options.user}:{options.password}".encode()).decode()
    return None
