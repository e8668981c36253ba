"""ladybug, kuzu and ryugraph. ladybug and ryugraph continue kuzu, so all three have its Python API and its Cypher.

Their file formats differ, so a database is always built from Parquet by the engine that reads it. The modules of two of them
cannot be imported in one process: they register the same C++ types.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from holdfast.extras import lazily, loaded
from holdfast.services.graphs.server.engines.port import EngineError, Interrupted, PoolFull, ReadOnlyDatabase

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = lazily("pyarrow")

LONGEST_MS: Final = 2**31 - 1
ADDRESS_SPACE: Final = (
    1 << 38
)  # bytes of virtual memory that a database reserves at most; the default of 8 TiB exceeds common limits


class FamilyEngine:
    """One of the three, by the name of its module."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._module: Any = loaded(name, extra="graphs") if name == "ladybug" else import_module(name)

    @property
    def version(self) -> str:
        return str(self._module.__version__)

    def open(self, file: Path, *, pool_bytes: int, read_only: bool, threads: int = 0) -> FamilyDatabase:
        try:
            opened = self._module.Database(
                str(file),
                buffer_pool_size=pool_bytes,
                max_num_threads=threads,
                read_only=read_only,
                max_db_size=ADDRESS_SPACE,
            )
        except (RuntimeError, OSError) as error:
            raise _translated(error) from None
        return FamilyDatabase(self._module, opened)

    def copy(self, file: Path, to: Path) -> None:
        shutil.copyfile(file, to)


class FamilyDatabase:
    """An open database of one of the three."""

    def __init__(self, module: Any, opened: Any) -> None:
        self._module, self._opened = module, opened

    def session(self, threads: int = 0) -> FamilySession:
        return FamilySession(self._module.Connection(self._opened, num_threads=threads))

    def close(self) -> None:
        self._opened.close()


class FamilySession:
    """A connection of one of the three."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def run(self, cypher: str, parameters: Mapping[str, Any] | None = None, *, seconds: float | None = None) -> FamilyResult:
        # 0 is no timeout; a timeout that has passed must still stop the statement.
        limit = 0 if seconds is None else min(LONGEST_MS, max(1, round(seconds * 1000)))
        self._connection.set_query_timeout(limit)
        try:
            result = self._connection.execute(cypher, dict(parameters)) if parameters else self._connection.execute(cypher)
        except (RuntimeError, ValueError, TypeError, OverflowError) as error:
            raise _translated(error) from None
        if isinstance(result, list):
            for one in result:
                one.close()
            raise EngineError("several statements were given; send one at a time")
        return FamilyResult(result)

    def interrupt(self) -> None:
        self._connection.interrupt()

    def close(self) -> None:
        self._connection.close()


class FamilyResult:
    """A result of one of the three."""

    def __init__(self, result: Any) -> None:
        self._result = result
        self.columns: list[str] = result.get_column_names()
        self.types: list[str] = result.get_column_data_types()
        self.rows: int = result.get_num_tuples()

    def arrow(self, batch_rows: int) -> pa.Table:
        if not self.columns:  # a statement without RETURN
            return pa.table({})
        try:
            table = self._result.get_as_arrow(batch_rows)
        except RuntimeError as error:
            raise _translated(error) from None
        return _plain(table)

    def close(self) -> None:
        self._result.close()


def _plain(table: pa.Table) -> pa.Table:
    """The table without extension types: ladybug has UUIDs as `arrow.uuid`, the others as strings."""
    for number, field in enumerate(table.schema):
        if getattr(field.type, "extension_name", "") == "arrow.uuid":
            texts = [[None if one is None else str(one) for one in chunk.to_pylist()] for chunk in table.column(number).chunks]
            column = pa.chunked_array([pa.array(chunk, pa.string()) for chunk in texts], pa.string())
            table = table.set_column(number, field.name, column)
    return table


def _translated(error: Exception) -> EngineError:
    """The engine's error by its text, which is all that it has. Pure."""
    text = str(error).strip()
    if text.startswith("Interrupted"):
        return Interrupted(text)
    if "Cannot execute write operations in a read-only database" in text:
        return ReadOnlyDatabase(text)
    if text.startswith("Buffer manager exception"):
        return PoolFull(text)
    return EngineError(text)
