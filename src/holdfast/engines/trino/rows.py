"""Read the result of a query within a memory limit. The next page is requested while earlier ones are decoded.

Responses are sequential, because each has the address of the next. The pages and segments in them are downloaded and decoded
concurrently and returned in order. Each counts against the memory limit until the consumer has taken its rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from typing import Any

import httpx2
import pyarrow as pa

from holdfast.engines.port import Column, EngineError, Progress, ProtocolBroken, QueryRefused, RanTooLong
from holdfast.engines.trino.backoff import backoff
from holdfast.engines.trino.decode import PageDecoder
from holdfast.engines.trino.errors import error_of
from holdfast.engines.trino.messages import Answer, Segment, Spooled, read, read_columns
from holdfast.engines.trino.options import TrinoOptions
from holdfast.engines.trino.segments import Segments, decompress
from holdfast.engines.trino.statement import StatementClient

HEARTBEAT_SECONDS = 30.0
CANCEL_SECONDS = 5.0
ACKNOWLEDGE_SECONDS = 2.0
QUICK_ANSWERS = 5


class MemoryBudget:
    """The memory that a result may use at a time. A part that is larger than the whole budget is admitted alone."""

    def __init__(self, size: int) -> None:
        self._size, self._used = size, 0
        self._changed = asyncio.Condition()

    async def acquire(self, weight: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self._used == 0 or self._used + weight <= self._size)
            self._used += weight

    async def release(self, weight: int) -> None:
        async with self._changed:
            self._used -= weight
            self._changed.notify_all()


class TrinoRows:
    """The rows of one query. Call `open` first; it sets `columns`."""

    columns: tuple[Column, ...] = ()

    def __init__(self, client: StatementClient, segments: Segments, decoders: Executor, options: TrinoOptions) -> None:
        self._client, self._segments, self._decoders, self._options = client, segments, decoders, options
        self._budget = MemoryBudget(options.memory_bytes)
        self._queue: asyncio.Queue[tuple[asyncio.Task[pa.RecordBatch], int] | EngineError | None] = asyncio.Queue()
        self._fetching = asyncio.Semaphore(options.fetchers)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._acknowledging: set[asyncio.Task[Any]] = set()
        self._decoder: PageDecoder | None = None
        self._clock = asyncio.get_running_loop().time
        self._deadline: float | None = None
        self._idle = 0  # consecutive responses without rows

    @property
    def progress(self) -> Progress:
        """The progress that Trino reports."""
        return self._answer.stats.progress()

    @property
    def query_id(self) -> str:
        """The id that Trino gave the query."""
        return self._answer.id

    async def open(self, first: Answer, max_seconds: float | None) -> None:
        """Request responses until one has the columns."""
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
        """Return the rows in Trino's order."""
        self._start(self._request_all())
        self._start(self._keep_alive())
        while (item := await self._queue.get()) is not None:
            if isinstance(item, EngineError):
                raise item
            task, weight = item
            batch = await task
            if batch.num_rows:
                yield batch
            del batch
            await self._budget.release(weight)

    async def close(self) -> None:
        """Stop all tasks, and cancel the query if it still runs."""
        if self._acknowledging:
            await asyncio.wait(self._acknowledging, timeout=ACKNOWLEDGE_SECONDS)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._answer.next_uri is not None:
            with suppress(EngineError, httpx2.HTTPError, TimeoutError):
                async with asyncio.timeout(CANCEL_SECONDS):
                    await self._client.cancel(self._answer.next_uri, self.query_id, CANCEL_SECONDS)

    async def _request_all(self) -> None:
        """Request all responses until one has no nextUri, and queue their parts."""
        end: EngineError | None = None
        try:
            while True:
                for begin, weight in self._parts():
                    await self._budget.acquire(weight)
                    await self._queue.put((self._start(begin()), weight))
                if self._answer.next_uri is None:
                    break
                await self._advance()
        except EngineError as failed:
            end = failed
        await self._queue.put(end)

    def _parts(self) -> Iterator[tuple[Callable[[], Coroutine[Any, Any, pa.RecordBatch]], int]]:
        """The page or segments of a response: for each a function that reads it, and the memory that it needs."""
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
        batch = await self._decoded(lambda decoder: decoder.decode(decompress(data, encoding, segment.metadata)))
        expected = segment.metadata.rows_count
        if expected is not None and batch.num_rows != expected:
            raise ProtocolBroken(f"a segment has {batch.num_rows:,} rows; its metadata says {expected:,}")
        acknowledging = self._start(self._segments.acknowledge(segment))
        self._acknowledging.add(acknowledging)
        acknowledging.add_done_callback(self._acknowledging.discard)
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
                if self._idle > QUICK_ANSWERS:  # Trino waits up to one second before it answers without rows
                    await asyncio.sleep(backoff(self._idle - QUICK_ANSWERS))
                self._answer = await self._client.advance(
                    self._answer.next_uri, self.query_id, self._options.stream_retry_seconds
                )
        except TimeoutError as late:
            if isinstance(late, EngineError):
                raise
            raise RanTooLong("the query ran longer than its limit", query_id=self.query_id) from late
        self._seen_at = self._clock()
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._answer.error is not None:
            self._answer.next_uri = None  # it has ended, so `close` does not cancel it
            raise error_of(self._answer.error, self.query_id)

    async def _keep_alive(self) -> None:
        """Send keep-alive requests while the consumer is slow: Trino drops a query after five minutes without requests."""
        is_supported = True
        while is_supported:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            uri = self._answer.next_uri
            if uri is not None and self._clock() - self._seen_at >= HEARTBEAT_SECONDS:
                with suppress(httpx2.HTTPError, TimeoutError, EngineError):
                    is_supported = await self._client.keep_alive(uri)

    def _start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # marks it as retrieved: the code that awaits the task gets the error
