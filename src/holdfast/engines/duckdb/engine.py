"""DuckDB as an engine (`port.py`): each query runs in a separate sandboxed database in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.engines.duckdb import CAPABILITIES
from holdfast.engines.duckdb.errors import translated_errors
from holdfast.engines.duckdb.folders import refuse_closed
from holdfast.engines.duckdb.guard import one_select
from holdfast.engines.duckdb.options import DuckDbOptions
from holdfast.engines.duckdb.sandbox import Sandbox, identifier, open_sandbox, refuse_scratch_below
from holdfast.engines.duckdb.types import cast_for
from holdfast.engines.port import (
    Column,
    Entry,
    Progress,
    Query,
    QueryRefused,
)
from holdfast.extras import lazily
from holdfast.threads import in_thread

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa
else:
    duckdb = lazily("duckdb")
    pa = lazily("pyarrow")

MIB = 1024 * 1024
BATCH_BYTES = 4 * MIB
FEWEST_ROWS, MOST_ROWS = 2_048, 122_880  # one vector of DuckDB, one of its row groups
# Rows per read if a column has a type of variable width. DuckDB's reader cannot change this number while it runs, so it is
# small, and batches are joined up to BATCH_BYTES. Reading 256 rows instead of 30,000 takes 10 % longer.
UNKNOWN_WIDTH_ROWS = 256
MAX_DESCRIBES = 4  # concurrent calls of `describe` in this process
CLOSE_SECONDS = 5.0  # how long `close` waits for interrupted calls of `describe`

ENTRIES = """
    SELECT t.table_catalog, t.table_schema, t.table_name, c.column_name, c.data_type, c.ordinal_position
    FROM information_schema.tables t
    LEFT JOIN information_schema.columns c USING (table_catalog, table_schema, table_name)
    WHERE t.table_catalog = $catalog AND t.table_schema <> 'information_schema'
    ORDER BY t.table_schema, t.table_name, c.ordinal_position
"""
CATALOGS = "SELECT database_name FROM duckdb_databases() WHERE NOT internal ORDER BY database_name"


class DuckDbEngine:
    """SQL over files below allowed folders and over attached databases."""

    name = "duckdb"
    capabilities = CAPABILITIES

    def __init__(self, opening: Callable[[], Sandbox]) -> None:
        self._opening = opening
        self._describes = asyncio.Semaphore(MAX_DESCRIBES)
        self._closing: set[asyncio.Future[None]] = set()

    async def describe(self, query: Query) -> tuple[Column, ...]:
        """Return the columns of a query. A cancelled call returns at once; DuckDB is interrupted and counts against
        MAX_DESCRIBES until it stops. That can take time: DuckDB computes some values before it knows the columns, such as the
        arguments of table functions."""
        await self._describes.acquire()
        rows = DuckDbRows(self._opening, query)
        try:
            await rows.begin()
        finally:
            closing = asyncio.ensure_future(self._end_describe(rows))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        return rows.columns

    async def _end_describe(self, rows: DuckDbRows) -> None:
        try:
            await rows.end()
        finally:
            rows.close()
            self._describes.release()

    def stream(self, query: Query) -> AbstractAsyncContextManager[DuckDbRows]:
        return self._stream(query)

    @asynccontextmanager
    async def _stream(self, query: Query) -> AsyncIterator[DuckDbRows]:
        rows = DuckDbRows(self._opening, query)
        try:
            await rows.begin()
            yield rows
        finally:
            await rows.end()
            rows.close()

    async def entries(self, catalogs: tuple[str, ...] | None = None) -> AsyncIterator[list[Entry]]:
        known = [name for (name,) in await self._read(CATALOGS)]
        for catalog in known if catalogs is None else catalogs:
            if catalog not in known:
                raise QueryRefused(f"there is no catalog {catalog!r}; use one of: {', '.join(known)}")
            yield [Entry(*row) for row in await self._read(ENTRIES, catalog=catalog)] or [Entry(catalog)]

    async def close(self) -> None:
        if self._closing:
            await asyncio.wait(self._closing, timeout=CLOSE_SECONDS)

    async def _read(self, statement: str, **parameters: str) -> list[tuple[Any, ...]]:
        def read() -> list[tuple[Any, ...]]:
            sandbox = self._opening()
            try:
                with translated_errors():
                    return sandbox.database.execute(statement, parameters).fetchall()
            finally:
                sandbox.close()

        rows: list[tuple[Any, ...]] = await in_thread(read)
        return rows


class DuckDbRows:
    """A result that is read in threads, one batch ahead of the consumer."""

    columns: tuple[Column, ...] = ()

    def __init__(self, opening: Callable[[], Sandbox], query: Query) -> None:
        self._opening, self._query = opening, query
        self._sandbox: Sandbox | None = None
        self._reader: Any = None
        self._running: asyncio.Future[Any] | None = None
        self._is_over = False

    async def begin(self) -> None:
        """Describe the columns. Raises if the query is invalid. The query does not run yet."""

        def describe() -> tuple[Column, ...]:
            self._sandbox = self._opening()
            with translated_errors():
                _use(self._sandbox.database, self._query)
                return _columns(self._sandbox, self._query)

        self.columns = await self._in_thread(describe)

    async def batches(self) -> AsyncIterator[pa.RecordBatch]:
        ahead = asyncio.ensure_future(self._in_thread(self._next))
        try:
            while (batch := await ahead) is not None:
                ahead = asyncio.ensure_future(self._in_thread(self._next))
                yield batch
        finally:
            ahead.cancel()

    @property
    def progress(self) -> Progress:
        share = self._sandbox.database.query_progress() if self._sandbox is not None else -1.0
        known = min(1.0, share / 100) if share > 0 else None  # DuckDB reports 0 also if the progress is unknown
        return Progress("FINISHED" if self._is_over else "RUNNING", share=known)

    async def end(self) -> None:
        """Interrupt the query if it still runs, and wait for its thread."""
        while self._running is not None and not self._running.done():
            if self._sandbox is not None:
                self._sandbox.database.interrupt()  # repeated: the thread may start its next statement after an interrupt
            await asyncio.wait({self._running}, timeout=0.05)
        if self._running is not None and not self._running.cancelled():
            self._running.exception()  # marks it as retrieved; it was interrupted here
        self._reader = None

    def close(self) -> None:
        """Remove the sandbox. Call `end` first."""
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = None

    def _next(self) -> pa.RecordBatch | None:
        """Return a batch of BATCH_BYTES, plus at most one read; None at the end. The first call starts the query."""
        found, size = [], 0
        sandbox = self._sandbox
        assert sandbox is not None, "rows are read between begin and close"
        with translated_errors(running=True):
            if self._reader is None:
                schema = pa.schema([pa.field(column.name, column.arrow) for column in self.columns])
                sql = _select(sandbox, self._query)
                self._reader = sandbox.database.sql(sql).to_arrow_reader(batch_rows(schema))
            while size < BATCH_BYTES:
                try:
                    batch = self._reader.read_next_batch()
                except StopIteration:
                    self._is_over = True
                    break
                found.append(batch)
                size += batch.nbytes
            return pa.concat_batches(found) if found else None

    async def _in_thread(self, function: Any) -> Any:
        """Run one step in a thread. If the caller is cancelled, the thread goes on, and `end` waits for it."""
        self._running = asyncio.ensure_future(in_thread(function))
        return await asyncio.shield(self._running)


def _use(connection: duckdb.DuckDBPyConnection, query: Query) -> None:
    """Set the default catalog and schema of the query."""
    names = [name for name in (query.catalog, query.schema) if name]
    if names:
        connection.execute(f"USE {'.'.join(identifier(name) for name in names)}")


def _columns(sandbox: Sandbox, query: Query) -> tuple[Column, ...]:
    """The columns with DuckDB's types and the Arrow types of its reader. The query does not run: the Arrow types come from a
    statement with NULL columns of the same types."""
    connection = sandbox.database
    relation = connection.sql(one_select(connection, query, files=sandbox.files))
    nulls = ", ".join(f"CAST(NULL AS {cast_for(kind) or kind})" for kind in relation.types)
    try:
        arrow = connection.sql(f"SELECT {nulls} LIMIT 0").to_arrow_reader(1).schema
    except duckdb.Error:  # a type of an attached database has no name here; use the query itself
        arrow = connection.sql(_select(sandbox, query)).limit(0).to_arrow_reader(1).schema
    described = zip(relation.columns, relation.types, arrow.types, strict=True)
    return tuple(Column(name, str(kind), carried) for name, kind, carried in described)


def _select(sandbox: Sandbox, query: Query) -> str:
    """The query, with casts for the columns whose types Arrow does not have (`types.py`)."""
    sql = one_select(sandbox.database, query, files=sandbox.files)
    relation = sandbox.database.sql(sql)
    casts = [(identifier(name), cast_for(kind)) for name, kind in zip(relation.columns, relation.types, strict=True)]
    if not any(kind for _, kind in casts):
        return sql
    parts = [f"CAST({name} AS {kind}) AS {name}" if kind else name for name, kind in casts]
    return f"SELECT {', '.join(parts)} FROM ({sql}\n)"


def batch_rows(schema: pa.Schema) -> int:
    """How many rows to read at once: about BATCH_BYTES if all types have a fixed width, otherwise few. Pure."""
    try:
        width = sum(max(1, int(kind.bit_width) // 8) for kind in schema.types)
    except ValueError:  # text, bytes, lists: values from 0 bytes to megabytes
        return UNKNOWN_WIDTH_ROWS
    return max(FEWEST_ROWS, min(MOST_ROWS, BATCH_BYTES // max(1, width)))


def open_duckdb(options: DuckDbOptions) -> DuckDbEngine:
    """Return an engine with these options. The folders are checked now, not at the first query."""
    refuse_closed(options.folders, options.closed)
    refuse_scratch_below(options.folders, options.scratch)
    return DuckDbEngine(
        partial(
            open_sandbox,
            folders=options.folders,
            attach=options.attach,
            memory=options.memory,
            max_spill=options.max_spill,
            threads=options.threads,
            scratch=options.scratch,
        )
    )
