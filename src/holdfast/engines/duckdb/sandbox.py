"""A DuckDB instance for one query. It reads attached databases and allowed folders; it has no network and locked settings.

Each query has a separate instance. If a query changes something (a setting, a log, a temporary object) or exhausts the memory
limit, no other export is affected.

The order matters: databases are attached and folders allowed first, then the configuration is locked. `disabled_filesystems`
stays unset, because it would also block DuckDB's spill files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.engines.duckdb.spill import SpillFolder
from holdfast.engines.port import EngineUnavailable
from holdfast.errors import UsageError
from holdfast.extras import lazily

if TYPE_CHECKING:
    import duckdb
else:
    duckdb = lazily("duckdb")

# Progress is counted, not printed. The buffer holds about one vector of 2,048 rows per thread: DuckDB counts 16 bytes for a
# text of any length, so 8 MB of buffer held 800 MB of texts of 20 kB. A small buffer is not slower.
STREAMING = (("enable_progress_bar", "true"), ("enable_progress_bar_print", "false"), ("streaming_buffer_size", "'16KB'"))
# DuckDB's allocator keeps freed memory for one second, in an arena per thread: 130 MiB for a vector of texts of 40 MiB. Above
# this size it returns freed memory to the system at once. Vectors of short values are smaller and are kept.
FLUSH_THRESHOLD = ("allocator_bulk_deallocation_flush_threshold", "'4MB'")
# The time to bind an expression grows with the third power of its depth and cannot be interrupted: 128 additions take 0.2 s,
# 900 take a minute.
DEEPEST_EXPRESSION = 128


@dataclass(frozen=True, slots=True)
class Sandbox:
    """An in-memory database and its spill folder. The caller closes it."""

    database: duckdb.DuckDBPyConnection
    spill: SpillFolder
    files: bool  # whether it may read files at all

    def close(self) -> None:
        self.database.close()
        self.spill.remove()


def open_sandbox(
    *,
    folders: Sequence[Path] = (),
    attach: Mapping[str, Path] | None = None,
    memory: str = "128MB",
    max_spill: str = "10GB",
    threads: int | None = None,
    scratch: Path,
) -> Sandbox:
    """Open an in-memory database that spills to a separate folder below `scratch`."""
    refuse_scratch_below(folders, scratch)
    spill = SpillFolder(scratch)
    try:
        config = _config(memory, threads, spill.path)
        return Sandbox(_locked_database(folders, attach or {}, config, max_spill), spill, files=bool(folders))
    except duckdb.Error as error:
        spill.remove()
        raise EngineUnavailable(f"DuckDB cannot start: {error}; check the settings HOLDFAST_DUCKDB_*") from None
    except BaseException:
        spill.remove()
        raise


def refuse_scratch_below(folders: Sequence[Path], scratch: Path) -> None:
    """Raise `UsageError` if a folder that DuckDB may read contains the spill files of other exports."""
    for folder in folders:
        if scratch.resolve().is_relative_to(folder.resolve()):
            raise UsageError(
                f"HOLDFAST_DUCKDB_DIRS: {folder} contains {scratch}, the scratch folder with the rows of other exports; "
                "use a folder that contains only data, or set HOLDFAST_SCRATCH_DIR to a folder outside of it"
            )


def _config(memory: str, threads: int | None, spill: Path) -> dict[str, Any]:
    config: dict[str, Any] = {
        "memory_limit": memory,
        "temp_directory": str(spill),
        "max_expression_depth": DEEPEST_EXPRESSION,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "allow_community_extensions": False,
        "allow_persistent_secrets": False,
        "python_enable_replacements": False,  # otherwise names in SQL resolve to Python variables of this process
    }
    if threads is not None:
        config["threads"] = threads
    return config


def _locked_database(
    folders: Sequence[Path], attach: Mapping[str, Path], config: dict[str, Any], max_spill: str
) -> duckdb.DuckDBPyConnection:
    database = duckdb.connect(":memory:", config=config)
    try:
        database.execute(f"SET max_temp_directory_size = {_text(max_spill)}")  # in `config` DuckDB ignores it
        for name, path in attach.items():
            _attach(database, name, path)
        allowed = ", ".join(_text(f"{folder.resolve()}/") for folder in folders)
        database.execute(f"SET allowed_directories = [{allowed}]")
        database.execute("SET enable_external_access = false")
        for setting, value in (*STREAMING, FLUSH_THRESHOLD):
            database.execute(f"SET {setting} = {value}")
        database.execute("SET lock_configuration = true")
    except BaseException:
        database.close()
        raise
    return database


def _attach(database: duckdb.DuckDBPyConnection, name: str, path: Path) -> None:
    try:
        database.execute(f"ATTACH {_text(str(path.expanduser().resolve()))} AS {identifier(name)} (READ_ONLY)")
    except duckdb.Error as error:
        raise EngineUnavailable(f"the database {name!r} at {path} cannot be attached: {error}") from None


def identifier(name: str) -> str:
    """Quote a name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
