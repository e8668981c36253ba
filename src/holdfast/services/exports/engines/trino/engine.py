"""Trino behind the port of engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from holdfast.jobs.model import Json
from holdfast.services.exports.engines.port import (
    Column,
    EngineLost,
    EngineUnavailable,
    Entry,
    Look,
    Phase,
    Progress,
    ProtocolBroken,
    Query,
    SubmitTimeout,
    SubmitUnknown,
)
from holdfast.services.exports.engines.trino import wording
from holdfast.services.exports.engines.trino.messages import Answer, QueryInfo
from holdfast.services.exports.engines.trino.options import TrinoOptions
from holdfast.services.exports.engines.trino.pauses import backoff
from holdfast.services.exports.engines.trino.refusal import refusal
from holdfast.services.exports.engines.trino.rows import TrinoRows
from holdfast.services.exports.engines.trino.segments import Segments
from holdfast.services.exports.engines.trino.statement import StatementClient, headers_of, source_of
from holdfast.settings import Settings

SUBMITS = 3  # of a query that only reads, each after the one before is known not to run
MOVING = frozenset({"PLANNING", "STARTING", "FINISHING", "FINISHED"})
OURS = "holdfast-catalogs"
OURS_SECONDS = 60.0


class TrinoEngine:
    """One Trino. Made in a second, asks nothing before it must."""

    name = "trino"

    def __init__(self, options: TrinoOptions) -> None:
        self._options = options
        self._client = StatementClient(options)
        self._segments = Segments(self._client.transport, options)
        self._decoders = ThreadPoolExecutor(options.decoders, "holdfast-trino")
        self._unknown: set[str] = set()  # tags of queries that only read, and that may run without us

    async def describe(self, query: Query) -> tuple[Column, ...]:
        """Its columns, from a statement that is analysed and planned like it and has nothing to run."""
        async with self.stream(replace(query, sql=wording.describing(query.sql))) as rows:
            return rows.columns

    @asynccontextmanager
    async def stream(self, query: Query, *, spooled: bool = True) -> AsyncIterator[TrinoRows]:
        """Its rows. Leaving early cancels it."""
        rows = TrinoRows(self._client, self._segments, self._decoders, self._options)
        first = await self._begin(query, spooled)
        try:
            await rows.open(first, query.max_seconds)
            yield rows
        finally:
            await rows.close()

    async def _begin(self, query: Query, spooled: bool) -> Answer:
        """Submit a query that only reads. One whose fate is unknown is looked up by tag and stopped before it is sent again.

        A late answer is not waited for here: the caller decides how long a cold start may take and calls again.
        """
        headers = headers_of(query, self._options, spooled=spooled and bool(self._options.encodings))
        for tries in range(SUBMITS):
            await self._settle(query)
            try:
                return await self._client.submit(query.sql, headers)
            except SubmitUnknown as unknown:
                self._unknown.add(query.tag)
                if isinstance(unknown, SubmitTimeout) or tries == SUBMITS - 1:
                    raise
            except EngineUnavailable as busy:
                asked = busy.detail.get("retry_after")
                if asked is None or asked > self._options.look_patience_seconds or tries == SUBMITS - 1:
                    raise
                await asyncio.sleep(max(asked, backoff(tries)))
        raise AssertionError("every try returns or raises")

    async def _settle(self, query: Query) -> None:
        """Stop what an earlier submit under this tag may have started; raises while the engine cannot say."""
        if query.tag not in self._unknown:
            return
        left = await self.find(query.tag, query)
        if left is not None:
            await self.cancel(left, query)
        self._unknown.discard(query.tag)

    async def submit(self, query: Query) -> Json:
        """Send it. Trino begins with the first look, so what was sent and then forgotten never runs."""
        answer = await self._client.submit(query.sql, headers_of(query, self._options, spooled=False))
        if answer.error is not None:
            raise refusal(answer.error, answer.id)
        return {"query_id": answer.id, "next_uri": answer.next_uri, "info_uri": answer.info_uri, "is_new": True}

    async def look(self, handle: Json, query: Query) -> Look:
        """One step further, and no more: the step can be repeated by whoever knows only the handle before it.

        The first waits a moment for what Trino says to the statement; any later one is one of many, and does not.
        """
        query_id, next_uri = ids_of(handle)
        if next_uri is None:
            return await self._look_by_id(handle, query_id)
        is_new = isinstance(handle, dict) and bool(handle.get("is_new"))
        try:
            answer = await self._client.advance(next_uri, query_id, self._options.look_patience_seconds, briefly=not is_new)
        except EngineLost:  # the address is not known any more; the query may be
            return await self._look_by_id(handle, query_id)
        return seen(answer, handle)

    async def _look_by_id(self, handle: Json, query_id: str) -> Look:
        info = await self._client.info(query_id, self._options.look_patience_seconds)
        return seen_by_id(info, handle)

    async def cancel(self, handle: Json, query: Query) -> None:
        """Stop it. Done also when it had ended."""
        query_id, next_uri = ids_of(handle)
        await self._client.cancel(next_uri, query_id, self._options.look_patience_seconds)

    async def find(self, tag: str, query: Query) -> Json | None:
        """What runs, or ran within the last minutes, under this tag. Its nextUri is lost: it can be watched and stopped."""
        source = source_of(replace(query, tag=tag), self._options)
        asking = replace(query, sql=wording.submitted_under(source), tag=f"find-{tag}", session={})
        found = [row async for row in self._small(replace(asking, max_seconds=OURS_SECONDS))]
        return {"query_id": found[0][0], "next_uri": None, "info_uri": None} if found else None

    def unload_sql(self, query: Query, location: str) -> str:
        """Starburst's table function."""
        return wording.unloading(query, location, self._options)

    def ctas_sql(self, query: Query, location: str) -> str:
        """Plain Trino: a table in that place, named after the query's tag."""
        return wording.creating(query, location, self._options)

    def forget_sql(self, query: Query) -> str:
        """Lets go of that table and leaves its files."""
        return wording.forgetting(query, self._options)

    async def entries(self, catalogs: tuple[str, ...] | None = None) -> AsyncIterator[list[Entry]]:
        """What its catalogs hold, one statement for each."""
        if catalogs is None:
            names = [row[0] async for row in self._small(Query(wording.CATALOGS, OURS))]
            catalogs = tuple(one for one in names if one not in wording.NOT_FOR_PEOPLE)
        for catalog in catalogs:
            rows = [row async for row in self._small(Query(wording.columns_of(catalog), OURS))]
            yield [Entry(catalog, *row) for row in rows] or [Entry(catalog)]

    async def _small(self, query: Query) -> AsyncIterator[tuple[Any, ...]]:
        """The rows of a statement of ours, in no user's name unless it has a role."""
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
        """Give back connections and threads."""
        await self._client.close()
        self._decoders.shutdown(wait=False, cancel_futures=True)


def from_settings(given: Settings) -> TrinoEngine:
    """The Trino that the environment names."""
    return TrinoEngine(TrinoOptions.from_settings(given))


def ids_of(handle: Json) -> tuple[str, str | None]:
    """What a handle leads to."""
    if isinstance(handle, dict):
        query_id, next_uri = handle.get("query_id"), handle.get("next_uri")
        if isinstance(query_id, str) and query_id and (next_uri is None or isinstance(next_uri, str)):
            return query_id, next_uri
    raise ProtocolBroken("a handle that leads to no query")


def seen(answer: Answer, handle: Json) -> Look:
    """What an answer shows. The end is that it names no next, whatever its state says."""
    before = handle if isinstance(handle, dict) else {}
    rows = answer.update_count if answer.update_count is not None else before.get("rows_written")
    after: dict[str, Any] = {**before, "next_uri": answer.next_uri, "rows_written": rows, "is_new": False}
    progress = answer.stats.progress()
    if answer.error is not None:
        return Look(Phase.FAILED, {**after, "next_uri": None}, progress, refusal(answer.error, answer.id))
    if answer.next_uri is None:
        return Look(Phase.FINISHED, after, progress, rows_written=rows)
    return Look(Phase.RUNNING, after, progress, soon=answer.has_data or progress.state in MOVING)


def seen_by_id(info: QueryInfo | None, handle: Json) -> Look:
    """What a query's own page shows."""
    if info is None:
        gone = EngineLost("the engine does not know the query; it was restarted, or let it go")
        return Look(Phase.GONE, handle, Progress("GONE"), gone)
    percent = info.query_stats.progress_percentage
    progress = Progress(info.state[:40], None if percent is None else percent / 100)
    if info.state == "FAILED":
        return Look(Phase.FAILED, handle, progress, refusal(info.failure(), info.query_id))
    if info.state == "FINISHED":
        return Look(Phase.FINISHED, handle, progress, rows_written=info.query_stats.written_positions)
    return Look(Phase.RUNNING, handle, progress, is_adrift=True)  # Trino waits for a reader who knows the address
