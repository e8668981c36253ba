"""A result on its way: the next page is fetched while earlier ones become columns, under a bound of memory.

Answers come one after another, for each names the next. What is in them, or what they point to, is fetched and decoded
beside each other, handed on in order, and counted against the bound until whoever reads the rows has taken it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from typing import Any

import httpx
import pyarrow as pa

from holdfast.services.exports.engines.port import Column, EngineError, Progress, ProtocolBroken, QueryRefused, RanTooLong
from holdfast.services.exports.engines.trino.decode import PageDecoder
from holdfast.services.exports.engines.trino.messages import Answer, Segment, Spooled, read, read_columns
from holdfast.services.exports.engines.trino.options import TrinoOptions
from holdfast.services.exports.engines.trino.pauses import backoff
from holdfast.services.exports.engines.trino.refusal import refusal
from holdfast.services.exports.engines.trino.segments import Segments, unpack
from holdfast.services.exports.engines.trino.statement import StatementClient

HEARTBEAT_SECONDS = 30.0
CANCEL_SECONDS = 5.0
ACKNOWLEDGE_SECONDS = 2.0
QUICK_ANSWERS = 5


class Room:
    """The bytes that a result may take at once. One part that is larger than all of it passes alone."""

    def __init__(self, size: int) -> None:
        self._size, self._used = size, 0
        self._changed = asyncio.Condition()

    async def take(self, weight: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self._used == 0 or self._used + weight <= self._size)
            self._used += weight

    async def give_back(self, weight: int) -> None:
        async with self._changed:
            self._used -= weight
            self._changed.notify_all()


class TrinoRows:
    """The rows of one query. `open` it first: then its columns are known."""

    columns: tuple[Column, ...] = ()

    def __init__(self, client: StatementClient, segments: Segments, decoders: Executor, options: TrinoOptions) -> None:
        self._client, self._segments, self._decoders, self._options = client, segments, decoders, options
        self._room = Room(options.memory_bytes)
        self._line: asyncio.Queue[tuple[asyncio.Task[pa.RecordBatch], int] | EngineError | None] = asyncio.Queue()
        self._fetching = asyncio.Semaphore(options.fetchers)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._thanks: set[asyncio.Task[Any]] = set()
        self._decoder: PageDecoder | None = None
        self._clock = asyncio.get_running_loop().time
        self._deadline: float | None = None
        self._idle = 0  # answers in a row that had no rows

    @property
    def progress(self) -> Progress:
        """How far Trino says that it is."""
        return self._answer.stats.progress()

    @property
    def query_id(self) -> str:
        """The query's id at Trino."""
        return self._answer.id

    async def open(self, first: Answer, max_seconds: float | None) -> None:
        """Go on until the columns are known."""
        self._answer, self._seen_at = first, self._clock()
        self._deadline = None if max_seconds is None else self._clock() + max_seconds
        self._raise_failure()
        while self._answer.columns is None:
            if self._answer.next_uri is None:
                raise QueryRefused("the statement returns no rows", query_id=self.query_id)
            await self._advance()
        self.columns, types = read_columns(self._answer.columns)
        self._decoder = PageDecoder(self.columns, types)

    async def batches(self) -> AsyncIterator[pa.RecordBatch]:
        """The rows, in the order in which Trino gave them."""
        self._start(self._follow())
        self._start(self._keep_wanted())
        while (item := await self._line.get()) is not None:
            if isinstance(item, EngineError):
                raise item
            task, weight = item
            batch = await task
            if batch.num_rows:
                yield batch
            del batch
            await self._room.give_back(weight)

    async def close(self) -> None:
        """Let go of everything. A query that still runs is cancelled."""
        if self._thanks:
            await asyncio.wait(self._thanks, timeout=ACKNOWLEDGE_SECONDS)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._answer.next_uri is not None:
            with suppress(EngineError, httpx.HTTPError, TimeoutError):
                async with asyncio.timeout(CANCEL_SECONDS):
                    await self._client.cancel(self._answer.next_uri, self.query_id, CANCEL_SECONDS)

    async def _follow(self) -> None:
        """From answer to answer, until one names no next."""
        end: EngineError | None = None
        try:
            while True:
                for begin, weight in self._parts():
                    await self._room.take(weight)
                    await self._line.put((self._start(begin()), weight))
                if self._answer.next_uri is None:
                    break
                await self._advance()
        except EngineError as failed:
            end = failed
        await self._line.put(end)

    def _parts(self) -> Iterator[tuple[Callable[[], Coroutine[Any, Any, pa.RecordBatch]], int]]:
        """What an answer holds or points to, each as work still to begin, with its weight."""
        answer = self._answer
        if not answer.has_data:
            return
        if answer.is_spooled:
            spooled = read(answer.data, Spooled)
            for segment in spooled.segments:
                yield partial(self._from_segment, segment, spooled.encoding), self._segments.weight(segment)
        else:
            yield partial(self._from_page, answer.data), 2 * len(memoryview(answer.data))

    async def _from_page(self, page: Any) -> pa.RecordBatch:
        return await self._decoded(lambda decoder: decoder.decode(page, is_well_formed=True))

    async def _from_segment(self, segment: Segment, encoding: str) -> pa.RecordBatch:
        async with self._fetching:
            data = await self._segments.fetch(segment)
        batch = await self._decoded(lambda decoder: decoder.decode(unpack(data, encoding, segment.metadata)))
        expected = segment.metadata.rows_count
        if expected is not None and batch.num_rows != expected:
            raise ProtocolBroken(f"a segment of {batch.num_rows:,} rows that says it has {expected:,}")
        thanks = self._start(self._segments.acknowledge(segment))
        self._thanks.add(thanks)
        thanks.add_done_callback(self._thanks.discard)
        return batch

    async def _decoded(self, decode: Any) -> pa.RecordBatch:
        loop = asyncio.get_running_loop()
        batch: pa.RecordBatch = await loop.run_in_executor(self._decoders, decode, self._decoder)
        return batch

    async def _advance(self) -> None:
        assert self._answer.next_uri is not None
        self._idle = 0 if self._answer.has_data else self._idle + 1
        try:
            async with asyncio.timeout_at(self._deadline):
                if self._idle > QUICK_ANSWERS:  # Trino itself waits a second before it says nothing new
                    await asyncio.sleep(backoff(self._idle - QUICK_ANSWERS))
                self._answer = await self._client.advance(
                    self._answer.next_uri, self.query_id, self._options.stream_patience_seconds
                )
        except TimeoutError as late:
            if isinstance(late, EngineError):
                raise
            raise RanTooLong("the query ran longer than it may", query_id=self.query_id) from late
        self._seen_at = self._clock()
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._answer.error is not None:
            self._answer.next_uri = None  # it has ended: nothing is left to cancel
            raise refusal(self._answer.error, self.query_id)

    async def _keep_wanted(self) -> None:
        """Trino lets a query go when nobody asks for five minutes; a slow reader is no reason to lose its rows."""
        wants_calls = True
        while wants_calls:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            uri = self._answer.next_uri
            if uri is not None and self._clock() - self._seen_at >= HEARTBEAT_SECONDS:
                with suppress(httpx.HTTPError, TimeoutError, EngineError):
                    wants_calls = await self._client.keep(uri)

    def _start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # seen: whoever waits for it hears of it, and nobody else has to
