"""A DuckDB that can read what it was shown, and nothing else: no network, no other files, no other settings.

The order matters: databases are attached and folders allowed while that is still possible, then the door is closed and locked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import UsageError
from holdfast.services.exports.engines.duckdb.spill import SpillFolder
from holdfast.services.exports.engines.port import EngineUnavailable, QueryRefused
from holdfast.services.exports.extras import lazily

if TYPE_CHECKING:
    import duckdb
else:
    duckdb = lazily("duckdb")
BEGINS_A_SELECT = re.compile(r"(?:\s|\(|--[^\n]*\n|/\*.*?\*/)*(?:select|with|from|values|table)\b", re.IGNORECASE | re.DOTALL)

# What each connection of ours sets for itself when the rest is locked: progress is counted and never printed, and the rows
# that wait for us are few.
OWN = (("enable_progress_bar", "true"), ("enable_progress_bar_print", "false"), ("streaming_buffer_size", "'8MB'"))


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A database in memory, and the folder where it may spill. Whoever opens it closes it."""

    database: duckdb.DuckDBPyConnection
    spill: SpillFolder

    def connected(self) -> duckdb.DuckDBPyConnection:
        """One more connection: what is set for a connection alone is set here, and for nobody else."""
        connection = self.database.cursor()
        for name, value in OWN:
            connection.execute(f"SET {name} = {value}")
        return connection

    def close(self) -> None:
        self.database.close()
        self.spill.remove()


def open_sandbox(
    *,
    folders: Sequence[Path] = (),
    attach: Mapping[str, Path] | None = None,
    memory: str = "128MB",
    threads: int | None = None,
    scratch: Path,
) -> Sandbox:
    """A database in memory, which spills to a folder of its own below `scratch`. Its connections share its limits and doors."""
    spill = SpillFolder(scratch)
    try:
        for folder in folders:
            if spill.path.is_relative_to(folder.resolve()):
                raise UsageError(
                    f"HOLDFAST_DUCKDB_DIRS: {folder} holds {scratch}, where the rows of other exports pass through; "
                    "name a folder that holds data and nothing else, or set HOLDFAST_SCRATCH_DIR to a place outside of it"
                )
        return Sandbox(_closed_database(folders, attach or {}, memory, threads, spill.path), spill)
    except BaseException:
        spill.remove()
        raise


def _closed_database(
    folders: Sequence[Path], attach: Mapping[str, Path], memory: str, threads: int | None, spill: Path
) -> duckdb.DuckDBPyConnection:
    config: dict[str, Any] = {
        "memory_limit": memory,
        "temp_directory": str(spill),
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "allow_community_extensions": False,
        "python_enable_replacements": False,  # a name in SQL must not find a variable of this process
    }
    if threads is not None:
        config["threads"] = threads
    database = duckdb.connect(":memory:", config=config)
    for name, path in attach.items():
        _attach(database, name, path)
    allowed = ", ".join(_text(f"{folder.resolve()}/") for folder in folders)
    database.execute(f"SET allowed_directories = [{allowed}]")
    database.execute("SET enable_external_access = false")
    database.execute(f"SET allowed_configs = [{', '.join(_text(name) for name, _ in OWN)}]")
    database.execute("SET lock_configuration = true")
    return database


def _attach(database: duckdb.DuckDBPyConnection, name: str, path: Path) -> None:
    try:
        database.execute(f"ATTACH {_text(str(path.expanduser().resolve()))} AS {identifier(name)} (READ_ONLY)")
    except duckdb.Error as error:
        raise EngineUnavailable(f"the database {name!r} at {path} cannot be attached: {error}") from None


def identifier(name: str) -> str:
    """A name as SQL wants it, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def one_select(database: duckdb.DuckDBPyConnection, sql: str) -> str:
    """The statement, if it is one SELECT and nothing else. DuckDB's own parser decides, whoever looked before.

    It makes a SELECT of PRAGMA, SHOW and the like, so the first word counts as well.
    """
    try:
        statements = database.extract_statements(sql)
    except duckdb.Error as error:
        raise QueryRefused(str(error)) from None
    is_one = len(statements) == 1 and statements[0].type == duckdb.StatementType.SELECT
    if not is_one or not BEGINS_A_SELECT.match(sql):
        raise QueryRefused("an export is exactly one SELECT")
    return str(statements[0].query).strip().rstrip(";")
