"""DuckDB behind the port: each query has a sandboxed database of its own in this process."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.services.exports.engines.duckdb.errors import as_ours
from holdfast.services.exports.engines.duckdb.folders import refuse_closed
from holdfast.services.exports.engines.duckdb.guard import one_select
from holdfast.services.exports.engines.duckdb.sandbox import Sandbox, identifier, open_sandbox, refuse_scratch_below
from holdfast.services.exports.engines.duckdb.types import cast_for
from holdfast.services.exports.engines.port import (
    Column,
    Entry,
    Progress,
    Query,
    QueryRefused,
)
from holdfast.services.exports.extras import lazily
from holdfast.settings import Settings
from holdfast.worker.threads import in_thread

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa
else:
    duckdb = lazily("duckdb")
    pa = lazily("pyarrow")

MIB = 1024 * 1024
BATCH_BYTES = 4 * MIB
FEWEST_ROWS, MOST_ROWS = 2_048, 122_880  # one vector of DuckDB, one of its row groups
# Rows that are read at once where a type does not say how long its values are. DuckDB's reader cannot change that number once
# it runs, so it is small, and what was read is joined by its bytes. Reading 256 rows instead of 30,000 costs a tenth more.
UNKNOWN_WIDTH_ROWS = 256
LOOKS_AT_ONCE = 4  # at what queries would return, by everybody who asks
LAST_WAIT = 5.0  # seconds for looks that nobody waits for, when everything ends

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

    def __init__(self, opening: Callable[[], Sandbox]) -> None:
        self._opening = opening
        self._looks = asyncio.Semaphore(LOOKS_AT_ONCE)
        self._leaving: set[asyncio.Future[None]] = set()

    async def describe(self, query: Query) -> tuple[Column, ...]:
        """Whoever does not wait for it leaves at once; the look itself is interrupted, and takes its turn until it notices:
        DuckDB computes some things before it knows the columns, such as the arguments of table functions."""
        await self._looks.acquire()
        rows = DuckDbRows(self._opening, query)
        try:
            await rows.begin()
        finally:
            leaving = asyncio.ensure_future(self._leave(rows))
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)
        return rows.columns

    async def _leave(self, rows: DuckDbRows) -> None:
        try:
            await rows.end()
        finally:
            rows.close()
            self._looks.release()

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
                raise QueryRefused(f"there is no catalog {catalog!r}; there are: {', '.join(known)}")
            yield [Entry(*row) for row in await self._read(ENTRIES, catalog=catalog)] or [Entry(catalog)]

    async def close(self) -> None:
        if self._leaving:
            await asyncio.wait(self._leaving, timeout=LAST_WAIT)

    async def _read(self, statement: str, **parameters: str) -> list[tuple[Any, ...]]:
        def read() -> list[tuple[Any, ...]]:
            sandbox = self._opening()
            try:
                with as_ours():
                    return sandbox.database.execute(statement, parameters).fetchall()
            finally:
                sandbox.close()

        rows: list[tuple[Any, ...]] = await in_thread(read)
        return rows


class DuckDbRows:
    """A result that is read in threads, one step ahead of whoever takes it."""

    columns: tuple[Column, ...] = ()

    def __init__(self, opening: Callable[[], Sandbox], query: Query) -> None:
        self._opening, self._query = opening, query
        self._sandbox: Sandbox | None = None
        self._reader: Any = None
        self._running: asyncio.Future[Any] | None = None
        self._is_over = False

    async def begin(self) -> None:
        """Learn its columns. What is wrong with the query itself is said here, and nothing runs yet."""

        def look() -> tuple[Column, ...]:
            self._sandbox = self._opening()
            with as_ours():
                _use(self._sandbox.database, self._query)
                return _columns(self._sandbox, self._query)

        self.columns = await self._in_thread(look)

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
        known = min(1.0, share / 100) if share > 0 else None  # it says 0 also where it cannot tell
        return Progress("FINISHED" if self._is_over else "RUNNING", share=known)

    async def end(self) -> None:
        """Stop it if it still runs, and come back when its thread has."""
        while self._running is not None and not self._running.done():
            if self._sandbox is not None:
                self._sandbox.database.interrupt()  # again and again: it may come to its next step only now
            await asyncio.wait({self._running}, timeout=0.05)
        if self._running is not None and not self._running.cancelled():
            self._running.exception()  # that it was interrupted is no news
        self._reader = None

    def close(self) -> None:
        """Remove the sandbox, after the end."""
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = None

    def _next(self) -> pa.RecordBatch | None:
        """A batch of about the wanted bytes, and of one read more at most; None at the end. The first call starts the query."""
        found, size = [], 0
        sandbox = self._sandbox
        assert sandbox is not None, "rows are read between begin and close"
        with as_ours(running=True):
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
        """One step at a time. It cannot be left alone when nobody waits for it any more: `end` does."""
        self._running = asyncio.ensure_future(in_thread(function))
        return await asyncio.shield(self._running)


def _use(connection: duckdb.DuckDBPyConnection, query: Query) -> None:
    """Names without a catalog or schema are looked for where the query says."""
    said = [name for name in (query.catalog, query.schema) if name]
    if said:
        connection.execute(f"USE {'.'.join(identifier(name) for name in said)}")


def _columns(sandbox: Sandbox, query: Query) -> tuple[Column, ...]:
    """The columns by DuckDB's own words, and the Arrow types that its reader says they have. Runs nothing of the query: it is
    asked about columns of these types that hold nothing."""
    connection = sandbox.database
    relation = connection.sql(one_select(connection, query, files=sandbox.files))
    nothing = ", ".join(f"CAST(NULL AS {cast_for(kind) or kind})" for kind in relation.types)
    try:
        arrow = connection.sql(f"SELECT {nothing} LIMIT 0").to_arrow_reader(1).schema
    except duckdb.Error:  # a type that has no name here, as one of an attached database's own: only the query itself has it
        arrow = connection.sql(_select(sandbox, query)).limit(0).to_arrow_reader(1).schema
    described = zip(relation.columns, relation.types, arrow.types, strict=True)
    return tuple(Column(name, str(kind), carried) for name, kind, carried in described)


def _select(sandbox: Sandbox, query: Query) -> str:
    """The query, with those columns cast that Arrow cannot carry (`types.py`)."""
    sql = one_select(sandbox.database, query, files=sandbox.files)
    relation = sandbox.database.sql(sql)
    casts = [(identifier(name), cast_for(kind)) for name, kind in zip(relation.columns, relation.types, strict=True)]
    if not any(kind for _, kind in casts):
        return sql
    parts = [f"CAST({name} AS {kind}) AS {name}" if kind else name for name, kind in casts]
    return f"SELECT {', '.join(parts)} FROM ({sql}\n)"


def batch_rows(schema: pa.Schema) -> int:
    """How many rows to read at once: a batch of the wanted size if every type has a fixed width, else few. Pure."""
    try:
        width = sum(max(1, int(kind.bit_width) // 8) for kind in schema.types)
    except ValueError:  # text, bytes, lists: anything between nothing and megabytes
        return UNKNOWN_WIDTH_ROWS
    return max(FEWEST_ROWS, min(MOST_ROWS, BATCH_BYTES // max(1, width)))


def from_settings(settings: Settings) -> DuckDbEngine:
    """The engine as the settings describe it. The folders are checked now, and not only with the first query."""
    scratch = settings.scratch_dir or Path(tempfile.gettempdir())
    refuse_closed(tuple(settings.duckdb_folders), tuple(settings.closed_folders))
    refuse_scratch_below(settings.duckdb_folders, scratch)
    return DuckDbEngine(
        partial(
            open_sandbox,
            folders=settings.duckdb_folders,
            attach=settings.duckdb_attach,
            memory=settings.duckdb_memory,
            max_spill=settings.duckdb_max_spill,
            threads=settings.duckdb_threads,
            scratch=scratch,
        )
    )
