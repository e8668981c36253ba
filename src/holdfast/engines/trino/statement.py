"""Trino's statement protocol: submit, advance, cancel, and the status of a query by its id."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import httpx2

from holdfast.addresses import Origin
from holdfast.engines.port import (
    EngineLost,
    EngineTimeout,
    EngineUnavailable,
    MissingRole,
    ProtocolBroken,
    Query,
    QueryRefused,
    SubmitTimeout,
    SubmitUnknown,
)
from holdfast.engines.trino.backoff import retry_after
from holdfast.engines.trino.messages import Answer, QueryInfo, read
from holdfast.engines.trino.options import MiB, TrinoOptions
from holdfast.engines.trino.origin import STATEMENTS, checked
from holdfast.engines.trino.transport import Transport

UNREADABLE_TRIES = 3
SHORT_WAIT = "maxWait=100ms"
ACCESS_DENIED = b"io.trino.spi.security.AccessDeniedException"  # Trino's response if the user may not use the role
PROPERTY = re.compile(r"[A-Za-z0-9_.-]+")
INFO_CAP = 32 * MiB
NEVER_SENT = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.PoolTimeout,
    httpx2.UnsupportedProtocol,
    httpx2.LocalProtocolError,
)


class StatementClient:
    """The requests of the protocol. It does not read rows."""

    def __init__(self, options: TrinoOptions) -> None:
        self._options = options
        self.transport = Transport(options)

    @property
    def origin(self) -> Origin:
        return self.transport.origin

    async def submit(self, sql: str, headers: Mapping[str, str]) -> Answer:
        """Send a statement, without retries. Trino starts it at the first request of its nextUri.

        Raises `SubmitUnknown` if it is unknown whether Trino accepted it, and `SubmitTimeout` if that is because of a timeout.
        With status 429 Trino did not accept it.
        """
        uri = f"{self.origin}/v1/statement"
        try:
            reply = await self.transport.once("POST", uri, headers, content=sql.encode())
        except httpx2.ConnectTimeout as slow:
            raise EngineTimeout("the engine did not accept the connection in time") from slow
        except NEVER_SENT as failed:
            raise EngineUnavailable(f"no connection to the engine ({type(failed).__name__})") from failed
        except (httpx2.TimeoutException, TimeoutError) as late:
            raise SubmitTimeout(
                f"the statement was sent, but the engine did not answer in time ({type(late).__name__})"
            ) from late
        except (httpx2.HTTPError, ProtocolBroken) as lost:
            raise SubmitUnknown(f"the statement was sent, but reading the response failed ({type(lost).__name__})") from lost
        if reply.status == 429:
            raise EngineUnavailable("the engine accepts no more statements now (429)", retry_after=retry_after(reply.headers))
        if reply.status == 500 and reply.body.startswith(ACCESS_DENIED):  # before Trino created a query
            raise self.transport.refused(reply)
        if reply.status >= 500:
            raise SubmitUnknown(f"the statement was sent, and the engine answered {reply.status}")
        if reply.status != 200:
            raise self.transport.refused(reply)
        try:
            return self._checked(read(reply.body, Answer))
        except ProtocolBroken as garbage:
            raise SubmitUnknown(f"the statement was sent, but the response is invalid: {garbage}") from garbage

    async def advance(self, uri: str, query_id: str, retry_seconds: float, *, briefly: bool = False) -> Answer:
        """Request the next response of a query. An invalid response is requested again: Trino keeps the last one for that.

        If nothing has changed, Trino answers after up to one second; with `briefly`, after up to 100 ms.
        """
        uri = checked(uri, self.origin, STATEMENTS)
        if briefly:
            uri += f"{'&' if '?' in uri else '?'}{SHORT_WAIT}"
        for _ in range(UNREADABLE_TRIES - 1):
            try:
                return await self._advance(uri, query_id, retry_seconds)
            except ProtocolBroken:
                continue
        return await self._advance(uri, query_id, retry_seconds)

    async def _advance(self, uri: str, query_id: str, retry_seconds: float) -> Answer:
        reply = await self.transport.repeat("GET", uri, retry_seconds=retry_seconds)
        if reply.status in (404, 410, 500):
            raise EngineLost(f"the engine no longer knows the query ({reply.status})", query_id=query_id)
        if reply.status != 200:
            raise self.transport.refused(reply)
        answer = self._checked(read(reply.body, Answer))
        if answer.id != query_id:
            raise ProtocolBroken(f"the response belongs to another query than {query_id}")
        return answer

    def _checked(self, answer: Answer) -> Answer:
        """Check the addresses in a response: an untrusted nextUri raises, an untrusted infoUri is removed."""
        if not answer.id or len(answer.id) > 100 or not answer.id.replace("_", "").isalnum():
            raise ProtocolBroken("the response has no valid query id")
        if answer.next_uri is not None:
            checked(answer.next_uri, self.origin, STATEMENTS)
        if answer.info_uri is not None and Origin.of(answer.info_uri) != self.origin:
            answer.info_uri = None
        return answer

    async def keep_alive(self, uri: str) -> bool:
        """Tell Trino that the result is still needed; False if this Trino does not support such requests."""
        reply = await self.transport.once("HEAD", checked(uri, self.origin, STATEMENTS))
        return reply.status not in (404, 405)

    async def cancel(self, uri: str | None, query_id: str, retry_seconds: float) -> None:
        """Cancel a query. No error if it has ended or is unknown."""
        addresses = [checked(uri, self.origin, STATEMENTS)] if uri else []
        for address in [*addresses, self._by_id(query_id)]:
            reply = await self.transport.repeat("DELETE", address, retry_seconds=retry_seconds)
            if reply.status < 300:
                return
        if reply.status not in (404, 410):
            raise self.transport.refused(reply)

    async def info(self, query_id: str, retry_seconds: float) -> QueryInfo | None:
        """The status of a query by its id; None if Trino does not know it, or no longer knows it."""
        uri = f"{self._by_id(query_id)}?pruned=true"
        reply = await self.transport.repeat("GET", uri, retry_seconds=retry_seconds, cap=INFO_CAP)
        if reply.status in (404, 410):
            return None
        if reply.status != 200:
            raise self.transport.refused(reply)
        found = read(reply.body, QueryInfo)
        if found.query_id != query_id:
            raise ProtocolBroken(f"the response belongs to another query than {query_id}")
        return found

    def _by_id(self, query_id: str) -> str:
        return f"{self.origin}/v1/query/{quote(query_id, safe='')}"

    async def close(self) -> None:
        """Close the connections."""
        await self.transport.close()


def headers_of(query: Query, options: TrinoOptions, *, spooled: bool) -> dict[str, str]:
    """The headers of a statement: its role, its job, and the features of the protocol that this client supports."""
    if options.role_required and not query.role:
        raise MissingRole
    session = dict(query.session)
    if query.max_seconds is not None:  # Trino then ends it even if no process is left to cancel it
        session.setdefault("query_max_execution_time", f"{max(1, int(query.max_seconds))}s")
    given: dict[str, Any] = {
        "Content-Type": "text/plain; charset=utf-8",
        "X-Trino-Source": source_of(query, options),
        "X-Trino-Client-Tags": ",".join((*options.client_tags, query.tag)),
        "X-Trino-Client-Capabilities": "PARAMETRIC_DATETIME",
        "X-Trino-Time-Zone": "UTC",
        "X-Trino-Catalog": query.catalog,
        "X-Trino-Schema": query.schema,
        "X-Trino-Role": f"{options.role_catalog}={role_text(query.role)}" if query.role else None,
        "X-Trino-Session": ",".join(f"{name}={quote(value, safe='')}" for name, value in session.items()),
        "X-Trino-Query-Data-Encoding": ",".join(options.encodings) if spooled else None,
    }
    sent = {name: value for name, value in given.items() if value}
    if any(not PROPERTY.fullmatch(name) for name in session):
        raise QueryRefused("names of session properties may contain only letters, digits, '_', '.' and '-'")
    for name, value in sent.items():
        if not value.isascii() or not value.isprintable():
            raise QueryRefused(f"the header {name} may contain only printable ASCII characters")
    return sent


def source_of(query: Query, options: TrinoOptions) -> str:
    """The `source` of a query: the program and the attempt. `system.runtime.queries` is searched for it."""
    return f"{options.source}/{query.tag}"


def role_text(role: str) -> str:
    """One role by name. Trino also accepts ALL, which would enable every role of the user."""
    return quote(f"ROLE{{{role}}}", safe="")
