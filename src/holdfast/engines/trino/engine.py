"""Trino as an engine (`port.py`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from holdfast.engines.port import (
    Capabilities,
    Column,
    EngineLost,
    EngineUnavailable,
    Entry,
    Phase,
    Progress,
    ProtocolBroken,
    Query,
    QueryStatus,
    SubmitTimeout,
    SubmitUnknown,
)
from holdfast.engines.trino import CAPABILITIES, sql
from holdfast.engines.trino.backoff import backoff
from holdfast.engines.trino.errors import error_of
from holdfast.engines.trino.messages import Answer, QueryInfo
from holdfast.engines.trino.options import TrinoOptions
from holdfast.engines.trino.rows import TrinoRows
from holdfast.engines.trino.segments import Segments
from holdfast.engines.trino.statement import StatementClient, headers_of, source_of
from holdfast.jobs.model import Json

MAX_SUBMITS = 3  # of a read-only query; before each one, the previous one is known not to run
MOVING = frozenset({"PLANNING", "STARTING", "FINISHING", "FINISHED"})
CATALOG_TAG = "holdfast-catalogs"
FIND_SECONDS = 60.0


class TrinoEngine:
    """One Trino. It sends no request until it is used."""

    name = "trino"

    def __init__(self, options: TrinoOptions) -> None:
        self._options = options
        self.capabilities: Capabilities = replace(CAPABILITIES, needs_role=options.role_required)
        self._client = StatementClient(options)
        self._segments = Segments(self._client.transport, options)
        self._decoders = ThreadPoolExecutor(options.decoders, "holdfast-trino")
        self._unknown: set[str] = set()  # tags of read-only queries that may have been accepted although the submit failed

    async def describe(self, query: Query) -> tuple[Column, ...]:
        """Return the columns of a query. Trino analyses and plans it, but reads no rows."""
        async with self.stream(replace(query, sql=sql.describe_sql(query.sql))) as rows:
            return rows.columns

    @asynccontextmanager
    async def stream(self, query: Query, *, spooled: bool = True) -> AsyncIterator[TrinoRows]:
        """Run a query and read its rows. Leaving the block early cancels it."""
        rows = TrinoRows(self._client, self._segments, self._decoders, self._options)
        first = await self._submit_read(query, spooled)
        try:
            await rows.open(first, query.max_seconds)
            yield rows
        finally:
            await rows.close()

    async def _submit_read(self, query: Query, spooled: bool) -> Answer:
        """Submit a read-only query. If it is unknown whether Trino accepted it, find it by its tag and cancel it before the
        next try.

        A timeout is not retried here: the caller decides how long a cold start may take, and calls again.
        """
        headers = headers_of(query, self._options, spooled=spooled and bool(self._options.encodings))
        for tries in range(MAX_SUBMITS):
            await self._cancel_unknown(query)
            try:
                return await self._client.submit(query.sql, headers)
            except SubmitUnknown as unknown:
                self._unknown.add(query.tag)
                if isinstance(unknown, SubmitTimeout) or tries == MAX_SUBMITS - 1:
                    raise
            except EngineUnavailable as busy:
                delay = busy.detail.get("retry_after")
                if delay is None or delay > self._options.poll_retry_seconds or tries == MAX_SUBMITS - 1:
                    raise
                await asyncio.sleep(max(delay, backoff(tries)))
        raise AssertionError("every try returns or raises")

    async def _cancel_unknown(self, query: Query) -> None:
        """Cancel the query that an earlier submit with this tag may have started. Raises if Trino cannot be asked."""
        if query.tag not in self._unknown:
            return
        found = await self.find(query.tag, query)
        if found is not None:
            await self.cancel(found, query)
        self._unknown.discard(query.tag)

    async def submit(self, query: Query) -> Json:
        """Submit a query. Trino starts it at the first poll, so a submitted query that is never polled does not run."""
        answer = await self._client.submit(query.sql, headers_of(query, self._options, spooled=False))
        if answer.error is not None:
            raise error_of(answer.error, answer.id)
        return {"query_id": answer.id, "next_uri": answer.next_uri, "info_uri": answer.info_uri, "is_new": True}

    async def poll(self, handle: Json, query: Query) -> QueryStatus:
        """Request one response. With the same handle the request can be repeated, for example by another worker.

        The first poll waits up to one second for Trino to analyse the statement. Later polls wait 100 ms, because a worker
        polls many queries.
        """
        query_id, next_uri = ids_of(handle)
        if next_uri is None:
            return await self._poll_by_id(handle, query_id)
        is_new = isinstance(handle, dict) and bool(handle.get("is_new"))
        try:
            answer = await self._client.advance(next_uri, query_id, self._options.poll_retry_seconds, briefly=not is_new)
        except EngineLost:  # Trino no longer knows the address, but may still know the query
            return await self._poll_by_id(handle, query_id)
        return status_of(answer, handle)

    async def _poll_by_id(self, handle: Json, query_id: str) -> QueryStatus:
        info = await self._client.info(query_id, self._options.poll_retry_seconds)
        return status_by_id(info, handle)

    async def cancel(self, handle: Json, query: Query) -> None:
        """Cancel a query. No error if it has ended."""
        query_id, next_uri = ids_of(handle)
        await self._client.cancel(next_uri, query_id, self._options.poll_retry_seconds)

    async def find(self, tag: str, query: Query) -> Json | None:
        """Find a query by its tag, while it runs and for some minutes after. Its handle has no nextUri, so it can only be
        cancelled and polled by its id."""
        source = source_of(replace(query, tag=tag), self._options)
        lookup = replace(query, sql=sql.find_sql(source), tag=f"find-{tag}", session={})
        found = [row async for row in self._small(replace(lookup, max_seconds=FIND_SECONDS))]
        return {"query_id": found[0][0], "next_uri": None, "info_uri": None} if found else None

    def unload_sql(self, query: Query, location: str) -> str:
        """Unload the query with Starburst's table function."""
        return sql.unload_sql(query, location, self._options)

    def ctas_sql(self, query: Query, location: str) -> str:
        """Create a table at this location, named after the query's tag. Works with every Trino."""
        return sql.ctas_sql(query, location, self._options)

    def forget_sql(self, query: Query) -> str:
        """Remove that table and keep its files."""
        return sql.forget_sql(query, self._options)

    async def entries(self, catalogs: tuple[str, ...] | None = None) -> AsyncIterator[list[Entry]]:
        """Read the tables and columns of the catalogs, with one statement per catalog."""
        if catalogs is None:
            names = [row[0] async for row in self._small(Query(sql.CATALOGS, CATALOG_TAG))]
            catalogs = tuple(one for one in names if one not in sql.SYSTEM_CATALOGS)
        for catalog in catalogs:
            rows = [row async for row in self._small(Query(sql.columns_sql(catalog), CATALOG_TAG))]
            yield [Entry(catalog, *row) for row in rows] or [Entry(catalog)]

    async def _small(self, query: Query) -> AsyncIterator[tuple[Any, ...]]:
        """Read the rows of a statement that this client writes itself. It needs no role."""
        options = replace(self._options, role_required=False)
        first = await self._client.submit(query.sql, headers_of(query, options, spooled=False))
        rows = TrinoRows(self._client, self._segments, self._decoders, options)
        try:
            await rows.open(first, query.max_seconds)
            async for batch in rows.batches():
                for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    yield row
        finally:
            await rows.close()

    async def close(self) -> None:
        """Close the connections and threads."""
        await self._client.close()
        self._decoders.shutdown(wait=False, cancel_futures=True)


def ids_of(handle: Json) -> tuple[str, str | None]:
    """Return the query id and the nextUri of a handle."""
    if isinstance(handle, dict):
        query_id, next_uri = handle.get("query_id"), handle.get("next_uri")
        if isinstance(query_id, str) and query_id and (next_uri is None or isinstance(next_uri, str)):
            return query_id, next_uri
    raise ProtocolBroken("the handle has no query id")


def status_of(answer: Answer, handle: Json) -> QueryStatus:
    """The status in a response. A query has ended when the response has no nextUri, whatever state it reports."""
    before = handle if isinstance(handle, dict) else {}
    rows = answer.update_count if answer.update_count is not None else before.get("rows_written")
    after: dict[str, Any] = {**before, "next_uri": answer.next_uri, "rows_written": rows, "is_new": False}
    progress = answer.stats.progress()
    if answer.error is not None:
        return QueryStatus(Phase.FAILED, {**after, "next_uri": None}, progress, error_of(answer.error, answer.id))
    if answer.next_uri is None:
        return QueryStatus(Phase.FINISHED, after, progress, rows_written=rows)
    return QueryStatus(Phase.RUNNING, after, progress, poll_soon=answer.has_data or progress.state in MOVING)


def status_by_id(info: QueryInfo | None, handle: Json) -> QueryStatus:
    """The status of a query that was requested by its id."""
    if info is None:
        gone = EngineLost("the engine does not know the query; it was restarted, or it dropped the query")
        return QueryStatus(Phase.GONE, handle, Progress("GONE"), gone)
    percent = info.query_stats.progress_percentage
    progress = Progress(info.state[:40], None if percent is None else percent / 100)
    if info.state == "FAILED":
        return QueryStatus(Phase.FAILED, handle, progress, error_of(info.failure(), info.query_id))
    if info.state == "FINISHED":
        return QueryStatus(Phase.FINISHED, handle, progress, rows_written=info.query_stats.written_positions)
    return QueryStatus(Phase.RUNNING, handle, progress, is_detached=True)  # Trino waits for requests of its nextUri
