"""expire_snapshots of the embedded engine: which snapshots go, which files go with them, and what is kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog

from holdfast.services.maintenance.engines.actions import ExpireSnapshots, RewriteDataFiles
from holdfast.services.maintenance.engines.interface import Fence, TableRefused
from holdfast.services.maintenance.engines.pyiceberg.engine import PyIcebergEngine
from holdfast.services.maintenance.engines.pyiceberg.paths import normalised
from iceberg_tables import REF, append, create, fill, overwrite, paths_on_disk, rows, rows_of

NOW = ExpireSnapshots(older_than=0)


def replaced(writer: Catalog, times: int) -> None:
    """A table whose rows were replaced again and again: every snapshot has files of its own."""
    create(writer)
    append(writer, range(10))
    for number in range(1, times):
        overwrite(writer, rows(range(number * 10, number * 10 + 10)), "id >= 0")


def data_files(writer: Catalog) -> int:
    return sum(path.endswith(".parquet") for path in paths_on_disk(writer))


def test_snapshots_and_their_files_go(engine: PyIcebergEngine, writer: Catalog, fence: Fence):
    replaced(writer, 5)
    before = rows_of(writer)
    assert data_files(writer) == 5

    result = engine.run(REF, NOW, fence)

    table = writer.load_table(REF.identifier)
    assert rows_of(writer) == before
    assert len(table.metadata.snapshots) == 1
    assert data_files(writer) == 1
    assert result.details["deleted_data_files"] == 4
    assert result.after.snapshots == 1


def test_the_newest_are_kept(engine: PyIcebergEngine, writer: Catalog, fence: Fence):
    replaced(writer, 5)
    table = writer.load_table(REF.identifier)
    newest = [snapshot.snapshot_id for snapshot in table.metadata.snapshots][-3:]

    engine.run(REF, ExpireSnapshots(older_than=0, retain_last=3), fence)

    kept = writer.load_table(REF.identifier).metadata.snapshots
    assert [snapshot.snapshot_id for snapshot in kept] == newest


def test_young_snapshots_are_kept(engine: PyIcebergEngine, writer: Catalog, fence: Fence):
    replaced(writer, 3)

    result = engine.run(REF, ExpireSnapshots(older_than=3600), fence)

    assert result.details["expired_snapshots"] == 0
    assert data_files(writer) == 3


def test_tags_and_branches_keep_their_snapshots(engine: PyIcebergEngine, writer: Catalog, fence: Fence):
    replaced(writer, 4)
    table = writer.load_table(REF.identifier)
    first, second = (snapshot.snapshot_id for snapshot in table.metadata.snapshots[:2])
    table.manage_snapshots().create_tag(first, "audit").create_branch(second, "trial").commit()
    tagged = table.scan(snapshot_id=first).to_arrow()["id"].to_pylist()

    engine.run(REF, NOW, fence)

    table = writer.load_table(REF.identifier)
    assert {"audit", "trial", "main"} == set(table.metadata.refs)
    assert {first, second} < {snapshot.snapshot_id for snapshot in table.metadata.snapshots}
    assert table.scan(snapshot_id=first).to_arrow()["id"].to_pylist() == tagged


def test_files_of_a_compaction_go_with_the_snapshots_before_it(engine: PyIcebergEngine, writer: Catalog, fence: Fence):
    create(writer)
    expected = fill(writer, 8)
    engine.run(REF, RewriteDataFiles(min_input_files=2), fence)

    result = engine.run(REF, NOW, fence)

    assert rows_of(writer) == sorted(expected)
    assert result.details["deleted_data_files"] == 8
    assert data_files(writer) == 1


def test_nothing_is_left_that_is_not_referred_to(engine: PyIcebergEngine, writer: Catalog, fence: Fence):
    replaced(writer, 5)

    engine.run(REF, NOW, fence)

    table = writer.load_table(REF.identifier)
    used = {normalised(table.metadata_location), *(normalised(e.metadata_file) for e in table.metadata.metadata_log)}
    for snapshot in table.metadata.snapshots:
        used.add(normalised(snapshot.manifest_list))
        for manifest in snapshot.manifests(table.io):
            used.add(normalised(manifest.manifest_path))
            used |= {normalised(entry.data_file.file_path) for entry in manifest.fetch_manifest_entry(table.io)}
    assert paths_on_disk(writer) == used


def test_a_table_whose_files_are_shared_is_refused(engine: PyIcebergEngine, writer: Catalog, fence: Fence):
    create(writer, **{"gc.enabled": "false"})
    append(writer, range(3))

    with pytest.raises(TableRefused, match="gc.enabled=false"):
        engine.run(REF, NOW, fence)


def test_a_missing_file_of_a_kept_snapshot_deletes_nothing(engine: PyIcebergEngine, writer: Catalog, fence: Fence):
    """What a missing manifest used would be taken for unused."""
    replaced(writer, 4)
    table = writer.load_table(REF.identifier)
    table.manage_snapshots().create_tag(table.metadata.snapshots[1].snapshot_id, "audit").commit()
    manifest = table.metadata.snapshots[1].manifests(table.io)[0].manifest_path
    Path(normalised(manifest)).unlink()
    before = data_files(writer)

    with pytest.raises(Exception, match="No such file|does not exist|Cannot open file"):
        engine.run(REF, NOW, fence)

    assert data_files(writer) == before


def test_a_plan_has_the_numbers_and_changes_nothing(engine: PyIcebergEngine, writer: Catalog):
    replaced(writer, 5)
    before = paths_on_disk(writer)

    planned = engine.plan(REF, NOW)

    assert planned.details["expired_snapshots"] == planned.before.snapshots - 1
    assert planned.details["deleted_data_files"] == 4
    assert planned.after.snapshots == 1
    assert paths_on_disk(writer) == before
