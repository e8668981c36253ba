"""A cancel is noticed inside an action. What was committed before stays, and the result says so."""

from __future__ import annotations

import pytest
from pyiceberg.catalog import Catalog

from holdfast.services.maintenance.engines.actions import (
    Action,
    ComputeStatistics,
    ExpireSnapshots,
    RemoveOrphanFiles,
    RewriteDataFiles,
    RewriteManifests,
)
from holdfast.services.maintenance.engines.interface import ActionCancelled, ActionUnsupported, Fence, Progress
from holdfast.services.maintenance.engines.pyiceberg.engine import PyIcebergEngine
from iceberg_tables import REF, create, files_of, fill, paths_on_disk, rows_of


@pytest.mark.parametrize(
    "action",
    [RewriteDataFiles(min_input_files=2), RewriteManifests(), ExpireSnapshots(older_than=0), RemoveOrphanFiles()],
    ids=lambda action: action.name,
)
def test_a_cancelled_action_changes_nothing(engine: PyIcebergEngine, writer: Catalog, fence: Fence, action: Action):
    create(writer)
    expected = fill(writer, 3)
    before, files = writer.load_table(REF.identifier).metadata_location, paths_on_disk(writer)

    with pytest.raises(ActionCancelled) as caught:
        engine.run(REF, action, fence, cancelled=lambda: True)

    assert caught.value.result.action == action.name
    assert writer.load_table(REF.identifier).metadata_location == before
    assert paths_on_disk(writer) == files
    assert rows_of(writer) == sorted(expected)


def test_groups_that_were_committed_before_the_cancel_stay(engine: PyIcebergEngine, writer: Catalog, fence: Fence):
    create(writer, partitioned=True)
    expected = fill(writer, 4, parts=3)
    seen: list[Progress] = []

    with pytest.raises(ActionCancelled) as caught:
        engine.run(REF, RewriteDataFiles(min_input_files=2), fence, progress=seen.append, cancelled=lambda: len(seen) == 2)

    assert caught.value.result.details["groups"] == 1
    assert (caught.value.result.before.data_files, caught.value.result.after.data_files) == (12, 9)
    assert len(files_of(writer)) == 9
    assert rows_of(writer) == sorted(expected)


def test_progress_is_reported_per_group(engine: PyIcebergEngine, writer: Catalog, fence: Fence):
    create(writer, partitioned=True)
    fill(writer, 2, parts=2)
    seen: list[Progress] = []

    engine.run(REF, RewriteDataFiles(min_input_files=2), fence, progress=seen.append)

    assert [(one.done, one.total) for one in seen] == [(0, 2), (1, 2), (2, 2)]


def test_an_action_that_the_engine_does_not_have_is_refused(engine: PyIcebergEngine, writer: Catalog, fence: Fence):
    create(writer)

    assert not engine.supports("compute_statistics")
    with pytest.raises(ActionUnsupported, match="use the engine spark or trino"):
        engine.run(REF, ComputeStatistics(), fence)
