"""Trino's statement protocol: submit, advance, cancel, and the status of a query by its id."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import httpx

from holdfast.addresses import Origin
from holdfast.services.exports.engines.port import (
    SOURCE,
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
from holdfast.services.exports.engines.trino.messages import Answer, QueryInfo, read
from holdfast.services.exports.engines.trino.options import MiB, TrinoOptions
from holdfast.services.exports.engines.trino.origin import STATEMENTS, checked
from holdfast.services.exports.engines.trino.pauses import retry_after
from holdfast.services.exports.engines.trino.transport import Transport

UNREADABLE_TRIES = 3
BRIEFLY = "maxWait=100ms"
ACCESS_DENIED = b"io.trino.spi.security.AccessDeniedException"  # so Trino answers to a role that it does not give
PROPERTY = re.compile(r"[A-Za-z0-9_.-]+")
INFO_CAP = 32 * MiB
NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol, httpx.LocalProtocolError)


class StatementClient:
    """Speaks the protocol; knows nothing of rows."""

    def __init__(self, options: TrinoOptions) -> None:
        self._options = options
        self.transport = Transport(options)

    @property
    def origin(self) -> Origin:
        return self.transport.origin

    async def submit(self, sql: str, headers: Mapping[str, str]) -> Answer:
        """Send a statement, once. Trino begins it when its first nextUri is asked for.

        `SubmitUnknown` when it is unknown whether it arrived, `SubmitTimeout` if only the answer is late. A 429 says that it
        did not arrive.
        """
        uri = f"{self.origin}/v1/statement"
        try:
            reply = await self.transport.once("POST", uri, headers, content=sql.encode())
        except httpx.ConnectTimeout as slow:
            raise EngineTimeout("the engine did not take the connection in time") from slow
        except NEVER_SENT as failed:
            raise EngineUnavailable(f"no connection to the engine ({type(failed).__name__})") from failed
        except (httpx.TimeoutException, TimeoutError) as late:
            raise SubmitTimeout(f"the statement was sent and not answered in time ({type(late).__name__})") from late
        except (httpx.HTTPError, ProtocolBroken) as lost:
            raise SubmitUnknown(f"the statement was sent and no answer came ({type(lost).__name__})") from lost
        if reply.status == 429:
            raise EngineUnavailable("the engine takes no more statements now (429)", retry_after=retry_after(reply.headers))
        if reply.status == 500 and reply.body.startswith(ACCESS_DENIED):  # before it even became a query
            raise self.transport.refused(reply)
        if reply.status >= 500:
            raise SubmitUnknown(f"the statement was sent and answered with {reply.status}")
        if reply.status != 200:
            raise self.transport.refused(reply)
        try:
            return self._checked(read(reply.body, Answer))
        except ProtocolBroken as garbage:
            raise SubmitUnknown(f"the statement was sent and the answer cannot be read: {garbage}") from garbage

    async def advance(self, uri: str, query_id: str, patience: float, *, briefly: bool = False) -> Answer:
        """What the query says next. An answer that cannot be read is asked for again: the last one is kept for that.

        Trino keeps an answer without news for up to a second; `briefly`: a tenth of that.
        """
        uri = checked(uri, self.origin, STATEMENTS)
        if briefly:
            uri += f"{'&' if '?' in uri else '?'}{BRIEFLY}"
        for _ in range(UNREADABLE_TRIES - 1):
            try:
                return await self._advance(uri, query_id, patience)
            except ProtocolBroken:
                continue
        return await self._advance(uri, query_id, patience)

    async def _advance(self, uri: str, query_id: str, patience: float) -> Answer:
        reply = await self.transport.repeat("GET", uri, patience=patience)
        if reply.status in (404, 410, 500):
            raise EngineLost(f"the engine no longer knows the query ({reply.status})", query_id=query_id)
        if reply.status != 200:
            raise self.transport.refused(reply)
        answer = self._checked(read(reply.body, Answer))
        if answer.id != query_id:
            raise ProtocolBroken(f"an answer to another query than {query_id}")
        return answer

    def _checked(self, answer: Answer) -> Answer:
        """An answer whose next address is to be trusted; where people are sent to look is dropped if it is not."""
        if not answer.id or len(answer.id) > 100 or not answer.id.replace("_", "").isalnum():
            raise ProtocolBroken("an answer without the id of a query")
        if answer.next_uri is not None:
            checked(answer.next_uri, self.origin, STATEMENTS)
        if answer.info_uri is not None and Origin.of(answer.info_uri) != self.origin:
            answer.info_uri = None
        return answer

    async def keep(self, uri: str) -> bool:
        """Tell Trino that somebody still wants the result; False when it does not take such calls."""
        reply = await self.transport.once("HEAD", checked(uri, self.origin, STATEMENTS))
        return reply.status not in (404, 405)

    async def cancel(self, uri: str | None, query_id: str, patience: float) -> None:
        """Stop a query. Done also when it had ended, or is not known."""
        ways = [checked(uri, self.origin, STATEMENTS)] if uri else []
        for way in [*ways, self._by_id(query_id)]:
            reply = await self.transport.repeat("DELETE", way, patience=patience)
            if reply.status < 300:
                return
        if reply.status not in (404, 410):
            raise self.transport.refused(reply)

    async def info(self, query_id: str, patience: float) -> QueryInfo | None:
        """How a query stands, by its id alone; None when it is not known (any more)."""
        uri = f"{self._by_id(query_id)}?pruned=true"
        reply = await self.transport.repeat("GET", uri, patience=patience, cap=INFO_CAP)
        if reply.status in (404, 410):
            return None
        if reply.status != 200:
            raise self.transport.refused(reply)
        found = read(reply.body, QueryInfo)
        if found.query_id != query_id:
            raise ProtocolBroken(f"an answer to another query than {query_id}")
        return found

    def _by_id(self, query_id: str) -> str:
        return f"{self.origin}/v1/query/{quote(query_id, safe='')}"

    async def close(self) -> None:
        """Give back the connections."""
        await self.transport.close()


def headers_of(query: Query, options: TrinoOptions, *, spooled: bool) -> dict[str, str]:
    """What a statement is sent with: in whose name, for which job, and what of the protocol we understand."""
    if options.role_required and not query.role:
        raise MissingRole
    session = dict(query.session)
    if query.max_seconds is not None:  # so that it ends even when nobody is left to cancel it
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
        raise QueryRefused("a session property has a name that is none")
    for name, value in sent.items():
        if not value.isascii() or not value.isprintable():
            raise QueryRefused(f"{name} cannot be sent: it may hold printable ASCII only")
    return sent


def source_of(query: Query, options: TrinoOptions) -> str:
    """The one thing of ours that Trino's own tables show of a query: who sent it, for which attempt."""
    return f"{options.source if query.source == SOURCE else query.source}/{query.tag}"


def role_text(role: str) -> str:
    """Always one role by its name: ALL, which Trino knows too, would be every role that our user has."""
    return quote(f"ROLE{{{role}}}", safe="")
