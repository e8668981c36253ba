"""Read and write manifests. Called by: every action.

A manifest never changes once it is written, so its entries may be kept by its path. `Live` is the part of an entry that
planning and validation need; a whole entry has the bounds of every column and is much larger.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DEFAULT_READ_VERSION,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriter,
    ManifestWriterV1,
    ManifestWriterV2,
    _inherit_from_manifest,
    data_file_with_partition,
    manifest_entry_schema_with_data_file,
    write_manifest_list,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.typedef import Record, TableVersion
from pyiceberg.types import IntegerType, ListType, StructType

from holdfast.services.maintenance.engines.interface import TableRefused
from holdfast.services.maintenance.engines.pyiceberg.avro_files import BlockFile, read_entries, read_list

FILE_PATH_COLUMN: Final = 2147483546  # the field id of `file_path` in position delete files
THREADS: Final = 8  # that read files of a table: most of their time is waiting for the store
COMPRESSION_PROPERTY: Final = "write.avro.compression-codec"


Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Live:
    """A live file of a snapshot, data or delete."""

    path: str
    manifest: str
    content: DataFileContent
    format: FileFormat
    spec_id: int
    partition: Record
    bytes: int
    records: int
    sequence: int
    referenced: str | None  # of a position delete file: the only data file that it refers to, if there is just one
    encrypted: bool = False
    equality_ids: tuple[int, ...] = ()  # of an equality delete file: the columns that it compares

    @property
    def is_equality_delete(self) -> bool:
        """Whether it deletes rows by their values."""
        return self.content == DataFileContent.EQUALITY_DELETES

    def may_apply_to(self, data: Live, *, unpartitioned: bool) -> bool:
        """Whether this delete file may delete rows of the data file. `unpartitioned`: its spec has no partitions."""
        if self.is_equality_delete:
            return data.sequence < self.sequence and (unpartitioned or self._same_partition(data))
        if data.sequence > self.sequence or not self._same_partition(data):
            return False
        return self.referenced is None or self.referenced == data.path

    def _same_partition(self, data: Live) -> bool:
        return self.spec_id == data.spec_id and self.partition == data.partition


def manifests_of(snapshot: Snapshot | None, io: FileIO) -> list[ManifestFile]:
    """The manifests of a snapshot. Read without PyIceberg's cache, which is never emptied."""
    return manifests_in(snapshot.manifest_list, io) if snapshot else []


def manifests_in(manifest_list: str, io: FileIO) -> list[ManifestFile]:
    """The manifests of a manifest list."""
    return read_list(io.new_input(manifest_list))


def entries_in(manifest: ManifestFile, io: FileIO) -> list[ManifestEntry]:
    """The live entries of one manifest, with their sequence numbers."""
    entries = read_entries(io.new_input(manifest.manifest_path))
    return [_inherit_from_manifest(one, manifest) for one in entries if one.status != ManifestEntryStatus.DELETED]


def in_order(pool: ThreadPoolExecutor, read: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """The results in the order of the items. Few of them are in memory at a time: `pool.map` would keep all."""
    waiting: deque[Future[Result]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(read, item))
            if len(waiting) == THREADS:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


def live_in(manifest: ManifestFile, io: FileIO) -> list[Live]:
    """The live files of one manifest."""
    return [slim(entry, manifest.manifest_path) for entry in entries_in(manifest, io)]


def live_of(manifests: Iterable[ManifestFile], io: FileIO, *, deletes: bool) -> Iterator[Live]:
    """The live data files (or delete files) of these manifests, one manifest at a time."""
    wanted = ManifestContent.DELETES if deletes else ManifestContent.DATA
    for manifest in manifests:
        if manifest.content == wanted and has_live(manifest):
            yield from live_in(manifest, io)


def has_live(manifest: ManifestFile) -> bool:
    """Whether a manifest has live entries, or might have."""
    return manifest.added_files_count != 0 or manifest.existing_files_count != 0


def slim(entry: ManifestEntry, manifest: str) -> Live:
    """The part of an entry that is kept."""
    file = entry.data_file
    return Live(
        path=file.file_path,
        manifest=manifest,
        content=file.content,
        format=file.file_format,
        spec_id=file.spec_id,
        partition=file.partition,
        bytes=file.file_size_in_bytes,
        records=file.record_count,
        sequence=entry.sequence_number or 0,
        referenced=_referenced(file) if file.content == DataFileContent.POSITION_DELETES else None,
        encrypted=file.key_metadata is not None,
        equality_ids=tuple(file.equality_ids or ()),
    )


def _referenced(file: Any) -> str | None:
    """The data file of a position delete file that has only one: the bounds of its column `file_path` are equal."""
    low = (file.lower_bounds or {}).get(FILE_PATH_COLUMN)
    high = (file.upper_bounds or {}).get(FILE_PATH_COLUMN)
    # Bounds may be truncated, but a truncated upper bound is increased: equal bounds are complete.
    return low.decode() if low is not None and low == high else None


# ---------------------------------------------------------------------------------------------------------------------
# Writing
# ---------------------------------------------------------------------------------------------------------------------


class Blocks(ManifestWriter):
    """Writes blocks of many entries."""

    def new_writer(self) -> BlockFile[ManifestEntry]:
        return BlockFile[ManifestEntry](
            output_file=self._output_file,
            file_schema=self._with_partition(self.version),
            record_schema=self._with_partition(DEFAULT_READ_VERSION),
            schema_name="manifest_entry",
            metadata=self._meta,
        )


class DataWriterV1(Blocks, ManifestWriterV1):
    """A manifest of data files in format version 1."""


class DataWriterV2(Blocks, ManifestWriterV2):
    """A manifest of data files in format version 2."""


class DeletesWriter(DataWriterV2):
    """A manifest of delete files; PyIceberg's own writer is for data files only."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}

    def _with_partition(self, format_version: TableVersion) -> Schema:
        """PyIceberg writes `equality_ids` as a list of long. The format says int, and Spark and Trino read nothing else."""
        file = data_file_with_partition(self._spec.partition_type(self._schema), format_version)
        ids = {"field_type": ListType(element_id=136, element_type=IntegerType(), element_required=True)}
        fields = (one.model_copy(update=ids) if one.name == "equality_ids" else one for one in file.fields)
        return manifest_entry_schema_with_data_file(format_version, StructType(*fields))


class ManifestFactory:
    """Writes the manifests and the manifest list of one snapshot, and remembers them for a clean-up."""

    def __init__(self, table: Table, snapshot_id: int) -> None:
        self._table, self._metadata, self._io = table, table.metadata, table.io
        self.snapshot_id = snapshot_id
        self.written: list[str] = []
        self._uuid = uuid.uuid4()

    def manifest(
        self, spec_id: int, add: Callable[[ManifestWriter], object], *, content: ManifestContent = ManifestContent.DATA
    ) -> ManifestFile:
        """Write one manifest. `add` adds at least one entry."""
        spec, schema = self._metadata.specs()[spec_id], self._metadata.schema()
        output = self._io.new_output(self._place(f"{self._uuid}-m{len(self.written)}.avro"))
        of_data = DataWriterV1 if self._metadata.format_version == 1 else DataWriterV2  # others were refused
        make = DeletesWriter if content == ManifestContent.DELETES else of_data
        writer: ManifestWriter = make(spec, schema, output, self.snapshot_id, self._compression)
        with writer:
            add(writer)
        return writer.to_manifest_file()

    def manifest_list(self, manifests: Sequence[ManifestFile], parent: int | None, sequence: int) -> str:
        """Write the manifest list of the snapshot; its location."""
        place = self._place(f"snap-{self.snapshot_id}-0-{self._uuid}.avro")
        with write_manifest_list(
            format_version=self._metadata.format_version,
            output_file=self._io.new_output(place),
            snapshot_id=self.snapshot_id,
            parent_snapshot_id=parent,
            sequence_number=sequence,
            avro_compression=self._compression,
        ) as writer:
            writer.add_manifests(list(manifests))
        return place

    @property
    def _compression(self) -> Any:
        return self._metadata.properties.get(COMPRESSION_PROPERTY, "gzip")

    def _place(self, name: str) -> str:
        place = self._table.location_provider().new_metadata_location(name)
        self.written.append(place)
        return place


def spec_of(metadata: TableMetadata, spec_id: int) -> PartitionSpec:
    """The partition spec with this id."""
    return metadata.specs()[spec_id]


def is_unpartitioned(metadata: TableMetadata, spec_id: int) -> bool:
    """Whether the spec has no partition fields."""
    return spec_of(metadata, spec_id).is_unpartitioned()


def refuse_unknown_format(table: Table) -> None:
    """Raise for tables that this version cannot write correctly."""
    version = table.metadata.format_version
    if version > 2:
        raise TableRefused(
            f"{'.'.join(table.name())} has format version {version}; the embedded engine writes versions 1 and 2. "
            "Use the engine spark or trino for this table"
        )
