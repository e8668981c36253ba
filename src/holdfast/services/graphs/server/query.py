"""Run one query: check the statement, wait for a thread, stop it in time, and return its rows as an Arrow table.

The timeout counts from the arrival of the request, so it includes the time in the queue. The engine stops the statement. A
caller who goes away stops it, too.

Memory: an engine keeps a result in its buffer pool, in a compact form that may be much smaller than its rows. The rows in Arrow
are counted against a budget from their conversion until the last one is sent, so many slow readers do not exhaust the memory:
a result waits until the budget has room for it. One result alone may be larger than the budget; `max_rows` limits it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from holdfast.services.graphs.server import statement
from holdfast.services.graphs.server.engines.port import EngineError, Interrupted, PoolFull, ReadOnlyDatabase, Result
from holdfast.services.graphs.server.graph import INTERRUPT_EVERY, Borrowed, Busy, Graph
from holdfast.services.graphs.server.refusals import Refusal, invalid

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS: Final = 65_536
VALUE_BYTES: Final = 16  # of one value in Arrow, estimated before it is made
LARGEST_INT: Final = 2**63 - 1
MANY: Final = 500_000  # rows
DEEPEST: Final = 20  # nesting of a parameter


@dataclass(frozen=True, slots=True)
class Limits:
    """What a query gets if it asks for nothing, and what it may ask for."""

    seconds: float
    longest_seconds: float
    rows: int
    most_rows: int


@dataclass(frozen=True, slots=True)
class Query:
    """A checked query."""

    cypher: str
    parameters: Mapping[str, Any]
    seconds: float
    rows: int


class Rows:
    """The rows of a query. They hold a session and memory until `close`."""

    def __init__(self, result: Result, table: pa.Table, close: Callable[[], None], *, truncated: bool, seconds: float) -> None:
        self.table, self.truncated, self.seconds = table, truncated, seconds
        self.columns, self.types = result.columns, result.types
        self._close: Callable[[], None] | None = close

    def close(self) -> None:
        """Free their memory and their session. Further calls do nothing."""
        if self._close is not None:
            self._close()
            self._close = None
            del self.table


def asked(body: Any, limits: Limits) -> Query:
    """The query in a request's body; `Refusal` names what is wrong. Pure."""
    if not isinstance(body, dict) or not isinstance(body.get("query"), str):
        raise invalid('the body must be a JSON object with "query": a Cypher statement')
    unknown = sorted(set(body) - {"query", "parameters", "timeout_ms", "max_rows"})
    if unknown:
        raise invalid(f"the field {unknown[0]!r} is unknown; there are: query, parameters, timeout_ms, max_rows")
    parameters = body.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise invalid("`parameters` must be a JSON object: the values by name")
    for name, value in parameters.items():
        _check_value(name, value)
    milliseconds = _number(body, "timeout_ms", round(limits.seconds * 1000), round(limits.longest_seconds * 1000))
    rows = _number(body, "max_rows", limits.rows, limits.most_rows)
    try:
        cypher = statement.checked(body["query"], parameters)
    except statement.StatementRefused as error:
        raise _refused(error) from None
    return Query(cypher, parameters, milliseconds / 1000, rows)


async def run(graph: Graph, query: Query) -> Rows:
    """The rows of a query; `Refusal` if it fails. If the caller is cancelled, the statement is interrupted."""
    deadline = time.monotonic() + query.seconds
    running = _Running(graph, query, deadline)
    task = asyncio.ensure_future(graph.run(running.execute))
    try:
        return await asyncio.shield(task)
    except Busy:
        raise Refusal(
            503, "BUSY", "Too many queries run, or their results use all memory.", "Try again.", headers={"Retry-After": "1"}
        ) from None
    except EngineError as error:
        raise _failure(error, query, is_late=time.monotonic() >= deadline) from None
    except asyncio.CancelledError:
        await asyncio.shield(_stop(running, task))
        raise


async def _stop(running: _Running, task: asyncio.Future[Rows]) -> None:
    """Interrupt a statement whose caller has gone away, until it has ended."""
    running.is_cancelled = True
    while not task.done():
        running.interrupt()
        await asyncio.wait({task}, timeout=INTERRUPT_EVERY)
    with suppress(EngineError, Busy, Refusal, asyncio.CancelledError):
        task.result().close()


class _Running:
    """One execution in a query thread."""

    def __init__(self, graph: Graph, query: Query, deadline: float) -> None:
        self._graph, self._query, self._deadline = graph, query, deadline
        self._borrowed: Borrowed | None = None
        self._guard = threading.Lock()  # an interrupt must not reach the session's next user
        self.is_cancelled = False

    def interrupt(self) -> None:
        """Stop the statement, if it runs."""
        with self._guard:
            if self._borrowed is not None:
                self._borrowed.session.interrupt()

    def execute(self) -> Rows:
        """Run it. Called in a query thread."""
        began = time.monotonic()
        if self.is_cancelled or began >= self._deadline:
            raise Interrupted("the query did not start in time")
        borrowed = self._graph.borrow()
        result: Result | None = None
        taken = 0
        try:
            result = self._result(borrowed)
            taken = self._graph.budget.take(result.rows * len(result.columns) * VALUE_BYTES, self._deadline)
            table = self._table(result)
            truncated = table.num_rows > self._query.rows
            kept = table.slice(0, self._query.rows) if truncated else table
            close = partial(self._close, borrowed, result, taken)
            return Rows(result, kept, close, truncated=truncated, seconds=time.monotonic() - began)
        except BaseException:
            self._close(borrowed, result, taken)
            raise

    def _close(self, borrowed: Borrowed, result: Result | None, taken: int) -> None:
        if result is not None:
            result.close()
        borrowed.give_back()
        self._graph.budget.give_back(taken)

    def _result(self, borrowed: Borrowed) -> Result:
        """The result of the statement with a LIMIT. A high LIMIT costs a fifth of the time and is rarely reached, so the
        statement runs without it first, and again only if there are more rows, or more than the buffer pool can hold."""
        limited = statement.limited(self._query.cypher, self._query.rows + 1)
        if self._query.rows < MANY or limited == self._query.cypher:
            return self._run(borrowed, limited)
        try:
            result = self._run(borrowed, self._query.cypher)
        except PoolFull:
            return self._run(borrowed, limited)
        if result.rows <= self._query.rows:
            return result
        result.close()
        return self._run(borrowed, limited)

    def _run(self, borrowed: Borrowed, cypher: str) -> Result:
        self._borrowed = borrowed
        try:
            left = max(0.001, self._deadline - time.monotonic())
            return borrowed.session.run(cypher, self._query.parameters, seconds=left)
        finally:
            with self._guard:
                self._borrowed = None

    def _table(self, result: Result) -> pa.Table:
        """All rows in Arrow. A result with many more rows than asked for would need the memory of all of them."""
        if result.rows > self._query.rows + 1:
            raise Refusal(
                413, "RESULT_TOO_LARGE", f"The result has {result.rows:,} rows, and max_rows is {self._query.rows:,}.",
                "Lower the LIMIT of the query, or raise max_rows.",
            )  # fmt: skip
        return result.arrow(BATCH_ROWS)


def _failure(error: EngineError, query: Query, *, is_late: bool) -> Refusal:
    """An error of the engine as an answer. Pure."""
    if isinstance(error, Interrupted) and is_late:
        return Refusal(
            408, "QUERY_TIMEOUT", f"The query was stopped after {query.seconds:g} s.",
            "Make the query smaller, or raise timeout_ms.", timeout_ms=round(query.seconds * 1000),
        )  # fmt: skip
    if isinstance(error, Interrupted):
        return Refusal(503, "INTERRUPTED", "The query was stopped because the server stops.", "Try again later.")
    if isinstance(error, ReadOnlyDatabase):
        return _read_only("The graph is read-only.")
    if isinstance(error, PoolFull):
        return Refusal(
            413, "QUERY_TOO_LARGE", f"The query needs more memory than the instance has: {error}",
            "Return fewer rows or shorter paths, or give the instance more memory.",
        )  # fmt: skip
    return Refusal(400, "QUERY_INVALID", str(error), "Fix the query; /schema lists labels, types and properties.")


def _refused(error: statement.StatementRefused) -> Refusal:
    if error.is_write:
        return _read_only(str(error))
    return Refusal(400, "QUERY_REFUSED", str(error), "Send one reading Cypher statement with its parameters.")


def _read_only(detail: str) -> Refusal:
    return Refusal(400, "READ_ONLY", detail, "Change the mapping or its source tables, and create a new instance.")


def _number(body: Mapping[str, Any], name: str, default: int, most: int) -> int:
    value = body.get(name)
    if value is None:
        return min(default, most)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise invalid(f"`{name}` must be a whole number from 1 to {most:,}, not {value!r}")
    return value


def _check_value(name: str, value: Any, depth: int = 0) -> None:
    """Refuse values that the engines cannot convert. Pure."""
    if depth > DEEPEST:
        raise invalid(f"the parameter {name!r} is nested more than {DEEPEST} levels deep")
    if isinstance(value, int) and not -LARGEST_INT - 1 <= value <= LARGEST_INT:
        raise invalid(f"the parameter {name!r} has the number {value}, which does not fit into 64 bits; send it as text")
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_value(name, one, depth + 1)
