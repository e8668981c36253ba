"""Sort more rows than fit into memory: sorted runs on the local disk, merged block by block.

A block of the merge has one buffer per run. The smallest of the last keys of the buffers is the cut: all rows up to it are in
the buffers, so they are taken, sorted and written. Nulls come last, or first for a descending column, as Iceberg's default
says.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cmp_to_key, partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table import Table
from pyiceberg.table.sorting import NullOrder, SortDirection
from pyiceberg.transforms import IdentityTransform

from holdfast.services.maintenance.engines.actions import MiB, RewriteDataFiles
from holdfast.services.maintenance.engines.interface import TableRefused

RUN_BYTES: Final = 96 * MiB
MERGE_BYTES: Final = 64 * MiB  # of all buffers of a merge
BLOCK_ROWS: Final = 65_536


@dataclass(frozen=True, slots=True)
class Key:
    """A column to sort by."""

    column: str
    descending: bool = False
    nulls_first: bool = False


def sort_keys(table: Table, action: RewriteDataFiles) -> tuple[list[Key], int | None]:
    """The columns to sort by, and the id of the table's sort order if it is that. `TableRefused` if there are none."""
    schema = table.metadata.schema()
    if action.sort_by:
        keys = [Key(name.removeprefix("-"), name.startswith("-"), name.startswith("-")) for name in action.sort_by]
        unknown = [key.column for key in keys if key.column not in schema.column_names]
        if unknown:
            raise TableRefused(f"sort_by: there is no column {unknown[0]!r}; the columns are {', '.join(schema.column_names)}")
        return keys, None
    order = table.sort_order()
    if order.is_unsorted:
        raise TableRefused("the table has no sort order; name the columns with sort_by")
    if any(not isinstance(one.transform, IdentityTransform) for one in order.fields):
        raise TableRefused("the table's sort order has transforms, which the embedded engine does not sort by; use sort_by")
    keys = [
        Key(schema.find_field(one.source_id).name, one.direction == SortDirection.DESC, one.null_order == NullOrder.NULLS_FIRST)
        for one in order.fields
    ]
    return keys, order.order_id


def sorted_chunks(chunks: Iterable[Any], keys: list[Key], *, run_bytes: int = RUN_BYTES) -> Iterator[Any]:
    """The rows in order. Runs are written to a temporary folder, which is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="holdfast-sort-") as folder:
        runs: list[Path] = []
        buffer: list[Any] = []
        size = 0
        for chunk in chunks:
            buffer.append(chunk)
            size += chunk.nbytes
            if size >= run_bytes:
                runs.append(_write_run(buffer, keys, Path(folder) / f"{len(runs)}.arrow"))
                buffer, size = [], 0
        if not runs:
            yield from _blocks(buffer, keys)
            return
        if buffer:
            runs.append(_write_run(buffer, keys, Path(folder) / f"{len(runs)}.arrow"))
            buffer = []
        yield from _merged(runs, keys)


def _blocks(buffer: list[Any], keys: list[Key]) -> Iterator[Any]:
    if buffer:
        yield in_order(pa.concat_tables(buffer), keys)


def in_order(table: Any, keys: list[Key]) -> Any:
    """The table in order. PyArrow places nulls of all columns at one end, so their place is a column of its own."""
    columns: dict[str, Any] = {}
    order: list[tuple[str, str]] = []
    for number, key in enumerate(keys):
        values = table[key.column]
        if values.null_count:
            columns[f"null{number}"] = pc.is_null(values)
            order.append((f"null{number}", "descending" if key.nulls_first else "ascending"))
        columns[f"key{number}"] = values
        order.append((f"key{number}", "descending" if key.descending else "ascending"))
    return table.take(pc.sort_indices(pa.table(columns), sort_keys=order))


def _write_run(buffer: list[Any], keys: list[Key], path: Path) -> Path:
    table = in_order(pa.concat_tables(buffer), keys)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=BLOCK_ROWS)
    return path


class _Run:
    """A sorted run that is read block by block."""

    def __init__(self, path: Path, keys: list[Key], block_bytes: int) -> None:
        self._source = pa.OSFile(str(path), "rb")
        self._reader = pa.ipc.open_file(self._source)
        self._next, self._keys, self._block_bytes = 0, keys, block_bytes
        self.buffer: Any = None
        self.fill()

    def fill(self) -> None:
        """Read until the buffer has a block. At the end of the run it stays empty."""
        parts = [self.buffer] if self.buffer is not None and self.buffer.num_rows else []
        size = sum(part.nbytes for part in parts)
        while size < self._block_bytes and self._next < self._reader.num_record_batches:
            parts.append(pa.Table.from_batches([self._reader.get_batch(self._next)]))
            size += parts[-1].nbytes
            self._next += 1
        self.buffer = pa.concat_tables(parts) if parts else None

    @property
    def is_complete(self) -> bool:
        """Whether all rows that are left are in the buffer."""
        return bool(self._next >= self._reader.num_record_batches)

    def row(self, index: int) -> tuple[Any, ...]:
        """The key of a row."""
        return tuple(self.buffer[key.column][index].as_py() for key in self._keys)

    def take_to(self, cut: tuple[Any, ...] | None) -> Any:
        """Remove the rows up to the cut (all rows without one) from the buffer."""
        low, high = 0, self.buffer.num_rows
        while cut is not None and low < high:
            middle = (low + high) // 2
            if compared(self.row(middle), cut, self._keys) <= 0:
                low = middle + 1
            else:
                high = middle
        end = self.buffer.num_rows if cut is None else low
        taken, self.buffer = self.buffer.slice(0, end), self.buffer.slice(end)
        return taken

    def close(self) -> None:
        """Close the file."""
        self._source.close()


def _merged(paths: list[Path], keys: list[Key]) -> Iterator[Any]:
    block = max(MiB // 4, MERGE_BYTES // len(paths))
    runs = [_Run(path, keys, block) for path in paths]
    try:
        while True:
            left = [run for run in runs if run.buffer is not None and run.buffer.num_rows]
            if not left:
                return
            ends = [run.row(-1 + run.buffer.num_rows) for run in left if not run.is_complete]
            cut = min(ends, key=cmp_to_key(partial(compared, keys=keys))) if ends else None
            yield in_order(pa.concat_tables([run.take_to(cut) for run in left]), keys)
            for run in left:
                run.fill()
    finally:
        for run in runs:
            run.close()


def compared(one: tuple[Any, ...], other: tuple[Any, ...], keys: list[Key]) -> int:
    """-1, 0 or 1, as `in_order` orders two rows. NaN follows the numbers. Pure."""
    for a, b, key in zip(one, other, keys, strict=True):
        if a is None or b is None:
            if a is None and b is None:
                continue
            return -1 if (a is None) == key.nulls_first else 1
        a_nan, b_nan = a != a, b != b
        if a_nan or b_nan:
            if a_nan and b_nan:
                continue
            return 1 if a_nan else -1
        if a != b:
            return -1 if (a < b) != key.descending else 1
    return 0
