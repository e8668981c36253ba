"""The routes of a graph server.

GET  /health, /ready         without a secret, for probes
GET  /status, /schema, /metrics, /lock
POST /query                  JSON, CSV or Arrow by the header Accept
GET  /algorithms             the catalog                      POST   /algorithms/{name}[/check]    start a run, or check it
GET  /algorithms/runs[/{id}] runs                              DELETE /algorithms/runs/{id}[?tag=]  cancel
GET  /algorithms/runs/{id}/result[?limit=&order=]              its rows, in the formats of /query
"""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from holdfast.services.graphs.server import answers, query
from holdfast.services.graphs.server.algorithms.catalog import ALGORITHMS
from holdfast.services.graphs.server.algorithms.runs import Runs
from holdfast.services.graphs.server.graph import Graph
from holdfast.services.graphs.server.measures import Measures
from holdfast.services.graphs.server.query import Limits, Rows
from holdfast.services.graphs.server.refusals import Refusal, answer, invalid, not_authenticated, not_found, not_ready
from holdfast.services.graphs.server.status import ServerStatus

if TYPE_CHECKING:
    import pyarrow as pa

LONGEST_STREAM: Final = 1800.0  # seconds; then the connection is closed, and its memory is free
LARGEST_BODY: Final = 4 * 1024 * 1024
OPEN: Final = frozenset({"/health", "/ready"})
Handler = Callable[[Request], Awaitable[Response]]


class GraphServer:
    """Everything that the routes use. `graph` and `runs` are None until the load has ended."""

    def __init__(self, secret: str, status: ServerStatus, limits: Limits) -> None:
        self._secret, self.status, self.limits = f"Bearer {secret}".encode(), status, limits
        self.measures = Measures()
        self.graph: Graph | None = None
        self.runs: Runs | None = None
        self.note_query: Callable[[], None] = lambda: None

    def check(self, request: Request) -> None:
        """Refuse a request without the secret."""
        given = request.headers.get("authorization", "").encode()
        if request.url.path not in OPEN and not hmac.compare_digest(given, self._secret):
            raise not_authenticated()

    def open_graph(self) -> Graph:
        """The graph; `Refusal` while it is not ready."""
        if self.graph is None or self.status.phase != "ready":
            raise not_ready(self.status.phase, self.status.error)
        return self.graph

    def open_runs(self) -> Runs:
        self.open_graph()
        assert self.runs is not None
        return self.runs


def make_app(server: GraphServer) -> Starlette:
    """The web application of a graph server."""

    def guarded(handler: Handler) -> Handler:
        async def handle(request: Request) -> Response:
            server.check(request)
            return await handler(request)

        return handle

    routes = [
        *(Route(path, guarded(handler), methods=[method]) for method, path, handler in _Routes(server).table()),
    ]
    return Starlette(routes=routes, exception_handlers={Refusal: answer, HTTPException: _http_error})


def _http_error(_request: Request, error: Exception) -> Response:
    """An unknown path or method as a problem."""
    assert isinstance(error, HTTPException)
    refusal = not_found("There is no such path.") if error.status_code == 404 else Refusal(
        error.status_code, "REFUSED", str(error.detail), "Check the path and the method.", headers=error.headers
    )  # fmt: skip
    return JSONResponse(refusal.body, refusal.status, refusal.headers, media_type="application/problem+json")


class _Routes:
    """The handlers."""

    def __init__(self, server: GraphServer) -> None:
        self._server = server

    def table(self) -> list[tuple[str, str, Handler]]:
        return [
            ("GET", "/health", self.health),
            ("GET", "/ready", self.ready),
            ("GET", "/status", self.status),
            ("GET", "/schema", self.schema),
            ("GET", "/metrics", self.metrics),
            ("GET", "/lock", self.lock),
            ("POST", "/query", self.query),
            ("GET", "/algorithms", self.algorithms),
            ("GET", "/algorithms/runs", self.list_runs),
            ("GET", "/algorithms/runs/{id:int}", self.show_run),
            ("DELETE", "/algorithms/runs/{id:int}", self.cancel_run),
            ("GET", "/algorithms/runs/{id:int}/result", self.result),
            ("POST", "/algorithms/{name}", self.start_run),
            ("POST", "/algorithms/{name}/check", self.check_run),
        ]

    async def health(self, _: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def ready(self, _: Request) -> Response:
        status = self._server.status
        return JSONResponse({"phase": status.phase}, 200 if status.phase == "ready" else 503)

    async def status(self, _: Request) -> Response:
        active = self._server.runs.active if self._server.runs else None
        queries = self._server.graph.queries if self._server.graph else 0
        more = {"queries_running": queries, "algorithm_running": None if active is None else active.algorithm.name}
        return JSONResponse({**self._server.status.as_json(), **more})

    async def schema(self, _: Request) -> Response:
        return JSONResponse(self._server.open_graph().current.schema)

    async def metrics(self, _: Request) -> Response:
        measures, status = self._server.measures, self._server.status
        measures.nodes.set(status.rows("node"))
        measures.edges.set(status.rows("edge"))
        measures.load.set(status.load_seconds or 0)
        measures.running.set(self._server.graph.queries if self._server.graph else 0)
        return Response(generate_latest(measures.registry), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def lock(self, _: Request) -> Response:
        active = self._server.open_runs().active
        if active is None:
            return JSONResponse({"locked": False, "holder": None})
        holder = {"run_id": active.id, "algorithm": active.algorithm.name, "holder": active.holder}
        return JSONResponse({"locked": True, "holder": {**holder, "held_for_seconds": active.as_json()["seconds"]}})

    async def query(self, request: Request) -> Response:
        """Run Cypher. The query stops when the client goes away before its first row."""
        form = answers.format_of(request.headers.get("accept"))
        asked = query.asked(await _body(request), self._server.limits)
        graph = self._server.open_graph()
        self._server.note_query()
        began = time.monotonic()
        try:
            rows = await _unless_gone(request, query.run(graph, asked))
        except Refusal as refusal:
            self._server.measures.queries.labels(refusal.code).inc()
            raise
        measures = self._server.measures
        measures.queries.labels("ok").inc()
        measures.rows.inc(rows.table.num_rows)
        measures.seconds.observe(time.monotonic() - began)
        return _rows_response(rows, form)

    async def algorithms(self, _: Request) -> Response:
        return JSONResponse({"algorithms": [one.as_json() for one in ALGORITHMS.values()]})

    async def start_run(self, request: Request) -> Response:
        runs = self._server.open_runs()
        run = runs.start(request.path_params["name"], await _body(request))
        self._server.note_query()
        self._server.measures.runs.labels(run.algorithm.name).inc()
        return JSONResponse(run.as_json(), 202, {"Location": f"/algorithms/runs/{run.id}"})

    async def check_run(self, request: Request) -> Response:
        """Whether a run could be started, apart from the lock; nothing is started."""
        run = self._server.open_runs().check(request.path_params["name"], await _body(request))
        return JSONResponse({"algorithm": run.algorithm.name, "parameters": dict(run.parameters), "nodes": run.selection.count})

    async def list_runs(self, _: Request) -> Response:
        return JSONResponse({"runs": [run.as_json() for run in self._server.open_runs().list()]})

    async def show_run(self, request: Request) -> Response:
        return JSONResponse(self._server.open_runs().get(request.path_params["id"]).as_json())

    async def cancel_run(self, request: Request) -> Response:
        """Cancel a run. With `tag` only the run of that attempt, and its start is refused from now on."""
        runs, number, tag = self._server.open_runs(), request.path_params["id"], request.query_params.get("tag")
        run = await runs.cancel(number) if tag is None else await runs.stop(number, tag)
        if run is None:
            raise not_found(f"There is no run {number} with this tag.")
        return JSONResponse(run.as_json())

    async def result(self, request: Request) -> Response:
        """The rows of a run; with `order` sorted by its first value column, with `limit` only so many."""
        form = answers.format_of(request.headers.get("accept"))
        run = self._server.open_runs().get(request.path_params["id"])
        if run.result is None:
            raise Refusal(409, "NO_RESULT", f"Run {run.id} is {run.state} and has no result.", "Wait for it, or run it again.")
        table = _ordered(run.result, next(iter(run.algorithm.columns)), request.query_params)
        types = [str(field.type).upper() for field in table.schema]
        made = answers.pieces(table, form, types=types, truncated=table.num_rows < run.result.num_rows)
        return StreamingResponse(_slowly(made, lambda: None), media_type=answers.MEDIA[form])


def _rows_response(rows: Rows, form: answers.Format) -> Response:
    """Stream the rows. They are freed when the last one is sent or the client goes away."""
    members = {"execution_time_ms": round(rows.seconds * 1000, 3)}
    made = answers.pieces(rows.table, form, types=rows.types, truncated=rows.truncated, **members)
    if rows.table.num_rows <= answers.LINES:  # small: one message, and the session is free at once
        content = b"".join(made)
        rows.close()
        return Response(content, media_type=answers.MEDIA[form])
    return _Streamed(made, rows.close, media_type=answers.MEDIA[form])


class _Streamed(StreamingResponse):
    """A stream whose end runs also if the response never begins, or if the client does not read on."""

    def __init__(self, made: Iterator[bytes], close: Callable[[], None], media_type: str) -> None:
        super().__init__(_slowly(made, lambda: None), media_type=media_type)
        self._close = close

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            async with asyncio.timeout(LONGEST_STREAM):
                await super().__call__(scope, receive, send)
        finally:
            self._close()


async def _slowly(made: Iterator[bytes], close: Callable[[], None]) -> AsyncIterator[bytes]:
    """The pieces, one at a time, with a turn for other requests after each."""
    try:
        for piece in made:
            yield piece
            await asyncio.sleep(0)
    finally:
        close()


async def _unless_gone(request: Request, work: Any) -> Rows:
    """The result of the work, which is cancelled if the client closes the connection."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()  # type: ignore[no-any-return]
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task})


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        continue


async def _body(request: Request) -> Any:
    """The JSON in a request's body; `Refusal` if it is too large or not JSON."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > LARGEST_BODY:
            raise Refusal(413, "BODY_TOO_LARGE", f"The body is larger than {LARGEST_BODY:,} bytes.", "Send less.")
        parts.append(part)
    try:
        return json.loads(b"".join(parts) or b"{}")
    except (ValueError, RecursionError) as error:
        raise invalid(f"the body is not JSON: {error}") from None


def _ordered(table: pa.Table, column: str, params: Any) -> pa.Table:
    """The table as `order` and `limit` say. Pure."""
    order, limit = params.get("order"), params.get("limit")
    if order not in (None, "asc", "desc"):
        raise invalid(f"`order` must be asc or desc, not {order!r}")
    if limit is not None and not (limit.isdecimal() and 1 <= int(limit) <= 10**9):
        raise invalid(f"`limit` must be a whole number from 1, not {limit!r}")
    if order is not None:
        table = table.sort_by([(column, f"{order}ending")])
    return table if limit is None else table.slice(0, int(limit))
