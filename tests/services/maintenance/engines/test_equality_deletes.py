"""Deletes by value, as Flink writes them, are applied by the embedded engine, or refused with a message; never dropped."""

from __future__ import annotations

import pytest
from pyiceberg.avro.file import AvroFile
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import ManifestContent
from pyiceberg.types import DoubleType, IntegerType, NestedField

from holdfast.services.maintenance.engines.actions import RewriteDataFiles, RewriteManifests
from holdfast.services.maintenance.engines.interface import Fence, TableRefused
from holdfast.services.maintenance.engines.pyiceberg import equality_deletes
from holdfast.services.maintenance.engines.pyiceberg.engine import PyIcebergEngine
from iceberg_tables import (
    REF,
    append,
    arrow,
    create,
    delete_by_columns,
    delete_by_position,
    delete_by_value,
    fill,
    rows_of,
    without,
)

SMALL = RewriteDataFiles(min_input_files=2)


def test_a_delete_applies_to_older_files_only(engine: PyIcebergEngine, writer: Catalog, fence: Fence):
    """Position deletes, equality deletes and rows that were written again after them, in one rewrite."""
    create(writer)
    there = fill(writer, 3)
    delete_by_position(writer, [2])
    delete_by_value(writer, [4, 17, 999])
    append(writer, [4])
    delete_by_value(writer, [20])

    result = engine.run(REF, SMALL, fence)

    assert rows_of(writer) == sorted([*without(there, 2, 4, 17, 20), (4, 0, "n4")])
    assert result.details["deleted_rows_applied"] == 4
    assert result.after is not None
    assert (result.before.delete_files, result.after.delete_files, result.after.data_files) == (3, 0, 1)


def test_all_columns_of_a_key_must_be_equal_and_null_equals_null(engine: PyIcebergEngine, writer: Catalog, fence: Fence):
    """Also if the delete file has a narrower type than the table has now."""
    create(writer)
    writer.load_table(REF.identifier).append(arrow([(1, 0, "a"), (1, 1, "a"), (2, 0, "b"), (3, None, "c"), (0, 0, "")]))
    writer.load_table(REF.identifier).append(arrow([(4, 0, None), (5, 0, "e")]))  # type: ignore[list-item]
    delete_by_columns(writer, {"id": [1, 3, 5], "part": [1, None, None]}, id=IntegerType())
    delete_by_columns(writer, {"text": [None]})

    engine.run(REF, SMALL, fence)

    assert rows_of(writer) == [(0, 0, ""), (1, 0, "a"), (2, 0, "b"), (5, 0, "e")]


def test_a_column_that_is_younger_than_a_file_is_null_in_it(engine: PyIcebergEngine, writer: Catalog, fence: Fence):
    create(writer)
    fill(writer, 3, each=2)
    with writer.load_table(REF.identifier).update_schema() as update:
        update.add_column("late", IntegerType())
    delete_by_columns(writer, {"id": [1, 2], "late": [None, 7]})

    engine.run(REF, SMALL, fence)

    assert [row[0] for row in rows_of(writer)] == [0, 2, 3, 4, 5]


def test_a_delete_of_a_partition_applies_there_and_one_without_a_partition_everywhere(
    engine: PyIcebergEngine, writer: Catalog, fence: Fence
):
    create(writer, partitioned=True)
    there = fill(writer, 3, parts=2)
    one = next(iter(writer.load_table(REF.identifier).scan().plan_files())).file
    delete_by_columns(writer, {"text": ["a4", "a5"]}, partition=one.partition)
    gone = 4 if one.partition[0] == 0 else 5

    engine.run(REF, SMALL, fence)

    assert rows_of(writer) == without(there, gone)


@pytest.mark.parametrize("reason", ["type", "rows"])
def test_what_cannot_be_applied_is_refused_and_nothing_changes(
    engine: PyIcebergEngine, writer: Catalog, fence: Fence, reason: str, monkeypatch: pytest.MonkeyPatch
):
    create(writer)
    with writer.load_table(REF.identifier).update_schema() as update:
        update.add_column("ratio", DoubleType())
    fill_with_ratio(writer)
    if reason == "type":
        delete_by_columns(writer, {"ratio": [0.5]})
    else:
        monkeypatch.setattr(equality_deletes, "MOST_ROWS", 2)
        delete_by_value(writer, [1, 2, 3])
    before = writer.load_table(REF.identifier).metadata_location

    with pytest.raises(TableRefused, match="nothing was changed. Use the engine spark or trino"):
        engine.run(REF, SMALL, fence)

    assert writer.load_table(REF.identifier).metadata_location == before


def fill_with_ratio(writer: Catalog) -> None:
    for number in range(2):
        writer.load_table(REF.identifier).append(arrow([(number, 0, "a")]))


def test_a_column_that_the_table_has_dropped_is_refused():
    """Its values are not in the rows that are compared."""
    from pyiceberg.manifest import DataFileContent, FileFormat
    from pyiceberg.schema import Schema
    from pyiceberg.typedef import Record
    from pyiceberg.types import LongType

    from holdfast.services.maintenance.engines.pyiceberg.manifests import Live

    delete = Live(
        "d.parquet", "m", DataFileContent.EQUALITY_DELETES, FileFormat.PARQUET, 0, Record(), 1, 1, 5, None, equality_ids=(9,)
    )

    with pytest.raises(TableRefused, match="does not have at its top level"):
        equality_deletes.refuse([delete], Schema(NestedField(1, "id", LongType())))


def test_spark_and_trino_can_read_a_manifest_of_equality_deletes(engine: PyIcebergEngine, writer: Catalog, fence: Fence):
    """The ids of the columns are a list of int, as the format says. PyIceberg's own schema says long."""
    create(writer)
    there = fill(writer, 2)
    delete_by_value(writer, [4])
    delete_by_value(writer, [5])

    engine.run(REF, RewriteManifests(), fence)

    table = writer.load_table(REF.identifier)
    manifests = [one for one in table.current_snapshot().manifests(table.io) if one.content == ManifestContent.DELETES]
    assert [one.existing_files_count for one in manifests] == [2]
    with AvroFile(table.io.new_input(manifests[0].manifest_path)) as written:
        assert written.schema.find_type("data_file.equality_ids.element") == IntegerType()
    engine.run(REF, SMALL, fence)
    assert rows_of(writer) == without(there, 4, 5)
