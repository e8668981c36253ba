"""Iceberg tables for tests, and writers that know nothing of maintenance: they use PyIceberg as any other program does.

Rows are `(id, part, text)`. `rows_of` reads all rows with PyIceberg's own scan, which applies delete files; together with
the rows that a test expects it shows that nothing is lost, brought back or duplicated. Position and equality delete files
are written as Spark and Flink write them: PyIceberg itself cannot.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import IntegerType, LongType, NestedField, StringType
from pyiceberg.utils.concurrent import ExecutorFactory

from holdfast.errors import ClaimLost
from holdfast.jobs.model import Claim
from holdfast.services.maintenance.engines.catalogs import Catalogs
from holdfast.services.maintenance.engines.interface import Fence, TableRef
from holdfast.services.maintenance.engines.pyiceberg.engine import PyIcebergEngine
from holdfast.services.maintenance.engines.pyiceberg.manifests import DeletesWriter

REF = TableRef("lake", "sales", "orders")
SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "part", IntegerType(), required=False),
    NestedField(3, "text", StringType(), required=False),
)
BY_PART = PartitionSpec(PartitionField(source_id=2, field_id=1000, transform=IdentityTransform(), name="part"))
QUICK = {"commit.retry.num-retries": "100", "commit.retry.min-wait-ms": "1", "commit.retry.max-wait-ms": "20"}
ISOLATION = {"write.delete.isolation-level": "snapshot", "write.update.isolation-level": "snapshot"}
Row = tuple[int, int, str]


@contextmanager
def lake(database: str, folder: Path, **catalog: str) -> Iterator[Catalogs]:
    """A catalog named `lake` in our Postgres, with its warehouse in a folder. Closes what PyIceberg leaves open."""
    given = {"type": "embedded", "warehouse": f"file://{folder}"} | catalog
    catalogs = Catalogs({"lake": given}, database_url=database)
    try:
        yield catalogs
    finally:
        catalogs.close()
        end_threads()


def end_threads() -> None:
    """End the threads of PyIceberg, which it keeps for the whole process."""
    pool, ExecutorFactory._instance = ExecutorFactory._instance, None
    if pool is not None:
        pool.shutdown()


def engine_of(catalogs: Catalogs, database: str) -> PyIcebergEngine:
    """The embedded engine, with the time of the database."""
    return PyIcebergEngine(catalogs, lambda: now_ms(database))


def now_ms(database: str) -> int:
    """The time of the database."""
    with psycopg.connect(database, autocommit=True) as conn:
        row = conn.execute("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint").fetchone()
    assert row is not None
    return int(row[0])


def fence_of(claim: Claim, database: str) -> Fence:
    """The fence of an attempt, as a handler makes it."""

    def check() -> None:
        with psycopg.connect(database, autocommit=True) as conn:
            held = conn.execute(
                "SELECT 1 FROM holdfast.jobs WHERE id = %s AND attempt_id = %s", [claim.id, claim.attempt_id]
            ).fetchone()
        if held is None:
            raise ClaimLost(claim.id, claim.attempt_id, "check")

    return Fence(int(claim.id), str(claim.attempt_id), claim.fence_token, check)


# ---------------------------------------------------------------------------------------------------------------------
# Tables and rows
# ---------------------------------------------------------------------------------------------------------------------


def create(
    catalog: Catalog, ref: TableRef = REF, *, partitioned: bool = False, location: str | None = None, **properties: str
) -> Table:
    """An empty table."""
    catalog.create_namespace_if_not_exists(ref.namespace)
    spec = BY_PART if partitioned else PartitionSpec()
    given = {"format-version": "2", **QUICK, **ISOLATION, **properties}
    return catalog.create_table(ref.identifier, SCHEMA, location=location, partition_spec=spec, properties=given)


def rows(ids: Iterable[int], *, text: str = "a", parts: int = 1) -> list[Row]:
    """Rows with these ids."""
    return [(number, number % parts, f"{text}{number}") for number in ids]


def arrow(given: Iterable[Row]) -> pa.Table:
    listed = list(given)
    columns = list(zip(*listed, strict=True)) if listed else [(), (), ()]
    kinds = (pa.int64(), pa.int32(), pa.string())
    return pa.table(
        {name: pa.array(list(values), kind) for name, values, kind in zip(("id", "part", "text"), columns, kinds, strict=True)}
    )


def fill(catalog: Catalog, files: int, *, each: int = 10, ref: TableRef = REF, parts: int = 1, start: int = 0) -> list[Row]:
    """Append `files` small files of `each` rows; all rows."""
    written: list[Row] = []
    for number in range(files):
        new = rows(range(start + number * each, start + (number + 1) * each), parts=parts)
        catalog.load_table(ref.identifier).append(arrow(new))
        written += new
    return written


def rows_of(catalog: Catalog, ref: TableRef = REF) -> list[Row]:
    """All rows, as PyIceberg reads them."""
    table = catalog.load_table(ref.identifier).scan().to_arrow().select(["id", "part", "text"])
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))


def files_of(catalog: Catalog, ref: TableRef = REF) -> list[str]:
    """The live data files."""
    return sorted(catalog.load_table(ref.identifier).inspect.data_files()["file_path"].to_pylist())


def paths_on_disk(catalog: Catalog, ref: TableRef = REF) -> set[str]:
    """Every file in the table's folder."""
    root = Path(catalog.load_table(ref.identifier).location().removeprefix("file://"))
    return {str(path) for path in root.rglob("*") if path.is_file()}


def make_old(paths: Iterable[str], days: float = 30) -> None:
    """Move the modification time of files into the past."""
    for path in paths:
        then = Path(path).stat().st_mtime - days * 86400
        os.utime(path, (then, then))


# ---------------------------------------------------------------------------------------------------------------------
# Writers
# ---------------------------------------------------------------------------------------------------------------------


def append(catalog: Catalog, ids: Iterable[int], *, ref: TableRef = REF, text: str = "n", parts: int = 1) -> list[Row]:
    new = rows(ids, text=text, parts=parts)
    catalog.load_table(ref.identifier).append(arrow(new))
    return new


def delete(catalog: Catalog, number: int, *, ref: TableRef = REF) -> None:
    """Copy on write: files with the row are rewritten."""
    catalog.load_table(ref.identifier).delete(f"id = {number}")


def upsert(catalog: Catalog, number: int, text: str, *, ref: TableRef = REF, parts: int = 1) -> Row:
    new = (number, number % parts, text)
    catalog.load_table(ref.identifier).upsert(arrow([new]), join_cols=["id"])
    return new


def overwrite(catalog: Catalog, given: Iterable[Row], where: str, *, ref: TableRef = REF) -> None:
    catalog.load_table(ref.identifier).overwrite(arrow(given), overwrite_filter=where)


class _RowDelta(_FastAppendFiles):
    """A commit that adds delete files."""

    def new_manifest_writer(self, spec: PartitionSpec) -> DeletesWriter:
        return DeletesWriter(spec, self.schema(), self.new_manifest_output(), self._snapshot_id, self._compression)

    def _summary(self, snapshot_properties: dict[str, str] = {}) -> Summary:  # noqa: B006 -- as in the base class
        return Summary(Operation.DELETE, **super()._summary(snapshot_properties).additional_properties)


POSITION_SCHEMA = Schema(
    NestedField(2147483546, "file_path", StringType(), required=True),
    NestedField(2147483545, "pos", LongType(), required=True),
)


def delete_by_position(catalog: Catalog, numbers: Iterable[int], *, ref: TableRef = REF, per_partition: bool = True) -> None:
    """Merge on read: write position delete files for the rows with these ids, one per partition, in one commit."""
    table = catalog.load_table(ref.identifier)
    wanted = set(numbers)
    by_partition: dict[Any, list[tuple[str, int]]] = {}
    for task in table.scan().plan_files():
        with table.io.new_input(task.file.file_path).open() as source:
            ids = pq.read_table(source, columns=["id"])["id"].to_pylist()
        for position, number in enumerate(ids):
            if number in wanted:
                by_partition.setdefault(task.file.partition, []).append((task.file.file_path, position))
    files = [_position_file(table, partition, sorted(found)) for partition, found in by_partition.items()]
    _commit_deletes(table, files, may_repeat=False)  # the positions are those of this snapshot


def _position_file(table: Table, partition: Record, found: list[tuple[str, int]]) -> DataFile:
    content = pa.table([pa.array([p for p, _ in found]), pa.array([n for _, n in found])], schema=_arrow_of(POSITION_SCHEMA))
    return _write(table, content, POSITION_SCHEMA, partition, DataFileContent.POSITION_DELETES, None)


def delete_by_value(catalog: Catalog, numbers: Iterable[int], *, ref: TableRef = REF) -> None:
    """Merge on read: write an equality delete file for these ids, as Flink does."""
    delete_by_columns(catalog, {"id": list(numbers)}, ref=ref)


def delete_by_columns(
    catalog: Catalog, values: dict[str, list[Any]], *, ref: TableRef = REF, partition: Record | None = None, **kinds: Any
) -> None:
    """An equality delete file with these columns; `kinds` has types of columns that differ from the table's."""
    table = catalog.load_table(ref.identifier)
    fields = [table.schema().find_field(name) for name in values]
    schema = Schema(*(NestedField(f.field_id, f.name, kinds.get(f.name, f.field_type), required=False) for f in fields))
    content = pa.table(list(values.values()), names=list(values)).cast(_arrow_of(schema))
    ids = [one.field_id for one in fields]
    spec = table.metadata.default_spec_id if partition is not None or table.spec().is_unpartitioned() else 0
    file = _write(table, content, schema, partition or Record(), DataFileContent.EQUALITY_DELETES, ids)
    file.spec_id = spec
    _commit_deletes(table, [file])


def _arrow_of(schema: Schema) -> pa.Schema:
    made = schema_to_pyarrow(schema)
    return pa.schema(
        [pa.field(f.name, pa.string() if pa.types.is_large_string(f.type) else f.type, f.nullable, f.metadata) for f in made]
    )


def _write(
    table: Table, content: pa.Table, schema: Schema, partition: Record, kind: DataFileContent, equality: list[int] | None
) -> DataFile:
    path = f"{table.location()}/data/delete-{uuid.uuid4()}.parquet"
    with table.io.new_output(path).create() as stream:
        pq.write_table(content, stream)
    local = path.removeprefix("file://")
    statistics = data_file_statistics_from_parquet_metadata(
        pq.read_metadata(local),
        compute_statistics_plan(schema, {"write.metadata.metrics.default": "full"}),
        parquet_path_to_id_mapping(schema),
    )
    file = DataFile.from_args(
        content=kind,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=partition,
        file_size_in_bytes=Path(local).stat().st_size,
        sort_order_id=None,
        equality_ids=equality,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )
    file.spec_id = table.metadata.default_spec_id
    return file


def _commit_deletes(table: Table, files: list[DataFile], *, may_repeat: bool = True) -> None:
    """`may_repeat`: PyIceberg may commit on a newer snapshot, which may not have the data files of this one."""
    transaction = table.transaction()
    producer = _RowDelta(operation=Operation.APPEND, transaction=transaction, io=table.io)
    for file in files:
        producer.append_data_file(file)
    producer.commit()
    if not may_repeat:
        transaction._snapshot_producers.clear()
    transaction.commit_transaction()


def without(given: Iterable[Row], *numbers: int) -> list[Row]:
    """The rows without those ids."""
    return sorted(row for row in given if row[0] not in numbers)


def sort_of(catalog: Catalog, path: str) -> list[int]:
    """The ids of one data file in their order."""
    table = catalog.load_table(REF.identifier)
    with table.io.new_input(path).open() as source:
        found: list[int] = pq.read_table(source)["id"].to_pylist()
    return found


def count_nulls(table: pa.Table, column: str) -> int:
    return int(pc.sum(pc.is_null(table[column])).as_py() or 0)
