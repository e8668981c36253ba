"""A server that speaks Trino's statement protocol on loopback, and misbehaves on command.

It keeps the rules that a client can come to depend on: a statement begins when its first nextUri is asked for, only the
last answer can be asked for again, the end is an answer without nextUri, and a query that was let go is 410. Results are
canned, or come from DuckDB.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import duckdb
import pyarrow as pa
import sqlglot

FIND = re.compile(r"FROM system\.runtime\.queries WHERE source = '((?:[^']|'')*)'")
CODECS = {"json+zstd": "zstd", "json+lz4": "lz4_raw", "json": None}


def sig(raw: str, *arguments: Any) -> dict[str, Any]:
    """A type signature: numbers and signatures are its arguments."""
    kinds = [{"kind": "LONG", "value": one} if isinstance(one, int) else {"kind": "TYPE", "value": one} for one in arguments]
    return {"rawType": raw, "arguments": kinds}


def row_sig(**fields: Any) -> dict[str, Any]:
    """The signature of a row."""
    named = [
        {"kind": "NAMED_TYPE", "value": {"fieldName": {"name": name, "delimited": False}, "typeSignature": one}}
        for name, one in fields.items()
    ]
    return {"rawType": "row", "arguments": named}


@dataclass
class Result:
    """What a statement gives. `columns` are (name, signature)."""

    columns: list[tuple[str, dict[str, Any]]]
    rows: list[list[Any]]
    update_count: int | None = None


class Refuse(Exception):
    """Raised by a backend: the query fails with this error."""

    def __init__(self, name: str, kind: str = "USER_ERROR", message: str = "no") -> None:
        super().__init__(message)
        self.error = {"message": message, "errorCode": 1, "errorName": name, "errorType": kind}


@dataclass
class Request:
    """What came in."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def sql(self) -> str:
        return self.body.decode()


@dataclass
class Fault:
    """An answer out of order: raw bytes to send, or a function that makes them; None: hang up without a word."""

    when: Callable[[Request], bool]
    reply: bytes | Callable[[Request], bytes | Awaitable[bytes | None] | None] | None
    times: int = 1


@dataclass
class Running:
    """One query."""

    id: str
    slug: str
    request: Request
    state: str = "QUEUED"
    began: bool = False
    token: int = 0
    cached: tuple[int, bytes] | None = None
    result: Result | None = None
    error: dict[str, Any] | None = None
    pages: list[Any] = field(default_factory=list)
    encoding: str | None = None
    may_end: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def source(self) -> str:
        return self.request.headers.get("x-trino-source", "")


Backend = Callable[[str], Result]


class TrinoServer:
    """One coordinator."""

    def __init__(self, backend: Backend | dict[str, Result] | None = None, *, page_rows: int = 1000) -> None:
        self.backend: Backend = backend if callable(backend) else canned(backend or {})
        self.page_rows = page_rows
        self.spooling: tuple[str, ...] = ()  # encodings that it would spool in
        self.segment_base: str | None = None  # another origin, as of an object store
        self.hold = False  # queries run until `may_end` is set
        self.queries: dict[str, Running] = {}
        self.requests: list[Request] = []
        self.faults: list[Fault] = []
        self.segments: dict[str, bytes] = {}
        self.acknowledged: list[str] = []
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> TrinoServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.close()
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def misbehave(self, when: str | Callable[[Request], bool], reply: Any, times: int = 1) -> None:
        """Give this answer to the next `times` requests whose "METHOD path" begins like that."""
        matches = when if callable(when) else lambda request: f"{request.method} {request.path}".startswith(when)
        self.faults.append(Fault(matches, reply, times))

    def restart(self) -> None:
        """Come back knowing no query."""
        self.queries.clear()

    def sent(self, begins: str) -> list[Request]:
        """The requests whose "METHOD path" begins like that."""
        return [one for one in self.requests if f"{one.method} {one.path}".startswith(begins)]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while (request := await read_request(reader)) is not None:
                self.requests.append(request)
                answer = await self._answer(request)
                if answer is None:
                    break
                writer.write(answer)
                await writer.drain()
                if b"Connection: close" in answer[:200]:
                    break
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, request: Request) -> bytes | None:
        for fault in self.faults:
            if fault.times > 0 and fault.when(request):
                fault.times -= 1
                made = fault.reply(request) if callable(fault.reply) else fault.reply
                return await made if isinstance(made, Awaitable) else made
        return await self.behave(request)

    async def behave(self, request: Request) -> bytes:
        """What a good Trino answers."""
        match request.method, request.path.partition("?")[0].strip("/").split("/"):
            case "POST", ["v1", "statement"]:
                return self._submit(request)
            case method, ["v1", "statement", phase, id_, slug, token] if phase in ("queued", "executing"):
                query = self.queries.get(id_)
                if query is None or query.slug != slug:
                    return reply(404)
                if method == "DELETE":
                    return self._cancel(query)
                return reply(200) if method == "HEAD" else await self._advance(query, int(token))
            case method, ["v1", "query", id_]:
                query = self.queries.get(id_)
                if query is None or not query.began:
                    return reply(410)
                return self._cancel(query) if method == "DELETE" else json_reply(self._info(query))
            case "GET", ["v1", "spooled", "download", key]:
                return reply(200, self.segments[key]) if key in self.segments else reply(404)
            case "GET", ["v1", "spooled", "ack", key]:
                self.acknowledged.append(key)
                self.segments.pop(key, None)
                return reply(200)
        return reply(404)

    def _submit(self, request: Request) -> bytes:
        id_ = f"20261116_000000_{len(self.queries):05d}_{secrets.token_hex(3)}"
        query = self.queries[id_] = Running(id_, secrets.token_hex(8), request)
        if not self.hold or FIND.search(request.sql):
            query.may_end.set()
        offered = [one.strip() for one in request.headers.get("x-trino-query-data-encoding", "").split(",")]
        query.encoding = next((one for one in offered if one in self.spooling), None)
        return json_reply(self._page(query, "queued", 1))

    def _page(self, query: Running, phase: str, token: int | None, **more: Any) -> dict[str, Any]:
        page = {"id": query.id, "infoUri": f"{self.url}/ui/query.html?{query.id}", "stats": self._stats(query), **more}
        if token is not None:
            page["nextUri"] = f"{self.url}/v1/statement/{phase}/{query.id}/{query.slug}/{token}"
        return page

    @staticmethod
    def _stats(query: Running) -> dict[str, Any]:
        rows = len(query.result.rows) if query.result else 0
        return {"state": query.state, "queued": query.state == "QUEUED", "processedRows": rows, "progressPercentage": 50.0}

    async def _advance(self, query: Running, token: int) -> bytes:
        if query.cached is not None and query.cached[0] == token:
            return query.cached[1]
        if token != query.token + 1:
            return reply(410)
        if not query.began:
            self._begin(query)
        answer = json_reply(await self._next(query, token))
        query.token, query.cached = token, (token, answer)
        return answer

    def _begin(self, query: Running) -> None:
        query.began, query.state = True, "RUNNING"
        try:
            found = FIND.search(query.request.sql)
            query.result = self._find(found[1].replace("''", "'")) if found else self.backend(query.request.sql)
        except Refuse as refused:
            query.error, query.state = refused.error, "FAILED"
            return
        rows = query.result.rows
        chunks = [rows[at : at + self.page_rows] for at in range(0, len(rows), self.page_rows)]
        query.pages = [self._spool(query, chunk, index) for index, chunk in enumerate(chunks)] if query.encoding else chunks

    async def _next(self, query: Running, token: int) -> dict[str, Any]:
        if query.error is not None:
            return self._page(query, "executing", None, error=query.error)
        assert query.result is not None
        columns = [{"name": n, "type": type_text(s), "typeSignature": s} for n, s in query.result.columns]
        if query.pages and (query.may_end.is_set() or len(query.pages) > 1):
            return self._page(query, "executing", token + 1, columns=columns, data=query.pages.pop(0))
        if not query.may_end.is_set():
            return self._page(query, "executing", token + 1, columns=columns)
        query.state = "FINISHED"
        more = (
            {}
            if query.result.update_count is None
            else {"updateType": "CREATE TABLE", "updateCount": query.result.update_count}
        )
        return self._page(query, "executing", None, columns=columns, **more)

    def _spool(self, query: Running, rows: list[list[Any]], index: int) -> dict[str, Any]:
        """A page as segments: the first row in line and not compressed, the rest in two fetched parts."""
        assert query.encoding is not None
        codec, half = CODECS[query.encoding], len(rows) // 2 + 1
        made = []
        for part in filter(None, (rows[:1], rows[1:half], rows[half:])):
            text = json.dumps(part, separators=(",", ":"), ensure_ascii=False).encode()
            metadata: dict[str, Any] = {"rowsCount": len(part), "segmentSize": len(text), "rowOffset": index}
            if not made:
                made.append({"type": "inline", "data": base64.b64encode(text).decode(), "metadata": metadata})
                continue
            if codec is not None:
                packed = pa.compress(text, codec=codec, asbytes=True)
                metadata |= {"uncompressedSize": len(text), "segmentSize": len(packed)}
                text = packed
            key = secrets.token_hex(8)
            self.segments[key] = text
            uri, ack = f"{self.segment_base or self.url}/v1/spooled/download/{key}", f"{self.url}/v1/spooled/ack/{key}"
            headers = {"x-store-key": ["s3cr3t"]}
            made.append({"type": "spooled", "uri": uri, "ackUri": ack, "headers": headers, "metadata": metadata})
        return {"encoding": query.encoding, "segments": made}

    def _cancel(self, query: Running) -> bytes:
        if query.state not in ("FINISHED", "FAILED"):
            query.state = "FAILED"
            query.error = {"message": "was canceled", "errorCode": 3, "errorName": "USER_CANCELED", "errorType": "USER_ERROR"}
            query.may_end.set()
        return reply(204)

    def _find(self, source: str) -> Result:
        found = [[one.id] for one in reversed(self.queries.values()) if one.began and one.source == source]
        return Result([("query_id", sig("varchar", 100))], found[:1])

    @staticmethod
    def _info(query: Running) -> dict[str, Any]:
        info: dict[str, Any] = {"queryId": query.id, "state": query.state, "queryStats": {}}
        if query.result is not None and query.result.update_count is not None:
            info["queryStats"]["writtenPositions"] = query.result.update_count
        if query.error is not None:
            error = query.error
            info["errorCode"] = {"code": error["errorCode"], "name": error["errorName"], "type": error["errorType"]}
            info["failureInfo"] = {"message": error["message"]}
        return info


async def read_request(reader: asyncio.StreamReader) -> Request | None:
    """The next request of a connection, or None at its end."""
    head = await reader.readuntil(b"\r\n\r\n") if not reader.at_eof() else b""
    if not head:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Request(method, path, headers, body)


def reply(status: int, body: bytes = b"", **headers: str) -> bytes:
    """An answer in bytes; header names with underscores for dashes."""
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def json_reply(body: Any, **headers: str) -> bytes:
    return reply(
        200, json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode(), Content_Type="application/json", **headers
    )


def type_text(signature: dict[str, Any]) -> str:
    """A type as Trino prints it, near enough."""
    arguments = [one["value"] for one in signature["arguments"]]
    if signature["rawType"] == "row":
        return "row(" + ", ".join(f"{a['fieldName']['name']} {type_text(a['typeSignature'])}" for a in arguments) + ")"
    inner = ", ".join(type_text(one) if isinstance(one, dict) else str(one) for one in arguments)
    return f"{signature['rawType']}({inner})" if inner else signature["rawType"]


def canned(results: dict[str, Result]) -> Backend:
    """A backend that knows these statements and no other."""

    def answer(sql: str) -> Result:
        if sql not in results:
            raise Refuse("TABLE_NOT_FOUND", message=f"no result is canned for {sql}")
        return results[sql]

    return answer


def over_duckdb(connection: duckdb.DuckDBPyConnection) -> Backend:
    """A backend that runs statements in DuckDB: plain types, as far as tests need them."""

    def answer(sql: str) -> Result:
        try:
            table = connection.cursor().sql(sqlglot.transpile(sql, read="trino", write="duckdb")[0]).to_arrow_table()
        except (duckdb.Error, sqlglot.errors.SqlglotError) as wrong:
            raise Refuse("SYNTAX_ERROR", message=str(wrong)) from wrong
        columns = [(one.name, arrow_sig(one.type)) for one in table.schema]
        rows = [[plain(value) for value in row] for row in zip(*(one.to_pylist() for one in table.columns), strict=True)]
        return Result(columns, rows)

    return answer


def arrow_sig(type_: pa.DataType) -> dict[str, Any]:
    """The signature of a column that DuckDB gave."""
    names = {pa.bool_(): "boolean", pa.int8(): "tinyint", pa.int16(): "smallint", pa.int32(): "integer", pa.int64(): "bigint"}
    names |= {pa.float32(): "real", pa.float64(): "double", pa.date32(): "date"}
    if pa.types.is_decimal(type_):
        return sig("decimal", type_.precision, type_.scale)
    if pa.types.is_timestamp(type_):
        return sig("timestamp", 6)
    return sig(names[type_]) if type_ in names else sig("varchar", 2147483647)


def plain(value: Any) -> Any:
    """A value as Trino writes it into JSON."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
    if hasattr(value, "hour"):
        return value.isoformat(sep=" ", timespec="microseconds")
    return str(value)
