"""Load a plan into a new database: nodes before edges, every row or none.

Each table is created, filled by one COPY, and counted. A count that differs from the plan is DATA_LOAD_ERROR. The database
is then closed and opened again read-only; nothing changes it after that.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from holdfast.errors import UsageError
from holdfast.services.graphs.plan import EdgeTable, LoadPlan, NodeTable
from holdfast.services.graphs.server import files, schema
from holdfast.services.graphs.server.columns import UnknownType
from holdfast.services.graphs.server.engines.port import Database, Engine, EngineError, PoolFull, Session
from holdfast.services.graphs.server.status import ServerStatus, TableProgress
from holdfast.stores.opening import StoreOptions
from holdfast.stores.port import StoreError
from holdfast.telemetry.log import log
from holdfast.threads import in_thread

FIRST_FILE = "graph-1"


class LoadFailed(Exception):
    """The load failed for good. `code` is one of the error codes of instances."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


async def load(
    plan: LoadPlan, engine: Engine, folder: Path, *, pool_bytes: int, stores: StoreOptions, status: ServerStatus
) -> Path:
    """The file of the loaded database. `LoadFailed` otherwise; then the folder has no database."""
    began = time.monotonic()
    file = _empty(folder) / FIRST_FILE
    try:
        database = await in_thread(lambda: engine.open(file, pool_bytes=pool_bytes, read_only=False))
    except EngineError as error:
        raise LoadFailed("DATABASE_ERROR", f"{engine.name} cannot create a database in {folder}: {error}") from None
    try:
        session = database.session()
        try:
            for table, progress in zip(plan.tables, status.tables, strict=True):
                await _load_table(session, table, progress, folder=folder / "files", stores=stores)
        finally:
            await in_thread(session.close)
    finally:
        await in_thread(_closed, database)
    log.info("graph_loaded", nodes=status.rows("node"), edges=status.rows("edge"), seconds=round(time.monotonic() - began, 3))
    return file


def _empty(folder: Path) -> Path:
    """The folder, without anything of an earlier start."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("graph-*"):
            old.unlink()
        shutil.rmtree(folder / "files", ignore_errors=True)
    except OSError as error:
        raise LoadFailed("DATABASE_ERROR", f"cannot write to {folder}: {error.strerror}; set HOLDFAST_GRAPH_DATA_DIR") from None
    return folder


async def _load_table(
    session: Session, table: NodeTable | EdgeTable, progress: TableProgress, *, folder: Path, stores: StoreOptions
) -> None:
    began = time.monotonic()
    try:
        progress.state = "fetching"
        brought = await files.bring(table, folder / table.name, stores)
        progress.state = "copying"
        await in_thread(_create, session, table, brought)
        progress.loaded = await in_thread(_fill, session, table, brought)
        progress.state = "loaded"
    except Exception as error:
        progress.state = "failed"
        failure = _failure(table, error)
        if failure is None:
            raise
        raise failure from None
    finally:
        progress.seconds = round(time.monotonic() - began, 3)
        await in_thread(files.discard, folder / table.name)


def _create(session: Session, table: NodeTable | EdgeTable, brought: files.Brought) -> None:
    try:
        session.run(schema.creation(table, brought.schema)).close()
    except (EngineError, UnknownType) as error:
        raise LoadFailed("SCHEMA_CREATE_ERROR", f"cannot create the table {table.name}: {error}") from None


def _fill(session: Session, table: NodeTable | EdgeTable, brought: files.Brought) -> int:
    """COPY the files; the number of rows that the database then has."""
    if brought.files:
        session.run(schema.copying(table.name, brought.files)).close()
    result = session.run(schema.counting(table))
    try:
        count = int(result.arrow(1).column(0)[0].as_py())
    finally:
        result.close()
    if count != table.rows:
        raise LoadFailed("DATA_LOAD_ERROR", f"{table.name} has {count:,} rows after the load, but the plan says {table.rows:,}")
    return count


def _failure(table: NodeTable | EdgeTable, error: Exception) -> LoadFailed | None:
    """The error as an instance shows it; None if it already is one, or is a bug. Pure."""
    if isinstance(error, PoolFull):
        return LoadFailed("DATA_LOAD_ERROR", f"{table.name} needs more memory than the instance has; give it more: {error}")
    if isinstance(error, (EngineError, files.FileWrong, StoreError, UsageError)):
        return LoadFailed("DATA_LOAD_ERROR", f"cannot load {table.name}: {error}")
    if isinstance(error, OSError):
        return LoadFailed("DATA_LOAD_ERROR", f"cannot load {table.name}: {error.strerror or error}")
    return None


def _closed(database: Database) -> None:
    """Close it. Closing writes everything to its one file."""
    database.close()
