"""Read and write the Avro files of a table's metadata, as PyIceberg does and with less work. Called by: `manifests.py`.

- Files of one writer have the same schema. PyIceberg parses and resolves it for each file, which takes longer than reading a
  small manifest; here it is done once.
- PyIceberg compresses each entry by itself. Here a block has many entries, so files are smaller and are read faster.
- Maps of ints, which are most of an entry, are encoded without a call for each value.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import chain
from types import TracebackType
from typing import Any, Final, TypeVar

from pyiceberg.avro.decoder import new_decoder
from pyiceberg.avro.encoder import BinaryEncoder
from pyiceberg.avro.file import META_SCHEMA, AvroFile, AvroFileHeader, AvroOutputFile
from pyiceberg.avro.reader import Reader
from pyiceberg.avro.resolver import construct_reader, resolve_reader
from pyiceberg.avro.writer import BinaryWriter, IntegerWriter, MapWriter, OptionWriter, StringWriter, StructWriter, Writer
from pyiceberg.io import InputFile
from pyiceberg.manifest import (
    DEFAULT_READ_VERSION,
    MANIFEST_ENTRY_SCHEMAS,
    MANIFEST_LIST_FILE_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    PartitionFieldSummary,
)
from pyiceberg.typedef import StructProtocol

D = TypeVar("D", bound=StructProtocol)
Put = Callable[[bytearray, Any], object]

BLOCK_BYTES: Final = 64 << 10  # before compression, as Avro's own libraries have it
SCHEMA_KEY: Final = "avro.schema"
SCHEMAS: Final = 64  # that are kept: each writer and partition spec has one
HEADER: Final = construct_reader(META_SCHEMA, {-1: AvroFileHeader})


# ---------------------------------------------------------------------------------------------------------------------
# Reading
# ---------------------------------------------------------------------------------------------------------------------


def read_entries(source: InputFile) -> list[ManifestEntry]:
    """The entries of a manifest as they are stored: nothing is inherited from the manifest list yet."""
    with KnownFile[ManifestEntry](source, entry_reader) as file:
        return list(file)


def read_list(source: InputFile) -> list[ManifestFile]:
    """The manifests of a manifest list."""
    with KnownFile[ManifestFile](source, list_reader) as file:
        return list(file)


class KnownFile(AvroFile[D]):
    """An Avro file whose reader may be known from another file with the same schema."""

    __slots__ = ("find_reader",)

    def __init__(self, source: InputFile, find_reader: Callable[[str], Reader]) -> None:
        super().__init__(source)
        self.find_reader = find_reader

    def __enter__(self) -> KnownFile[D]:
        with self.input_file.open() as file:
            self.decoder = new_decoder(file.read())
        self.header = HEADER.read(self.decoder)
        self.reader = self.find_reader(self.header.meta.get(SCHEMA_KEY, ""))
        return self


@lru_cache(SCHEMAS)
def entry_reader(avro_schema: str) -> Reader:
    """Reads entries of a manifest with this schema."""
    return resolve_reader(
        schema_of(avro_schema),
        MANIFEST_ENTRY_SCHEMAS[DEFAULT_READ_VERSION],
        read_types={-1: ManifestEntry, 2: DataFile},
        read_enums={0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent},
    )


@lru_cache(SCHEMAS)
def list_reader(avro_schema: str) -> Reader:
    """Reads manifest lists with this schema."""
    return resolve_reader(
        schema_of(avro_schema),
        MANIFEST_LIST_FILE_SCHEMAS[DEFAULT_READ_VERSION],
        read_types={-1: ManifestFile, 508: PartitionFieldSummary},
        read_enums={517: ManifestContent},
    )


def schema_of(avro_schema: str) -> Any:
    """The Iceberg schema of an Avro schema. Pure."""
    return AvroFileHeader(b"", {SCHEMA_KEY: avro_schema}, b"").get_schema()


# ---------------------------------------------------------------------------------------------------------------------
# Writing
# ---------------------------------------------------------------------------------------------------------------------


class BlockFile(AvroOutputFile[D]):
    """An Avro file with many records in a block. Memory is bounded by one block."""

    def __enter__(self) -> BlockFile[D]:
        super().__enter__()
        self._put, self._block, self._records = put_with(self.writer), bytearray(), 0
        return self

    def write_block(self, objects: list[D]) -> None:
        """Add records; they are written when the block is large enough, and at the end."""
        for one in objects:
            self._put(self._block, one)
        self._records += len(objects)
        if len(self._block) >= BLOCK_BYTES:
            self._flush()

    def _flush(self) -> None:
        if not self._records:
            return
        content, codec = bytes(self._block), self.compression_codec()
        if codec is not None:
            content, _ = codec.compress(content)
        self.encoder.write_int(self._records)
        self.encoder.write_bytes(content)
        self.encoder.write(self.sync_bytes)
        self._block, self._records = bytearray(), 0

    def __exit__(self, exctype: type[BaseException] | None, excinst: BaseException | None, exctb: TracebackType | None) -> None:
        try:
            if exctype is None:
                self._flush()
        finally:
            super().__exit__(exctype, excinst, exctb)


def put_with(writer: Writer) -> Put:
    """A function that appends a value as the writer of PyIceberg encodes it. What is not known here, that writer does."""
    match writer:
        case StructWriter():
            return _struct([(position, put_with(one)) for position, one in writer.field_writers])
        case OptionWriter():
            return _option(put_with(writer.option))
        case MapWriter(IntegerWriter(), IntegerWriter()):
            return put_int_map
        case MapWriter(IntegerWriter(), BinaryWriter()):
            return put_bytes_map
        case IntegerWriter():
            return put_int
        case BinaryWriter():
            return put_bytes
        case StringWriter():
            return put_text
    return lambda out, value: writer.write(_Encoder(out), value)


class _Encoder(BinaryEncoder):
    """PyIceberg's encoder, into memory."""

    def __init__(self, out: bytearray) -> None:
        self._out = out

    def write(self, b: bytes) -> None:
        self._out += b


def _struct(fields: list[tuple[int | None, Put]]) -> Put:
    def put(out: bytearray, value: Any) -> None:
        for position, put_field in fields:
            put_field(out, value[position] if position is not None else None)

    return put


def _option(put_value: Put) -> Put:
    def put(out: bytearray, value: Any) -> None:
        if value is None:
            out.append(0)
        else:
            out.append(2)  # the second branch of the union, in zigzag coding
            put_value(out, value)

    return put


def put_int(out: bytearray, value: int) -> None:
    """Append an int or long: zigzag coding of variable length."""
    rest = (value << 1) ^ (value >> 63)
    while rest > 127:
        out.append(rest & 127 | 128)
        rest >>= 7
    out.append(rest)


def put_bytes(out: bytearray, value: bytes) -> None:
    """Append bytes with their length."""
    put_int(out, len(value))
    out += value


def put_text(out: bytearray, value: str) -> None:
    """Append a text as UTF-8 with its length."""
    put_bytes(out, value.encode())


def put_int_map(out: bytearray, value: Any) -> None:
    """Append a map of ints to ints as one block. As `put_int`, without a call for each value."""
    append = out.append
    for one in chain((len(value),), chain.from_iterable(value.items()), (0,) if value else ()):
        rest = (one << 1) ^ (one >> 63)
        while rest > 127:
            append(rest & 127 | 128)
            rest >>= 7
        append(rest)


def put_bytes_map(out: bytearray, value: Any) -> None:
    """Append a map of ints to bytes as one block."""
    put_int(out, len(value))
    for key, one in value.items():
        put_int(out, key)
        put_int(out, len(one))
        out += one
    if value:
        out.append(0)
