"""Write Arrow batches to Parquet files: row groups and files of limited size. Counts come from the written files.

Synchronous: call it in a thread. It holds at most one row group besides the one that is being encoded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.extras import lazily
from holdfast.parquet.schema import fitted
from holdfast.stores.local import translated_errors

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
else:
    pa = lazily("pyarrow")
    pq = lazily("pyarrow.parquet")

MIB = 1024 * 1024
LARGEST_DICTIONARY = 256 * 1024  # beyond it values rarely repeat, and lookups take most of the time


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of row groups and files. Only the size of row groups determines the memory that writing needs."""

    group_bytes: int = 16 * MIB  # in memory, as Arrow arrays
    group_rows: int = 122_880  # the default of DuckDB
    file_bytes: int = 256 * MIB
    level: int = 1  # of zstd: takes half the time of its default, for about the same size

    def is_full(self, rows: int, size: int) -> bool:
        """Whether this is enough for a row group."""
        return rows >= self.group_rows or size >= self.group_bytes


@dataclass(frozen=True, slots=True)
class Part:
    """A complete file, with the counts from its footer."""

    number: int
    path: Path
    rows: int
    bytes: int


class PartFiles:
    """Consecutive files of one result; `place(number)` returns the path of each."""

    def __init__(self, schema: pa.Schema, place: Callable[[int], Path], shape: Shape) -> None:
        self.schema, self._place, self._shape = schema, place, shape
        self._writer: Any = None
        self._file: Any = None
        self._path: Path | None = None
        self._number = 0
        self.open_bytes = 0  # of the file that is being written

    def write(self, batches: list[pa.RecordBatch]) -> Part | None:
        """Write one row group; return the file if it is complete. Clears the list and returns memory to the system: Arrow's
        pool would keep it while DuckDB, which has a separate allocator, needs as much."""
        table = pa.Table.from_batches([fitted(batch, self.schema) for batch in batches], self.schema)
        batches.clear()
        with translated_errors():
            self._open()
            self._writer.write_table(table, row_group_size=max(1, table.num_rows))
            self.open_bytes = self._file.tell()
        del table
        pa.default_memory_pool().release_unused()
        return self._close() if self.open_bytes >= self._shape.file_bytes else None

    def finish(self) -> Part | None:
        """Close the last file. A result without rows has one empty file, because the schema is part of the result."""
        if self._writer is None and self._number > 0:
            return None
        with translated_errors():
            self._open()
        return self._close()

    def discard(self) -> None:
        """Close and remove the open file."""
        if self._writer is not None:
            self._writer.is_open = False  # otherwise its finalizer writes the footer to a closed file
        if self._file is not None:
            self._file.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        self._writer = self._file = self._path = None

    def _open(self) -> None:
        if self._writer is not None:
            return
        self._path = self._place(self._number)
        self._file = pa.OSFile(str(self._path), "wb")
        self._writer = pq.ParquetWriter(
            self._file,
            self.schema,
            compression="zstd",
            compression_level=self._shape.level,
            use_dictionary=dictionary_columns(self.schema),
            column_encoding=delta_columns(self.schema) or None,
            dictionary_pagesize_limit=LARGEST_DICTIONARY,
            max_rows_per_page=self._shape.group_rows,  # limit pages by bytes only: small pages take longer and are 25 % larger
        )

    def _close(self) -> Part:
        assert self._path is not None
        with translated_errors():
            self._writer.close()
            self._file.close()
            footer = pq.read_metadata(self._path)
            part = Part(self._number, self._path, footer.num_rows, self._path.stat().st_size)
        self._writer = self._file = self._path = None
        self._number, self.open_bytes = self._number + 1, 0
        return part


def dictionary_columns(schema: pa.Schema) -> list[str] | bool:
    """Columns with dictionary encoding: all but numbers, which rarely repeat, so that it costs time and saves little. Pure."""
    types = pa.types
    numbers = (types.is_integer, types.is_floating, types.is_temporal, types.is_decimal)
    plain = [field.name for field in schema if any(is_one(field.type) for is_one in numbers)]
    return [field.name for field in schema if field.name not in plain] if plain else True


def delta_columns(schema: pa.Schema) -> dict[str, str]:
    """Columns with delta encoding: keys, counts and dates are often ascending, so differences are smaller and faster. Pure.

    Current readers support this encoding (Spark since 3.3, Trino, DuckDB, Arrow).
    """
    types = pa.types
    return {
        field.name: "DELTA_BINARY_PACKED" for field in schema if types.is_integer(field.type) or types.is_temporal(field.type)
    }
