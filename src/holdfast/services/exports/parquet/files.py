"""Arrow batches into Parquet files: row groups by bytes, files of limited size, everything counted from what was written.

Synchronous, to be called in a thread. At most one row group is held here beside the one that is being encoded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.services.exports.extras import lazily
from holdfast.services.exports.parquet.schema import fitted
from holdfast.services.exports.stores.local import as_ours

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
else:
    pa = lazily("pyarrow")
    pq = lazily("pyarrow.parquet")

MIB = 1024 * 1024
LARGEST_DICTIONARY = 256 * 1024  # beyond it the values hardly repeat, and looking each up is most of the work


@dataclass(frozen=True, slots=True)
class Shape:
    """How files are cut. The memory that writing takes follows from the row groups, and from nothing else."""

    group_bytes: int = 16 * MIB  # as Arrow has them
    group_rows: int = 122_880  # as DuckDB has them
    file_bytes: int = 256 * MIB
    level: int = 1  # of zstd: half the time of its default, and about as small

    def is_full(self, rows: int, size: int) -> bool:
        """Whether so much makes a row group."""
        return rows >= self.group_rows or size >= self.group_bytes


@dataclass(frozen=True, slots=True)
class Part:
    """A file that was written and closed, with what its footer says."""

    number: int
    path: Path
    rows: int
    bytes: int


class PartFiles:
    """Files that follow each other; `place(number)` says where each is written."""

    def __init__(self, schema: pa.Schema, place: Callable[[int], Path], shape: Shape) -> None:
        self.schema, self._place, self._shape = schema, place, shape
        self._writer: Any = None
        self._file: Any = None
        self._path: Path | None = None
        self._number = 0
        self.open_bytes = 0  # of the file that is being written

    def write(self, batches: list[pa.RecordBatch]) -> Part | None:
        """One row group; the file, if it has its size now. Empties the list, and returns the memory to the system: the pool of
        Arrow would keep it while DuckDB, which has an allocator of its own, needs as much."""
        table = pa.Table.from_batches([fitted(batch, self.schema) for batch in batches], self.schema)
        batches.clear()
        with as_ours():
            self._open()
            self._writer.write_table(table, row_group_size=max(1, table.num_rows))
            self.open_bytes = self._file.tell()
        del table
        pa.default_memory_pool().release_unused()
        return self._close() if self.open_bytes >= self._shape.file_bytes else None

    def finish(self) -> Part | None:
        """Close the last file. Without any row there is one file that has none: the schema is part of the result."""
        if self._writer is None and self._number > 0:
            return None
        with as_ours():
            self._open()
        return self._close()

    def abandon(self) -> None:
        """Nothing of what is open is needed."""
        if self._writer is not None:
            self._writer.is_open = False  # or it would write its footer when it is collected, to a file that is closed
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
            use_dictionary=worth_a_dictionary(self.schema),
            column_encoding=by_their_differences(self.schema) or None,
            dictionary_pagesize_limit=LARGEST_DICTIONARY,
            max_rows_per_page=self._shape.group_rows,  # pages end by bytes: small ones take longer and are a quarter larger
        )

    def _close(self) -> Part:
        assert self._path is not None
        with as_ours():
            self._writer.close()
            self._file.close()
            footer = pq.read_metadata(self._path)
            part = Part(self._number, self._path, footer.num_rows, self._path.stat().st_size)
        self._writer = self._file = self._path = None
        self._number, self.open_bytes = self._number + 1, 0
        return part


def worth_a_dictionary(schema: pa.Schema) -> list[str] | bool:
    """Text repeats itself, numbers seldom do: a dictionary of them costs more time than it saves room. Pure."""
    types = pa.types
    numbers = (types.is_integer, types.is_floating, types.is_temporal, types.is_decimal)
    plain = [field.name for field in schema if any(is_one(field.type) for is_one in numbers)]
    return [field.name for field in schema if field.name not in plain] if plain else True


def by_their_differences(schema: pa.Schema) -> dict[str, str]:
    """Keys, counts and days follow each other: what lies between two of them takes a part of the room, and less work. Pure.

    Every reader of the last years knows this encoding (Spark since 3.3, Trino, DuckDB, Arrow).
    """
    types = pa.types
    return {
        field.name: "DELTA_BINARY_PACKED" for field in schema if types.is_integer(field.type) or types.is_temporal(field.type)
    }
