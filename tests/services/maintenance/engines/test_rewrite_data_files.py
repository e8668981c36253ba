"""rewrite_data_files of the embedded engine: small files, partitions, delete files, sorting, dry runs."""

from __future__ import annotations

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.types import DoubleType

from holdfast.services.maintenance.engines.actions import RewriteDataFiles
from holdfast.services.maintenance.engines.interface import Fence, TableRefused
from holdfast.services.maintenance.engines.pyiceberg.engine import PyIcebergEngine
from iceberg_tables import REF, create, delete_by_position, files_of, fill, rows_of, sort_of, without

SMALL = RewriteDataFiles(min_input_files=2)


def test_small_files_become_one(engine: PyIcebergEngine, writer: Catalog, fence: Fence):
    create(writer)
    expected = fill(writer, 12)

    result = engine.run(REF, SMALL, fence)

    assert rows_of(writer) == sorted(expected)
    assert (result.before.data_files, result.after.data_files) == (12, 1)
    assert result.details["rewritten_files"] == 12
    assert result.details["rows"] == 120


def test_each_partition_is_committed_on_its_own(engine: PyIcebergEngine, writer: Catalog, fence: Fence):
    create(writer, partitioned=True)
    expected = fill(writer, 6, parts=3)
    snapshots = len(writer.load_table(REF.identifier).metadata.snapshots)

    result = engine.run(REF, SMALL, fence)

    table = writer.load_table(REF.identifier)
    assert rows_of(writer) == sorted(expected)
    assert len(files_of(writer)) == 3
    assert len(table.metadata.snapshots) == snapshots + 3
    assert result.details["groups"] == 3
    assert table.current_snapshot().summary.operation.value == "replace"


def test_the_snapshot_carries_the_fence(engine: PyIcebergEngine, writer: Catalog, fence: Fence):
    create(writer)
    fill(writer, 3)

    engine.run(REF, SMALL, fence)

    summary = writer.load_table(REF.identifier).current_snapshot().summary
    assert summary["holdfast.fence-token"] == str(fence.fence_token)
    assert summary["holdfast.attempt-id"] == fence.attempt_id
    assert summary["total-records"] == "30"
    assert summary["total-data-files"] == "1"


def test_a_second_run_has_nothing_to_do(engine: PyIcebergEngine, writer: Catalog, fence: Fence):
    create(writer)
    fill(writer, 4)
    engine.run(REF, SMALL, fence)
    before = writer.load_table(REF.identifier).metadata_location

    result = engine.run(REF, SMALL, fence)

    assert result.details["groups"] == 0
    assert writer.load_table(REF.identifier).metadata_location == before


def test_a_partition_with_few_small_files_is_left_alone(engine: PyIcebergEngine, writer: Catalog, fence: Fence):
    create(writer)
    fill(writer, 4)

    assert engine.run(REF, RewriteDataFiles(min_input_files=5), fence).details["groups"] == 0
    assert engine.run(REF, RewriteDataFiles(min_input_files=4), fence).details["groups"] == 1


def test_position_deletes_are_applied_and_their_files_removed(engine: PyIcebergEngine, writer: Catalog, fence: Fence):
    create(writer)
    expected = fill(writer, 4)
    delete_by_position(writer, [3, 17, 18])

    result = engine.run(REF, SMALL, fence)

    assert rows_of(writer) == without(expected, 3, 17, 18)
    assert result.details["deleted_rows_applied"] == 3
    assert (result.before.delete_files, result.after.delete_files) == (1, 0)
    assert writer.load_table(REF.identifier).inspect.delete_files().num_rows == 0


def test_a_single_file_with_deletes_is_rewritten(engine: PyIcebergEngine, writer: Catalog, fence: Fence):
    create(writer)
    expected = fill(writer, 1)
    delete_by_position(writer, [5])

    result = engine.run(REF, RewriteDataFiles(), fence)

    assert rows_of(writer) == without(expected, 5)
    assert result.after.delete_files == 0


def test_delete_files_of_other_partitions_stay(engine: PyIcebergEngine, writer: Catalog, fence: Fence):
    create(writer, partitioned=True)
    expected = fill(writer, 4, parts=2)
    delete_by_position(writer, [2, 3])

    result = engine.run(REF, RewriteDataFiles(min_input_files=2, where="part = 0"), fence)

    assert rows_of(writer) == without(expected, 2, 3)
    assert (result.before.delete_files, result.after.delete_files) == (2, 1)


def test_files_are_split_at_the_target_size(engine: PyIcebergEngine, writer: Catalog, fence: Fence):
    create(writer)
    expected = fill(writer, 4, each=20_000)

    engine.run(REF, RewriteDataFiles(min_input_files=2, target_file_size=64 * 1024), fence)

    sizes = writer.load_table(REF.identifier).inspect.data_files()["file_size_in_bytes"].to_pylist()
    assert rows_of(writer) == sorted(expected)
    assert len(sizes) > 2
    assert max(sizes) < 2 * 64 * 1024


@pytest.mark.more
def test_sorted_files_do_not_overlap(engine: PyIcebergEngine, writer: Catalog, fence: Fence):
    create(writer)
    expected = fill(writer, 8, each=5_000)

    engine.run(REF, RewriteDataFiles("sort", ("-id",), target_file_size=64 * 1024, min_input_files=2), fence)

    read = sorted((sort_of(writer, path) for path in files_of(writer)), reverse=True)
    assert rows_of(writer) == sorted(expected)
    assert len(read) > 1
    assert [number for file in read for number in file] == list(range(39_999, -1, -1))


def test_a_plan_has_the_numbers_and_changes_nothing(engine: PyIcebergEngine, writer: Catalog):
    create(writer)
    fill(writer, 6)
    delete_by_position(writer, [1])
    before = writer.load_table(REF.identifier).metadata_location

    planned = engine.plan(REF, SMALL)

    assert planned.dry_run
    assert planned.details["rewritten_files"] == 6
    assert (planned.before.data_files, planned.after.data_files) == (6, 1)
    assert (planned.before.delete_files, planned.after.delete_files) == (1, 0)
    assert writer.load_table(REF.identifier).metadata_location == before


def test_old_schemas_and_renamed_columns_are_read(engine: PyIcebergEngine, writer: Catalog, fence: Fence):
    create(writer)
    expected = fill(writer, 3)
    with writer.load_table(REF.identifier).update_schema() as update:
        update.rename_column("text", "words")
    with writer.load_table(REF.identifier).update_schema() as update:
        update.add_column("price", DoubleType())

    engine.run(REF, SMALL, fence)

    read = writer.load_table(REF.identifier).scan().to_arrow()
    assert sorted(read["words"].to_pylist()) == sorted(row[2] for row in expected)
    assert read["price"].null_count == 30
    assert len(files_of(writer)) == 1


def test_a_filter_that_is_not_one_is_refused(engine: PyIcebergEngine, writer: Catalog, fence: Fence):
    create(writer)
    fill(writer, 3)

    with pytest.raises(TableRefused, match="where: 'colour = 1' is not a filter on this table"):
        engine.run(REF, RewriteDataFiles(where="colour = 1"), fence)
