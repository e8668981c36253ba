"""Types of Trino's responses, with the fields that this client reads. Other responses raise `ProtocolBroken`."""

from __future__ import annotations

import binascii
from typing import Any, TypeVar

import msgspec

from holdfast.engines.port import Column, Progress, ProtocolBroken
from holdfast.engines.trino.signature import TrinoType, read_signature

EMPTY = (b"", b"null", b"[]")
Read = TypeVar("Read")


class Stats(msgspec.Struct, rename="camel"):
    """The progress of a query."""

    state: str = ""
    queued: bool = False
    progress_percentage: float | None = None
    processed_rows: int | None = None
    processed_bytes: int | None = None

    def progress(self) -> Progress:
        """Convert to the type of the engine interface."""
        percent = self.progress_percentage
        share = None if percent is None else min(1.0, max(0.0, percent / 100))
        return Progress(state=self.state[:40], share=share, rows=self.processed_rows, bytes=self.processed_bytes)


class Failure(msgspec.Struct, rename="camel"):
    """Why a query failed. Only the error name and type are interpreted, never the text of the message."""

    message: str = ""
    error_name: str = ""
    error_type: str = ""
    error_code: int = 0


class AnswerColumn(msgspec.Struct, rename="camel"):
    """A column of a result."""

    name: str
    type: str
    type_signature: dict[str, Any]


class Answer(msgspec.Struct, rename="camel"):
    """The response of POST /v1/statement and of each nextUri. The last response has no nextUri."""

    id: str
    next_uri: str | None = None
    info_uri: str | None = None
    columns: list[AnswerColumn] | None = None
    data: msgspec.Raw = msgspec.Raw()
    stats: Stats = msgspec.field(default_factory=Stats)
    error: Failure | None = None
    update_count: int | None = None

    @property
    def has_data(self) -> bool:
        return bytes(memoryview(self.data)[:5]) not in EMPTY

    @property
    def is_spooled(self) -> bool:
        return bytes(memoryview(self.data)[:1]) == b"{"


class SegmentSizes(msgspec.Struct, rename="camel"):
    """The metadata of a segment. It has no `uncompressed_size` if it was too small to be compressed."""

    segment_size: int = 0
    uncompressed_size: int | None = None
    rows_count: int | None = None


class Segment(msgspec.Struct, rename="camel"):
    """A part of a result: inline in the response, or at an address."""

    type: str
    metadata: SegmentSizes
    data: str | None = None
    uri: str | None = None
    ack_uri: str | None = None
    headers: dict[str, list[str]] = {}

    def inline(self) -> bytes:
        """Return the bytes of an inline segment."""
        try:
            return binascii.a2b_base64(self.data or "", strict_mode=True)
        except binascii.Error as wrong:
            raise ProtocolBroken("an inline segment is not base64") from wrong


class Spooled(msgspec.Struct):
    """The data of a response of the spooling protocol."""

    encoding: str
    segments: list[Segment]


class ErrorCode(msgspec.Struct):
    """The error code in `QueryInfo`."""

    code: int = 0
    name: str = ""
    type: str = ""


class FailureInfo(msgspec.Struct):
    """The error message in `QueryInfo`."""

    message: str | None = None


class QueryStats(msgspec.Struct, rename="camel"):
    """The statistics in `QueryInfo`."""

    written_positions: int | None = None
    progress_percentage: float | None = None


class QueryInfo(msgspec.Struct, rename="camel"):
    """The response of GET /v1/query/{id}."""

    query_id: str
    state: str
    error_code: ErrorCode | None = None
    failure_info: FailureInfo | None = None
    query_stats: QueryStats = msgspec.field(default_factory=QueryStats)

    def failure(self) -> Failure:
        """Return the error as the statement protocol reports it."""
        code, info = self.error_code or ErrorCode(), self.failure_info or FailureInfo()
        return Failure(info.message or "", code.name, code.type, code.code)


def read(body: bytes | msgspec.Raw, type_: type[Read]) -> Read:
    """Decode a response body. Raises `ProtocolBroken` if it does not match the type."""
    try:
        return msgspec.json.decode(body, type=type_)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as wrong:
        raise ProtocolBroken(f"the engine's response cannot be decoded: {str(wrong)[:200]}") from wrong


def read_columns(answered: list[AnswerColumn]) -> tuple[tuple[Column, ...], tuple[TrinoType, ...]]:
    """Return the columns of a result, and their Trino types for decoding."""
    types = tuple(read_signature(column.type_signature) for column in answered)
    return tuple(Column(one.name, one.type, type_.arrow) for one, type_ in zip(answered, types, strict=True)), types
