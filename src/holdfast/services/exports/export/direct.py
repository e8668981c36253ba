"""The direct runtime: stream the engine's rows into Parquet files under the attempt's prefix. Works with any engine.

Readers do not see these files until the manifest that lists them is published when the job ends (`publishing.py`). The prefix
is recorded in the effects ledger before the first byte is written, so the files of a dead attempt are found and removed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.crashpoints import crashpoint
from holdfast.engines.port import Column, Engine, Query, Rows
from holdfast.errors import HoldfastError
from holdfast.jobs.outcome import Permanent
from holdfast.parquet.files import Part, PartFiles, Shape
from holdfast.parquet.schema import storable_schema
from holdfast.services.exports.export.written import File, Written, WrittenColumn, attempt_prefix
from holdfast.stores.port import Store
from holdfast.threads import in_thread
from holdfast.worker.context import Context

if TYPE_CHECKING:
    import pyarrow as pa

PREFIX_EFFECT = "export.prefix"  # its cleaner is in `publishing.py`
PROGRESS_SECONDS = 1.0  # between progress reports; each also checks whether to stop
COLD_START_RETRIES = 2
COLD_START_PAUSE = 5.0
pause = asyncio.sleep  # between tries; tests replace it

SchemaOf = Callable[[Sequence[Column]], "pa.Schema"]


@dataclass(frozen=True, slots=True)
class Limits:
    """The sizes of the files of an export, and its maximum duration."""

    max_seconds: float = 3600.0
    shape: Shape = field(default_factory=Shape)


class ExportFailed(HoldfastError, Permanent):
    """The export failed in a way that a retry cannot fix."""


async def export_direct(
    ctx: Context,
    engine: Engine,
    query: Query,
    store: Store,
    limits: Limits | None = None,
    schema_of: SchemaOf = storable_schema,
) -> Written:
    """Run the query and write its result to the store, under a prefix that readers do not see yet; what was written.

    `schema_of` returns the schema of the files for the columns that the engine returns.
    Raises `ClaimLost` and `CancelRequested` like a checkpoint, the errors of engines and stores unchanged (`transient` says
    whether another attempt may succeed), and `ExportFailed` after the maximum duration or number of retries.
    """
    limits = limits or Limits()
    await ctx.checkpoint()
    async with planned_prefix(ctx, store):
        try:
            async with asyncio.timeout(limits.max_seconds) as whole:
                return await _with_cold_start_retries(ctx, lambda: _attempt(ctx, engine, query, store, limits, schema_of))
        except TimeoutError:
            if whole.expired():
                raise ExportFailed(f"Export job exceeded maximum duration ({limits.max_seconds:.0f}s)") from None
            raise


@asynccontextmanager
async def planned_prefix(ctx: Context, store: Store) -> AsyncIterator[str]:
    """The folder of this attempt in the store, recorded in the effects ledger before a file is written."""
    prefix = attempt_prefix(ctx.attempt_id)
    detail = {"to": store.location.url, "prefix": prefix}
    async with ctx.effect(PREFIX_EFFECT, detail=detail, adoptable=True) as planned:
        planned.made({"prefix": prefix})
        yield prefix


async def _with_cold_start_retries(ctx: Context, act: Callable[[], Awaitable[Written]]) -> Written:
    """Retry timeouts: an engine that is starting may answer too late once or twice. The error type decides, not its text.

    Before a retry, the engine cancels the query that an earlier try submitted with the same tag, so at most one query runs.
    """
    for number in range(COLD_START_RETRIES + 1):
        try:
            return await act()
        except TimeoutError as error:
            if number == COLD_START_RETRIES:
                kind = type(error).__name__
                raise ExportFailed(f"Direct export failed after {COLD_START_RETRIES} retries: {kind}") from error
            await ctx.progress(message=f"the engine did not answer in time ({number + 1} of {COLD_START_RETRIES} retries)")
            await pause(COLD_START_PAUSE)
    raise AssertionError("the last try returns or raises")


async def _attempt(ctx: Context, engine: Engine, query: Query, store: Store, limits: Limits, schema_of: SchemaOf) -> Written:
    prefix = attempt_prefix(ctx.attempt_id)
    await store.delete_prefix(prefix)  # remove the files of an earlier try of this attempt
    async with engine.stream(query) as rows:
        stream = _Stream(ctx, rows, store, prefix, limits.shape, schema_of(rows.columns))
        await _run_with_progress(ctx, stream)
    crashpoint("export.uploaded")
    await ctx.progress(1.0, f"{stream.rows:,} rows, {in_units(stream.bytes)} in {len(stream.done)} file(s)")
    schema = stream.files.schema
    return Written(
        to=store.location.url,
        job_id=ctx.job.id,
        attempt_id=ctx.attempt_id,
        files=tuple(stream.done),
        columns=tuple(WrittenColumn(c.name, c.type, str(schema.field(at).type)) for at, c in enumerate(rows.columns)),
    )


async def _run_with_progress(ctx: Context, stream: _Stream) -> None:
    """Run the stream and report its progress. Each report also checks whether the attempt has to stop."""
    work = asyncio.ensure_future(stream.run())
    try:
        while not work.done():
            await asyncio.wait({work}, timeout=PROGRESS_SECONDS)
            if not work.done():
                await ctx.progress(*stream.progress())
        await work
    finally:
        work.cancel()
        await asyncio.wait({work})


class _Stream:
    """Writes one result to files: the next row group is collected while the last one is encoded."""

    def __init__(self, ctx: Context, rows: Rows, store: Store, prefix: str, shape: Shape, schema: pa.Schema) -> None:
        self._ctx, self._rows, self._store, self._prefix, self._shape = ctx, rows, store, prefix, shape
        self.files = PartFiles(schema, lambda number: store.stage(self._path(number)), shape)
        self.done: list[File] = []
        self.rows = self.bytes = 0
        self._writing: asyncio.Future[Part | None] | None = None

    async def run(self) -> None:
        try:
            async for group in self._groups():
                await self._put(await self._written())
                self._writing = asyncio.ensure_future(in_thread(partial(self.files.write, group)))
                crashpoint("export.streaming")
            await self._put(await self._written())
            await self._put(await in_thread(self.files.finish))
        finally:
            if self._writing is not None:  # a thread cannot be stopped: wait for it before its file is closed
                await asyncio.shield(asyncio.wait({self._writing}))
            await in_thread(self.files.discard)

    def progress(self) -> tuple[float | None, str]:
        """The progress as a fraction, if the engine reports one, and as a message."""
        engine = self._rows.progress
        queued = f", {engine.queued_ahead} ahead" if engine.queued_ahead else ""
        size = in_units(self.bytes + self.files.open_bytes)
        return engine.share, f"{engine.state.lower()}{queued}: {self.rows:,} rows, {size} written"

    async def _groups(self) -> AsyncIterator[list[pa.RecordBatch]]:
        """Collect batches to row groups."""
        group: list[pa.RecordBatch] = []
        rows = size = 0
        async for batch in self._rows.batches():
            for piece in pieces(batch, self._shape.group_rows):
                group.append(piece)
                rows, size = rows + piece.num_rows, size + piece.nbytes
                if self._shape.is_full(rows, size):
                    yield group
                    self.rows += rows
                    group, rows, size = [], 0, 0
        if rows:
            yield group
            self.rows += rows

    async def _written(self) -> Part | None:
        return None if self._writing is None else await asyncio.shield(self._writing)

    async def _put(self, part: Part | None) -> None:
        """Upload a complete file, after a checkpoint: a replaced attempt stops here."""
        if part is None:
            return
        await self._ctx.checkpoint()
        path = self._path(part.number)
        size = await self._store.put_file(path, part.path)
        assert size == part.bytes, "the uploaded file has the size of the written one"
        self.done.append(File(path, part.rows, part.bytes))
        self.bytes += part.bytes
        crashpoint("export.part_put")

    def _path(self, number: int) -> str:
        return f"{self._prefix}/part-{number:05d}.parquet"


def pieces(batch: Any, most: int) -> list[Any]:
    """Split a batch into slices of at most `most` rows: an engine may return more than a row group at once."""
    return [batch.slice(start, most) for start in range(0, batch.num_rows, most)]


def in_units(size: float) -> str:
    """Format a number of bytes. Pure."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
