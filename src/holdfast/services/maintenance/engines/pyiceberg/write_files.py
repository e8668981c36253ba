"""Write rows as data files of the target size. Memory is bounded by one row group.

Dictionary encoding is used for columns with few distinct values: for the others it costs CPU time and saves nothing.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import (
    _get_parquet_writer_kwargs,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Record

from holdfast.crashpoints import crashpoint
from holdfast.services.maintenance.engines.actions import MiB

ROW_GROUP_BYTES: Final = 96 * MiB  # of Arrow memory
ROW_GROUP_ROWS: Final = 1 << 20
SAMPLE_ROWS: Final = 20_000
FEW_VALUES: Final = 0.1  # distinct values per row, up to which a column gets a dictionary


@dataclass(frozen=True, slots=True)
class _Folder:
    """What a location provider asks about a partition."""

    partition: Record
    spec: PartitionSpec
    schema: Schema

    def to_path(self) -> str:
        return self.spec.partition_to_path(self.partition, self.schema)


@dataclass(slots=True)
class FileWriter:
    """Writes the data files of one group."""

    io: FileIO
    metadata: TableMetadata
    schema: Schema  # of the files: names that Parquet cannot store are replaced
    arrow: Any
    spec_id: int
    partition: Record
    target: int
    rows_per_file: int  # an estimate
    sort_order_id: int | None = None
    files: list[DataFile] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    rows_written: int = 0
    _buffer: list[Any] = field(default_factory=list)
    _rows: int = 0
    _bytes: int = 0
    _open: tuple[Any, Any, Any] | None = None
    _dictionary: list[str] | bool | None = None

    def write(self, chunks: Iterable[Any]) -> None:
        """Write all chunks. The last file is complete afterwards."""
        most = max(1, min(ROW_GROUP_ROWS, self.rows_per_file))
        for chunk in chunks:
            start = 0
            while start < chunk.num_rows:
                part = chunk.slice(start, most - self._rows)
                start += part.num_rows
                self._buffer.append(part)
                self._rows += part.num_rows
                self._bytes += part.nbytes
                if self._rows >= most or self._bytes >= ROW_GROUP_BYTES:
                    self._flush()
        self._flush()
        self._finish()

    def abort(self) -> list[str]:
        """Stop; the paths of the files that were begun, for a clean-up."""
        if self._open is not None:
            writer, stream, _ = self._open
            self._open = None
            for closing in (writer.close, stream.close):
                with suppress(Exception):  # the file is deleted anyway
                    closing()
        return self.paths

    def _flush(self) -> None:
        """Write one row group, and finish the file if it has its size."""
        if not self._rows:
            return
        table = pa.concat_tables(self._buffer)
        rows, self._buffer, self._rows, self._bytes = self._rows, [], 0, 0
        if self._open is None:
            self._begin(table)
        assert self._open is not None
        writer, stream, _ = self._open
        writer.write_table(table, row_group_size=rows)
        self.rows_written += rows
        crashpoint("maintenance.rewrite.writing")
        if stream.tell() >= self.target * 0.95:
            self._finish()

    def _begin(self, sample: Any) -> None:
        if self._dictionary is None:
            self._dictionary = dictionary_columns(sample)
        provider = load_location_provider(self.metadata.location, self.metadata.properties)
        spec = self.metadata.specs()[self.spec_id]
        folder: Any = None if spec.is_unpartitioned() else _Folder(self.partition, spec, self.metadata.schema())
        path = provider.new_data_location(f"00000-{len(self.paths)}-{uuid.uuid4()}.parquet", folder)
        self.paths.append(path)
        output = self.io.new_output(path)
        stream: Any = output.create(overwrite=False)
        options = {**_get_parquet_writer_kwargs(self.metadata.properties), "use_dictionary": self._dictionary}
        self._open = (pq.ParquetWriter(stream, schema=self.arrow, store_decimal_as_integer=True, **options), stream, output)

    def _finish(self) -> None:
        """Complete the current file."""
        if self._open is None:
            return
        writer, stream, output = self._open
        writer.close()
        stream.close()
        self._open = None
        statistics = data_file_statistics_from_parquet_metadata(
            writer.writer.metadata,
            compute_statistics_plan(self.schema, self.metadata.properties),
            parquet_path_to_id_mapping(self.schema),
        )
        file = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=self.paths[-1],
            file_format=FileFormat.PARQUET,
            partition=self.partition,
            file_size_in_bytes=len(output),
            sort_order_id=self.sort_order_id,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )
        file.spec_id = self.spec_id
        self.files.append(file)


def dictionary_columns(sample: Any) -> list[str] | bool:
    """The columns with few distinct values in the first rows; for nested columns, Parquet's own rule is kept."""
    if any(pa.types.is_nested(one.type) for one in sample.schema):
        return True
    rows = sample.slice(0, SAMPLE_ROWS)
    few = max(1, int(rows.num_rows * FEW_VALUES))
    return [name for name in rows.schema.names if pc.count_distinct(rows[name]).as_py() <= few]
