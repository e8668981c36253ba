"""Receive an upload: streamed to a file of the store, limited in size, with its hash.

The body is multipart/form-data with the field `file`, or the file itself. Never more than a piece of it is in memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Final

from holdfast.errors import UsageError
from holdfast.extras import lazily
from holdfast.threads import in_thread

multipart: Any = lazily("python_multipart.multipart")

FIELD: Final = "file"
LONGEST_NAME: Final = 255


class UploadTooLarge(UsageError):
    """The file is larger than the limit."""

    slug = "too-large"


class UploadUnreadable(UsageError):
    """The body is not an upload."""

    slug = "unreadable"


@dataclass(slots=True)
class Received:
    """A file that has arrived."""

    name: str = "upload"
    size: int = 0
    _hash: Any = field(default_factory=hashlib.sha256)

    @property
    def sha256(self) -> str:
        return str(self._hash.hexdigest())


async def receive(body: AsyncIterator[bytes], content_type: str, place: Path, largest: int) -> Received:
    """Write the file of this body to a place. `UploadTooLarge` as soon as it is; the caller removes the place then."""
    received = Received()
    with place.open("wb") as file:
        take = _writer(received, file, largest)
        parser = _Multipart(content_type, received, take) if content_type.startswith("multipart/form-data") else None
        async for piece in body:
            await in_thread(take if parser is None else parser.write, piece)
        if parser is not None:
            parser.finish()
    return received


def _writer(received: Received, file: BinaryIO, largest: int) -> Callable[[bytes], None]:
    def take(piece: bytes) -> None:
        received.size += len(piece)
        if received.size > largest:
            raise UploadTooLarge(
                f"the file has more than {largest:,} bytes; split it, or raise HOLDFAST_INGESTION_LARGEST_UPLOAD"
            )
        received._hash.update(piece)
        file.write(piece)

    return take


class _Multipart:
    """Takes the field `file` from multipart/form-data."""

    def __init__(self, content_type: str, received: Received, take: Callable[[bytes], None]) -> None:
        _, options = multipart.parse_options_header(content_type)
        boundary = options.get(b"boundary")
        if not boundary:
            raise UploadUnreadable("Content-Type has no boundary; send multipart/form-data as a browser does")
        self._received, self._take = received, take
        self._headers: dict[bytes, bytes] = {}
        self._name, self._value = b"", b""
        self._is_file, self._has_file, self._ended = False, False, False
        callbacks = {
            "on_part_begin": self._begin,
            "on_header_field": self._on_name,
            "on_header_value": self._on_value,
            "on_header_end": self._on_header,
            "on_headers_finished": self._on_headers,
            "on_part_data": self._on_data,
            "on_end": self._on_end,
        }
        self._parser = multipart.MultipartParser(boundary, callbacks)

    def write(self, piece: bytes) -> None:
        try:
            self._parser.write(piece)
        except multipart.FormParserError as error:
            raise UploadUnreadable(f"the body is not multipart/form-data: {error}") from None

    def finish(self) -> None:
        """Refuse a body that is cut off or has no file."""
        if not self._ended:
            raise UploadUnreadable("the body ends before its last boundary; send it again")
        if not self._has_file:
            raise UploadUnreadable(f"the body has no file in the field {FIELD!r}")

    def _begin(self) -> None:
        self._headers = {}

    def _on_name(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def _on_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _on_header(self) -> None:
        self._headers[self._name.lower()] = self._value
        self._name, self._value = b"", b""

    def _on_headers(self) -> None:
        _, options = multipart.parse_options_header(self._headers.get(b"content-disposition", b""))
        self._is_file = options.get(b"name") == FIELD.encode()
        if self._is_file and self._has_file:
            raise UploadUnreadable(f"the body has the field {FIELD!r} twice; send one file")
        if self._is_file:
            self._has_file = True
            self._received.name = plain_name(options.get(b"filename", b"").decode("utf-8", "replace"))

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        if self._is_file:
            self._take(data[start:end])

    def _on_end(self) -> None:
        self._ended = True


def plain_name(name: str) -> str:
    """The name of a file without folders and control characters, for people. Pure."""
    last = PurePosixPath(name.replace("\\", "/")).name
    return "".join(sign for sign in last if sign.isprintable())[:LONGEST_NAME] or "upload"
