"""Equality deletes: rows that are deleted by their values, as Flink writes them. Called by: the reader of a rewrite.

A row of a data file is deleted if a delete file with a larger sequence number has a row with the same values in the delete
file's columns; null equals null. The delete files of a group are read once, and of each key only the largest sequence number
is kept. They are applied to rows in the current schema of the table, so columns that are younger than a file are null there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, FloatType, PrimitiveType

from holdfast.services.maintenance.engines.interface import TableRefused
from holdfast.services.maintenance.engines.pyiceberg.manifests import Live

MOST_ROWS: Final = 5_000_000  # of the delete files of one group: they are in memory while it is rewritten
FIELD_ID: Final = b"PARQUET:field_id"
SEQUENCE, ROW = "__sequence", "__row"
USE_ANOTHER: Final = "nothing was changed. Use the engine spark or trino for rewrite_data_files"


def refuse(deletes: Iterable[Live], schema: Schema) -> None:
    """Raise if equality delete files cannot be applied here. They are never dropped."""
    found = [delete for delete in deletes if delete.is_equality_delete]
    types = {one.field_id: one.field_type for one in schema.fields}
    for delete in found:
        columns = [types[one] for one in delete.equality_ids if one in types]
        if not delete.equality_ids or len(columns) < len(delete.equality_ids):
            raise TableRefused(
                f"the equality delete file {delete.path} compares columns that the table does not have at its top level; "
                f"{USE_ANOTHER}"
            )
        for column in columns:
            if not isinstance(column, PrimitiveType) or isinstance(column, (FloatType, DoubleType)):
                raise TableRefused(
                    f"the equality delete file {delete.path} compares values of the type {column}, which the embedded engine "
                    f"does not; {USE_ANOTHER}"
                )
    if (rows := sum(delete.records for delete in found)) > MOST_ROWS:
        raise TableRefused(
            f"{rows:,} rows of equality deletes apply to one group of files, more than the {MOST_ROWS:,} that the embedded "
            f"engine keeps in memory; {USE_ANOTHER}"
        )


@dataclass(slots=True)
class EqualityDeletes:
    """The equality deletes of a group: for each list of columns, the deleted keys with their largest sequence number."""

    by_columns: dict[tuple[str, ...], Any] = field(default_factory=dict)

    @classmethod
    def read(cls, io: FileIO, deletes: Iterable[Live], schema: Schema, arrow: Any) -> EqualityDeletes:
        """Read the delete files of a group. `schema` and `arrow` are the current schema of the table."""
        read: dict[tuple[str, ...], list[Any]] = defaultdict(list)
        for delete in deletes:
            if delete.is_equality_delete:
                fields = [arrow.field(schema.find_column_name(one)) for one in sorted(delete.equality_ids)]
                keys = _keys(_columns(io, delete, sorted(delete.equality_ids), fields))
                sequence = pa.array([delete.sequence] * keys.num_rows, pa.int64())
                read[tuple(one.name for one in fields)].append(keys.append_column(SEQUENCE, sequence))
        return cls({columns: _largest(parts) for columns, parts in read.items()})

    def kept(self, table: Any, sequence: int) -> Any:
        """The rows that are not deleted, of a data file with this sequence number. They keep their order."""
        for columns, deleted in self.by_columns.items():
            if table.num_rows == 0:
                break
            rows = pa.array(range(table.num_rows), pa.int64())
            keys = _keys(table.select(columns))
            found = keys.append_column(ROW, rows).join(deleted, keys.column_names, join_type="inner", use_threads=False)
            gone = found.filter(pc.greater(found[SEQUENCE], sequence))[ROW]
            if len(gone):
                table = table.filter(pc.invert(pc.is_in(rows, value_set=gone.combine_chunks())))
        return table


def _columns(io: FileIO, delete: Live, ids: list[int], fields: list[Any]) -> Any:
    """The columns of a delete file, found by their ids, in the types of the table."""
    with io.new_input(delete.path).open() as source, pq.ParquetFile(source) as opened:
        names = {int((one.metadata or {}).get(FIELD_ID, b"-1")): one.name for one in opened.schema_arrow}
        missing = [one for one in ids if one not in names]
        if missing:
            raise TableRefused(f"the equality delete file {delete.path} has no column with the id {missing[0]}; {USE_ANOTHER}")
        table = opened.read(columns=[names[one] for one in ids])
        values = [table[names[number]].cast(one.type) for number, one in zip(ids, fields, strict=True)]
    return pa.table(values, names=[one.name for one in fields])


def _keys(table: Any) -> Any:
    """Columns that can be joined: a join does not match null with null, so each column has a second one that says it."""
    made: dict[str, Any] = {}
    for number, name in enumerate(table.column_names):
        column = table[name]
        made[f"null{number}"] = pc.is_null(column)
        made[f"key{number}"] = pc.fill_null(column, _any_value(column.type))
    return pa.table(made)


def _any_value(kind: Any) -> Any:
    """Some value of a type, in the place of null."""
    if pa.types.is_boolean(kind):
        return pa.scalar(False)
    if pa.types.is_fixed_size_binary(kind):
        return pa.scalar(bytes(kind.byte_width), kind)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.scalar(b"", kind)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pa.scalar("", kind)
    return pa.scalar(0, pa.int32() if pa.types.is_date32(kind) else pa.int64()).cast(kind)


def _largest(parts: list[Any]) -> Any:
    """Each key once, with its largest sequence number."""
    table = pa.concat_tables(parts)
    keys = [name for name in table.column_names if name != SEQUENCE]
    found = table.group_by(keys, use_threads=False).aggregate([(SEQUENCE, "max")])
    return found.rename_columns([SEQUENCE if name == f"{SEQUENCE}_max" else name for name in found.column_names])
