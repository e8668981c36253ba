"""The private names of PyIceberg that the embedded engine uses, and the defects that it works around.

An upgrade that changes one of them fails here, with the place to look at.
"""

from __future__ import annotations

import inspect

import pyiceberg
import pytest
from pyiceberg.catalog.sql import SqlCatalog, SqlCatalogBaseTable
from pyiceberg.expressions import visitors
from pyiceberg.io import pyarrow as arrow_io
from pyiceberg.manifest import ManifestContent, ManifestFile, ManifestWriter, ManifestWriterV2, write_manifest_list
from pyiceberg.table import Transaction
from pyiceberg.table.snapshots import Operation, Summary, update_snapshot_summaries
from pyiceberg.table.update.snapshot import _SnapshotProducer


def test_the_version_is_the_one_that_was_read():
    assert pyiceberg.__version__.startswith("0.12.")


def test_the_functions_of_reading_and_writing_are_there():
    projection = list(inspect.signature(arrow_io._to_requested_schema).parameters)
    assert projection[:3] == ["requested_schema", "file_schema", "batch"]
    assert {"downcast_ns_timestamp_to_us", "projected_missing_fields", "allow_timestamp_tz_mismatch"} <= set(projection)
    assert next(iter(inspect.signature(arrow_io._get_column_projection_values).parameters)) == "file"
    assert {"compression", "data_page_size"} <= set(arrow_io._get_parquet_writer_kwargs({}))
    assert hasattr(arrow_io.PyArrowFileIO({}), "fs_by_scheme")
    assert hasattr(visitors, "_InclusiveMetricsEvaluator")


def test_manifest_writers_are_as_they_were():
    assert {"existing", "delete", "add", "to_manifest_file"} <= set(dir(ManifestWriter))
    assert ManifestWriterV2.content(None) == ManifestContent.DATA  # type: ignore[arg-type] # so ours is needed for delete files
    assert isinstance(inspect.getattr_static(ManifestWriterV2, "_meta"), property)
    assert "sequence_number" in inspect.signature(write_manifest_list).parameters
    assert "discard_deleted" in inspect.signature(ManifestFile.fetch_manifest_entry).parameters


def test_the_sql_catalog_commits_with_one_compare_and_swap():
    """The fence is checked before this UPDATE, in its transaction."""
    source = inspect.getsource(SqlCatalog.commit_table)
    assert "update(IcebergTables)" in source
    assert "IcebergTables.metadata_location == current_table.metadata_location" in source
    assert source.index("_update_and_stage_table") < source.index("update(IcebergTables)")
    assert hasattr(SqlCatalog, "_init_catalog")
    assert {"iceberg_tables", "iceberg_namespace_properties"} == set(SqlCatalogBaseTable.metadata.tables)


def test_summaries_of_replace_are_still_refused():
    """`commit.summary_of` computes the totals as those of an overwrite."""
    with pytest.raises(ValueError, match="not implemented"):
        update_snapshot_summaries(Summary(Operation.REPLACE))


def test_deletes_before_the_newest_commit_are_still_overlooked():
    """The reason for our own validation: the sequence number of the head is taken for that of the start."""
    source = inspect.getsource(_SnapshotProducer._validate_concurrency)
    assert "table, catalog_head, conflict_detection_filter, self._deleted_data_files, starting_snapshot" in source


def test_assertions_on_refs_are_still_dropped_by_a_retry():
    """The reason why the tag of an attempt is asserted by our own commit."""
    source = inspect.getsource(Transaction._rebuild_snapshot_updates)
    assert "not isinstance(r, AssertRefSnapshotId)" in source
