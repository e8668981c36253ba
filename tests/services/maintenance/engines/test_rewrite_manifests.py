"""rewrite_manifests of the embedded engine: fewer manifests with the same entries."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyiceberg.avro.file import AvroFile
from pyiceberg.catalog import Catalog

from holdfast.services.maintenance.engines.actions import RewriteManifests
from holdfast.services.maintenance.engines.interface import Fence, TableRefused
from holdfast.services.maintenance.engines.pyiceberg.engine import PyIcebergEngine
from holdfast.services.maintenance.engines.pyiceberg.paths import normalised
from iceberg_tables import REF, append, create, delete_by_position, fill, rows_of, without


def entries(writer: Catalog) -> set[tuple[str, int, int]]:
    """Every live file with its sequence numbers: delete files apply by them."""
    table = writer.load_table(REF.identifier)
    return {
        (entry.data_file.file_path, entry.sequence_number, entry.file_sequence_number)
        for manifest in table.current_snapshot().manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io)
    }


def test_manifests_become_one_with_the_same_entries(engine: PyIcebergEngine, writer: Catalog, fence: Fence):
    create(writer, partitioned=True)
    expected = fill(writer, 6, parts=2)
    before = entries(writer)

    result = engine.run(REF, RewriteManifests(), fence)

    assert (result.before.manifests, result.after.manifests) == (6, 1)
    assert entries(writer) == before
    assert rows_of(writer) == sorted(expected)
    assert writer.load_table(REF.identifier).current_snapshot().summary.operation.value == "replace"


def test_manifests_of_format_version_1_become_one(engine: PyIcebergEngine, writer: Catalog, fence: Fence):
    create(writer, partitioned=True, **{"format-version": "1"})
    expected = fill(writer, 4, parts=2)
    before = entries(writer)

    result = engine.run(REF, RewriteManifests(), fence)

    table = writer.load_table(REF.identifier)
    (manifest,) = table.current_snapshot().manifests(table.io)
    with AvroFile(table.io.new_input(manifest.manifest_path)) as file:
        assert file.header.meta["format-version"] == "1"
    assert (result.before.manifests, result.after.manifests) == (4, 1)
    assert entries(writer) == before
    assert rows_of(writer) == sorted(expected)


def test_unknown_format_is_refused(engine: PyIcebergEngine, writer: Catalog, fence: Fence):
    place = Path(normalised(create(writer).metadata_location))
    place.write_text(json.dumps({**json.loads(place.read_text()), "format-version": 3, "next-row-id": 0}))

    with pytest.raises(TableRefused, match="has format version 3; the embedded engine writes versions 1 and 2"):
        engine.run(REF, RewriteManifests(), fence)


def test_delete_manifests_are_combined_and_still_apply(engine: PyIcebergEngine, writer: Catalog, fence: Fence):
    create(writer)
    expected = fill(writer, 3)
    for number in (1, 12):
        delete_by_position(writer, [number])
    before = entries(writer)

    result = engine.run(REF, RewriteManifests(), fence)

    assert (result.before.manifests, result.after.manifests) == (5, 2)
    assert entries(writer) == before
    assert rows_of(writer) == without(expected, 1, 12)


def test_rows_that_are_written_later_are_not_deleted_by_older_deletes(engine: PyIcebergEngine, writer: Catalog, fence: Fence):
    create(writer)
    expected = fill(writer, 2)
    delete_by_position(writer, [1])
    engine.run(REF, RewriteManifests(), fence)

    expected += append(writer, [1], text="back")

    assert rows_of(writer) == sorted([*without(expected, 1), (1, 0, "back1")])


def test_few_manifests_are_left_alone(engine: PyIcebergEngine, writer: Catalog, fence: Fence):
    create(writer)
    fill(writer, 3)
    before = writer.load_table(REF.identifier).metadata_location

    result = engine.run(REF, RewriteManifests(min_input_manifests=4), fence)

    assert result.details["rewritten_manifests"] == 0
    assert writer.load_table(REF.identifier).metadata_location == before


def test_a_plan_has_the_numbers(engine: PyIcebergEngine, writer: Catalog):
    create(writer)
    fill(writer, 5)

    planned = engine.plan(REF, RewriteManifests())

    assert planned.details == {"rewritten_manifests": 5, "added_manifests": 1, "entries": 5}
    assert planned.after.manifests == 1
