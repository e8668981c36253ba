"""The rows of data files in the current schema of the table, with delete files applied. Memory is bounded.

Small files are read ahead by a few threads; larger ones are read row group by row group, and large row groups batch by batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import _get_column_projection_values, _to_requested_schema, pyarrow_to_schema, schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema, sanitize_column_names
from pyiceberg.table.metadata import TableMetadata

from holdfast.services.maintenance.engines.actions import MiB
from holdfast.services.maintenance.engines.interface import RowsChanged
from holdfast.services.maintenance.engines.pyiceberg.equality_deletes import EqualityDeletes
from holdfast.services.maintenance.engines.pyiceberg.manifests import Live
from holdfast.services.maintenance.engines.pyiceberg.plan_rewrite import Group

SMALL_FILE: Final = 4 * MiB  # read as a whole, ahead of the writer
AHEAD_BYTES: Final = 16 * MiB
READERS: Final = 4
LARGE_ROW_GROUP: Final = 48 * MiB  # uncompressed; larger ones are read in batches
BATCH_BYTES: Final = 16 * MiB
FIELD_ID: Final = b"PARQUET:field_id"
WIDER: Final = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}


@dataclass(slots=True)
class RowReader:
    """Reads the rows of one group. `rows_read` and `rows_deleted` are complete when all rows were read."""

    io: FileIO
    metadata: TableMetadata
    group: Group
    rows_read: int = 0
    rows_deleted: int = 0
    schema: Schema = field(init=False)
    arrow: Any = field(init=False)
    _deleted: dict[str, Any] = field(init=False, default_factory=dict)
    _equality: EqualityDeletes = field(init=False, default_factory=EqualityDeletes)

    def __post_init__(self) -> None:
        self.schema = sanitize_column_names(self.metadata.schema())
        self.arrow = schema_to_pyarrow(self.schema, include_field_ids=True)

    def chunks(self) -> Iterator[Any]:
        """The rows as Arrow tables, in the order of the files."""
        self._deleted = read_position_deletes(self.io, self.group)
        self._equality = EqualityDeletes.read(self.io, self.group.deletes, self.schema, self.arrow)
        with ThreadPoolExecutor(READERS, "holdfast-read") as pool:
            for chunk in self._ordered(pool):
                self.rows_read += chunk.num_rows
                yield chunk
        expected = sum(file.records for file in self.group.inputs)
        if self.rows_read + self.rows_deleted != expected:
            raise RowsChanged(
                f"{self.rows_read:,} rows were read and {self.rows_deleted:,} are deleted, but the metadata has {expected:,}"
            )

    def _ordered(self, pool: ThreadPoolExecutor) -> Iterator[Any]:
        """Chunks of all files in order. What is read ahead is bounded by the size of the files."""
        ahead: deque[tuple[Future[Any], int]] = deque()
        pending = 0
        for file in self.group.inputs:
            if file.bytes > SMALL_FILE:
                while ahead:
                    future, size = ahead.popleft()
                    pending -= size
                    yield from self._counted(future.result())
                yield from read_ahead(pool, self._read(file), self._counted)
                continue
            ahead.append((pool.submit(self._read_whole, file), file.bytes))
            pending += file.bytes
            while pending > AHEAD_BYTES or len(ahead) > READERS * 4:
                future, size = ahead.popleft()
                pending -= size
                yield from self._counted(future.result())
        for future, _ in ahead:
            yield from self._counted(future.result())

    def _counted(self, read: Sequence[tuple[Any, int]]) -> Iterator[Any]:
        for chunk, deleted in read:
            self.rows_deleted += deleted
            if chunk.num_rows:
                yield chunk

    def _read_whole(self, file: Live) -> list[tuple[Any, int]]:
        return list(self._read(file))

    def _read(self, file: Live) -> Iterator[tuple[Any, int]]:
        """The chunks of one file, each with the number of rows that delete files removed from it."""
        deleted = self._deleted.get(file.path)
        with self.io.new_input(file.path).open() as source, pq.ParquetFile(source, pre_buffer=False, buffer_size=MiB) as opened:
            project = self._projection(file, opened.schema_arrow)
            start = 0
            for table in row_groups(opened):
                kept = table if deleted is None else without(table, deleted, start)
                start += table.num_rows
                rows = self._equality.kept(project(kept), file.sequence)
                yield rows, table.num_rows - rows.num_rows

    def _projection(self, file: Live, physical: Any) -> Callable[[Any], Any]:
        """How tables of this file become tables of the current schema. Most files have it already."""
        if physical.equals(self.arrow) or same_fields(physical, self.arrow):
            return lambda table: table if table.schema.equals(self.arrow, check_metadata=True) else table.cast(self.arrow)
        of_file = pyarrow_to_schema(
            physical,
            self.metadata.name_mapping(),
            downcast_ns_timestamp_to_us=self.metadata.format_version <= 2,
            format_version=self.metadata.format_version,
        )
        missing = _get_column_projection_values(
            _partition_only(file), self.schema, self.metadata.schema(), self.metadata.specs()[file.spec_id], of_file.field_ids
        )

        def project(table: Any) -> Any:
            batches = [
                _to_requested_schema(
                    self.schema,
                    of_file,
                    batch,
                    downcast_ns_timestamp_to_us=self.metadata.format_version <= 2,
                    projected_missing_fields=missing,
                    allow_timestamp_tz_mismatch=True,
                )
                for batch in table.to_batches()
            ]
            return pa.Table.from_batches(batches).cast(self.arrow) if batches else self.arrow.empty_table()

        return project


def read_ahead(pool: ThreadPoolExecutor, items: Iterator[Any], take: Callable[[list[Any]], Iterator[Any]]) -> Iterator[Any]:
    """The items of an iterator, of which the next one is produced in a thread."""
    end = object()
    future = pool.submit(next, items, end)
    while (item := future.result()) is not end:
        future = pool.submit(next, items, end)
        yield from take([item])


def row_groups(opened: Any) -> Iterator[Any]:
    """The row groups of a file; a large one in parts, so that it is never in memory as a whole."""
    for number in range(opened.metadata.num_row_groups):
        row_group = opened.metadata.row_group(number)
        if row_group.total_byte_size <= LARGE_ROW_GROUP or row_group.num_rows == 0:
            yield opened.read_row_group(number, use_threads=False)
            continue
        rows = max(1, BATCH_BYTES * row_group.num_rows // row_group.total_byte_size)
        for batch in opened.iter_batches(batch_size=rows, row_groups=[number], use_threads=False):
            yield pa.Table.from_batches([batch])


def without(table: Any, deleted: Any, start: int) -> Any:
    """The table without the rows at these positions of the file; its first row has the position `start`."""
    here = deleted.filter(pc.and_(pc.greater_equal(deleted, start), pc.less(deleted, start + table.num_rows)))
    if len(here) == 0:
        return table
    positions = pa.array(range(start, start + table.num_rows), pa.int64())
    return table.filter(pc.invert(pc.is_in(positions, value_set=here)))


def read_position_deletes(io: FileIO, group: Group) -> dict[str, Any]:
    """The deleted positions of the files of a group, by file. Only the rows of delete files that concern the group are kept."""
    sequence = {file.path: file.sequence for file in group.inputs}
    found: dict[str, list[Any]] = {}
    for delete in group.deletes:
        if delete.is_equality_delete:
            continue
        paths = pa.array([path for path, number in sequence.items() if number <= delete.sequence], pa.string())
        with io.new_input(delete.path).open() as source, pq.ParquetFile(source) as opened:
            for batch in opened.iter_batches(columns=["file_path", "pos"], use_threads=False):
                table = pa.table({"path": batch.column("file_path").cast(pa.string()), "pos": batch.column("pos")})
                table = table.filter(pc.is_in(table["path"], value_set=paths))
                for path in pc.unique(table["path"]).to_pylist():
                    found.setdefault(path, []).append(table.filter(pc.equal(table["path"], path))["pos"])
    return {
        path: pc.unique(pa.chunked_array(list(chain(*(part.chunks for part in parts))), pa.int64()))
        for path, parts in found.items()
    }


def same_fields(physical: Any, wanted: Any) -> bool:
    """Whether two Arrow schemas have the same fields and field ids, also inside of nested types. Texts may have short
    offsets."""
    widened = pa.schema([pa.field(one.name, WIDER.get(one.type, one.type), one.nullable) for one in physical])
    return bool(widened.equals(wanted, check_metadata=False)) and _ids(physical) == _ids(wanted)


def _ids(fields: Any) -> list[Any]:
    return [((one.metadata or {}).get(FIELD_ID), _ids(_children(one.type))) for one in fields]


def _children(kind: Any) -> list[Any]:
    return [kind.field(index) for index in range(kind.num_fields)]


def _partition_only(file: Live) -> DataFile:
    """A data file as far as PyIceberg reads it to fill columns from the partition."""
    return DataFile.from_args(partition=file.partition)
