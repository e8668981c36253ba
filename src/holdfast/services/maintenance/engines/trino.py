"""The engine trino: `ALTER TABLE … EXECUTE` through the shared Trino client, and metadata tables.

A statement runs in an event loop of its own, in the thread of the caller. It has the tag of the attempt as its source, so
that it is found and cancelled by any process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any, Final, TypeVar

from holdfast.engines.port import EngineError, Phase, Query
from holdfast.engines.trino import open_trino
from holdfast.engines.trino.options import TrinoOptions
from holdfast.engines.trino.sql import identifier, literal
from holdfast.services.maintenance.engines.actions import (
    ACTIONS,
    Action,
    ComputeStatistics,
    ExpireSnapshots,
    RemoveOrphanFiles,
    RewriteDataFiles,
    RewriteManifests,
)
from holdfast.services.maintenance.engines.interface import (
    ActionUnsupported,
    EngineFailed,
    MaintenanceError,
    TableConflict,
    TableRef,
    TableRefused,
    never_cancelled,
)
from holdfast.services.maintenance.engines.sql_engine import Rows, SqlEngine, Stopped

LOOK_SECONDS: Final = 0.2  # between two looks at a cancel
STOP_SECONDS: Final = 60.0  # until a cancelled statement must have ended
OTHERS: Final = "leave it out, or use the engine pyiceberg or spark"
CONFLICT: Final = frozenset({"ICEBERG_COMMIT_ERROR", "TRANSACTION_CONFLICT"})
Answer = TypeVar("Answer")


class TrinoMaintenance(SqlEngine):
    """Maintenance with Trino. `catalogs` maps our names of catalogs to Trino's; a name that is missing is the same in both."""

    name = "trino"
    actions = frozenset(ACTIONS)

    def __init__(self, options: TrinoOptions, catalogs: Mapping[str, str], *, role: str | None = None) -> None:
        super().__init__(catalogs)
        self._options, self._role = options, role

    def query(self, sql: str, tag: str, work: str = "", cancelled: Callable[[], bool] = never_cancelled) -> Rows:
        """Run a statement; a cancel stops it in Trino."""
        try:
            return asyncio.run(self._query(sql, tag, cancelled))
        except EngineError as error:
            raise error_of(error) from error

    async def _query(self, sql: str, tag: str, cancelled: Callable[[], bool]) -> Rows:
        engine = open_trino(self._options)
        try:
            query = Query(sql, tag, role=self._role, session=self._session(sql))
            reading = asyncio.ensure_future(self._read(engine, query))
            while not (await asyncio.wait({reading}, timeout=LOOK_SECONDS))[0]:
                if cancelled():
                    reading.cancel()
                    await asyncio.wait({reading})
                    raise Stopped
            return reading.result()
        finally:
            await engine.close()

    def _session(self, sql: str) -> dict[str, str]:
        """Trino's own minimum ages, 7 days by default, are off for the two procedures that have one: requests are checked
        when they are accepted."""
        found = [name for name in (ExpireSnapshots.name, RemoveOrphanFiles.name) if f" EXECUTE {name}(" in sql]
        return {f"{theirs}.{name}_min_retention": "0s" for name in found for theirs in {*self._catalogs.values()}}

    async def _read(self, engine: Any, query: Query) -> Rows:
        rows: Rows = []
        async with engine.stream(query, spooled=False) as answer:
            async for batch in answer.batches():
                rows += zip(*(column.to_pylist() for column in batch.columns), strict=True)
        return rows

    def find(self, reference: str) -> str | None:
        """The id of the newest statement with this tag, if it has not ended. An attempt runs one after the other."""

        async def ask() -> str | None:
            engine = open_trino(self._options)
            try:
                query = Query("", reference, role=self._role)
                found: Any = await engine.find(reference, query)
                runs = found is not None and (await engine.poll(found, query)).phase is Phase.RUNNING
                return str(found["query_id"]) if runs else None
            finally:
                await engine.close()

        return self._ask(ask)

    def stop(self, handle: str) -> None:
        """Cancel a statement by its id, and return when Trino says that it has ended."""

        async def cancel() -> None:
            engine = open_trino(self._options)
            try:
                query, known = Query("", "", role=self._role), {"query_id": handle, "next_uri": None}
                async with asyncio.timeout(STOP_SECONDS):
                    await engine.cancel(known, query)
                    while (await engine.poll(known, query)).phase is Phase.RUNNING:
                        await asyncio.sleep(LOOK_SECONDS)
            except TimeoutError:
                raise EngineFailed(f"trino did not stop the query {handle} within {STOP_SECONDS:.0f} s") from None
            finally:
                await engine.close()

        self._ask(cancel)

    def _ask(self, question: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        try:
            return asyncio.run(question())
        except EngineError as error:
            raise error_of(error) from error

    def list_tables(self) -> Iterator[TableRef]:
        """Every table of the configured catalogs."""
        for ours, theirs in self._catalogs.items():
            listed = self.query(
                f"SELECT table_schema, table_name FROM {identifier(theirs)}.information_schema.tables "
                "WHERE table_type = 'BASE TABLE' AND table_schema <> 'information_schema'",
                "holdfast-tables",
            )
            for schema, name in listed:
                yield TableRef(ours, schema, name)

    def metadata_table(self, table: TableRef, name: str) -> str:
        """`catalog.schema."table$files"`."""
        return self._name(table, f"{table.name}${name}")

    def properties(self, table: TableRef) -> dict[str, str]:
        """The properties of the table."""
        return dict(self._look(f"SELECT key, value FROM {self.metadata_table(table, 'properties')}"))

    def partition_column(self, table: TableRef) -> str:
        """`partition`; a table without partitions does not have the column."""
        columns = {row[0] for row in self._look(f"DESCRIBE {self.metadata_table(table, 'files')}")}
        return "partition" if "partition" in columns else "content IS NULL"

    def age(self, column: str) -> str:
        """Seconds since a timestamp with time zone."""
        return f"date_diff('second', {column}, current_timestamp)"

    def statement(self, table: TableRef, action: Action, *, dry_run: bool = False) -> str:
        """`ALTER TABLE … EXECUTE`."""
        self.refuse(action, dry_run=dry_run)
        execute = f"ALTER TABLE {self._name(table, table.name)} EXECUTE"
        match action:
            case RewriteDataFiles():
                size = f"(file_size_threshold => '{action.target_file_size}B')" if action.target_file_size else ""
                return f"{execute} optimize{size}" + (f" WHERE {action.where}" if action.where else "")
            case RewriteManifests():
                return f"{execute} optimize_manifests"
            case ExpireSnapshots():
                keep = f", retain_last => {action.retain_last}" if action.retain_last > 1 else ""
                return f"{execute} expire_snapshots(retention_threshold => '{action.older_than}s'{keep})"
            case RemoveOrphanFiles():
                return f"{execute} remove_orphan_files(retention_threshold => '{action.older_than}s')"
            case ComputeStatistics():
                columns = ", ".join(literal(column) for column in action.columns)
                return f"ANALYZE {self._name(table, table.name)}" + (f" WITH (columns = ARRAY[{columns}])" if columns else "")
        raise ActionUnsupported(action.name)

    def figures(self, action: Action, rows: Rows, *, dry_run: bool = False) -> dict[str, Any]:
        """Trino answers with pairs of a metric and its value, or with nothing."""
        return {str(row[0]): row[1] for row in rows if len(row) == 2 and row[0] is not None}

    def close(self) -> None:
        """Nothing is kept open."""

    def _name(self, table: TableRef, name: str) -> str:
        return ".".join(map(identifier, (self._theirs(table.catalog), table.namespace, name)))


def error_of(error: EngineError) -> MaintenanceError:
    """The error of a statement, by its name in Trino: whether another attempt may succeed."""
    said = f"trino: {error}"
    if "'retain_last' does not exist" in said:
        return ActionUnsupported(f"this version of Trino does not have the parameter retain_last; {OTHERS}")
    if error.detail.get("engine_error") in CONFLICT:
        return TableConflict(said)
    return EngineFailed(said) if error.transient else TableRefused(said)
