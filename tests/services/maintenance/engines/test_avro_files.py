"""Manifests as we read and write them, compared with PyIceberg's own code."""

from __future__ import annotations

import random
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from threading import Semaphore
from typing import Any

import pytest
from pyiceberg.avro.encoder import BinaryEncoder
from pyiceberg.avro.resolver import construct_writer
from pyiceberg.catalog import Catalog
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestEntry, ManifestFile, read_manifest_list
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DoubleType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    UUIDType,
)

from holdfast.services.maintenance.engines.actions import RewriteManifests
from holdfast.services.maintenance.engines.interface import Fence
from holdfast.services.maintenance.engines.pyiceberg import avro_files
from holdfast.services.maintenance.engines.pyiceberg.avro_files import entry_reader, put_with
from holdfast.services.maintenance.engines.pyiceberg.engine import PyIcebergEngine
from holdfast.services.maintenance.engines.pyiceberg.manifests import THREADS, entries_in, in_order, manifests_in
from iceberg_tables import REF, create, delete_by_position, fill

INTS = [0, 1, -1, 63, 64, -64, -65, 127, 128, 8191, 8192, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63)]
TYPES: dict[str, tuple[Any, list[Any]]] = {
    "int": (LongType(), INTS),
    "text": (StringType(), ["", "a", "ä" * 100, "x" * 10_000]),
    "bytes": (BinaryType(), [b"", b"\x00", bytes(range(256))]),
    "boolean": (BooleanType(), [True, False]),
    "double": (DoubleType(), [0.0, -1.5]),
    "date": (DateType(), [0, 20_000]),
    "uuid": (UUIDType(), [bytes(16)]),
    "ints": (ListType(1, IntegerType(), element_required=True), [[], [1, 2, -3]]),
    "int map": (MapType(1, IntegerType(), 2, LongType(), value_required=True), [{}, dict(enumerate(INTS))]),
    "bytes map": (MapType(1, IntegerType(), 2, BinaryType(), value_required=True), [{}, {1: b"", 300: b"x" * 200}]),
    "text map": (MapType(1, StringType(), 2, StringType(), value_required=True), [{}, {"a": "b"}]),
}


@pytest.mark.parametrize("required", [True, False])
@pytest.mark.parametrize("name", TYPES)
def test_values_are_encoded_as_pyiceberg_encodes_them(name: str, required: bool):
    kind, values = TYPES[name]
    writer = construct_writer(Schema(NestedField(1, "value", kind, required=required)))
    for value in [*values, *([] if required else [None])]:
        theirs, ours = BytesIO(), bytearray()
        writer.write(BinaryEncoder(theirs), [value])

        put_with(writer)(ours, [value])

        assert bytes(ours) == theirs.getvalue(), value


def same(one: ManifestEntry, other: ManifestEntry) -> bool:
    """Also the spec id, which is not a field of the file."""
    return one == other and one.data_file.spec_id == other.data_file.spec_id and one.data_file == other.data_file


def test_manifests_are_read_as_pyiceberg_reads_them(writer: Catalog):
    create(writer, partitioned=True)
    fill(writer, 3, parts=2)
    delete_by_position(writer, [1])
    table = writer.load_table(REF.identifier)
    place = table.current_snapshot().manifest_list

    ours = manifests_in(place, table.io)

    theirs = list(read_manifest_list(table.io.new_input(place)))
    assert ours == theirs
    assert [repr(one) for one in ours] == [repr(one) for one in theirs]
    for manifest in theirs:
        found = entries_in(manifest, table.io)
        expected = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
        assert len(found) == len(expected) > 0
        assert all(map(same, found, expected))


def test_schema_of_manifests_is_parsed_once(writer: Catalog, engine: PyIcebergEngine):
    create(writer)
    fill(writer, 4)
    table = writer.load_table(REF.identifier)
    entry_reader.cache_clear()

    for manifest in table.current_snapshot().manifests(table.io):
        entries_in(manifest, table.io)

    assert (entry_reader.cache_info().misses, entry_reader.cache_info().hits) == (1, 3)


@pytest.mark.parametrize("block_bytes", [1, 1500, 1 << 30])
def test_pyiceberg_reads_manifests_with_any_size_of_block(
    engine: PyIcebergEngine, writer: Catalog, fence: Fence, monkeypatch: pytest.MonkeyPatch, block_bytes: int
):
    """One entry in a block, some, and all in one."""
    monkeypatch.setattr(avro_files, "BLOCK_BYTES", block_bytes)
    create(writer, partitioned=True)
    fill(writer, 6, parts=2)
    before = stored(writer)

    result = engine.run(REF, RewriteManifests(), fence)

    assert result.details["added_manifests"] == 1
    assert stored(writer) == before


def stored(writer: Catalog) -> list[str]:
    """The live files with their statistics and sequence numbers, read by PyIceberg."""
    table = writer.load_table(REF.identifier)
    found = [entry for one in table.current_snapshot().manifests(table.io) for entry in one.fetch_manifest_entry(table.io)]
    return sorted(f"{entry.snapshot_id} {entry.sequence_number} {entry.file_sequence_number} {shown(entry)}" for entry in found)


def shown(entry: ManifestEntry) -> list[Any]:
    """The fields of the file; PyIceberg reads some maps lazily."""
    return [dict(value) if isinstance(value, Mapping) else value for value in entry.data_file._data]


def test_results_come_in_order_and_few_are_read_ahead():
    begun: list[int] = []
    given = list(range(100))
    random.Random(7).shuffle(given)
    with ThreadPoolExecutor(THREADS) as pool:
        results = in_order(pool, lambda item: begun.append(item) or item, given)

        first = next(results)

        assert len(begun) <= THREADS
        assert [first, *results] == given


def test_abandoned_results_are_not_read():
    begun, gate = [], Semaphore(0)

    def read(item: int) -> int:
        begun.append(item)
        gate.acquire()
        return item

    with ThreadPoolExecutor(1) as pool:
        results = in_order(pool, read, range(100))
        gate.release()
        assert next(results) == 0
        results.close()  # type: ignore[attr-defined]
        gate.release(100)

    assert len(begun) <= 2


def test_manifest_without_a_schema_is_refused(writer: Catalog):
    create(writer)
    fill(writer, 1)
    table = writer.load_table(REF.identifier)
    (manifest,) = table.current_snapshot().manifests(table.io)
    damage(table.io, manifest)

    with pytest.raises(ValueError, match=r"."):
        entries_in(manifest, table.io)


def damage(io: FileIO, manifest: ManifestFile) -> None:
    """Rename the key of the schema in the header."""
    with io.new_input(manifest.manifest_path).open() as source:
        content = source.read()
    with io.new_output(manifest.manifest_path).create(overwrite=True) as target:
        target.write(content.replace(b"avro.schema", b"avro.schemA"))
