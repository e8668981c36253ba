"""The interface of stores: files under one prefix that are written once, atomically, and can be listed.

A path is relative to the location of the store and never leaves it (`paths.py`). A file appears completely or not at all, and
never overwrites another file.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from holdfast.errors import HoldfastError
from holdfast.stores.paths import Location


@dataclass(frozen=True, slots=True)
class Found:
    """A file in a store."""

    path: str
    bytes: int


class Store(Protocol):
    """Files under one prefix."""

    location: Location

    def stage(self, path: str) -> Path:
        """The local path to write a file to before it is put: its final folder if that is local, else the scratch folder."""
        ...

    async def put_file(self, path: str, staged: Path) -> int:
        """Put a staged file at its path and remove the staged one; its size in bytes. `AlreadyThere` if the path exists."""
        ...

    async def put(self, path: str, content: bytes) -> None:
        """Put a small file. If two processes do so at once, on any machines, one gets `AlreadyThere`."""
        ...

    async def get(self, path: str) -> bytes:
        """The content of a file; `NotThere` if it does not exist."""
        ...

    async def local_copy(self, path: str) -> Path:
        """The local path of a file, for readers that need one: the file itself if the store is local, else a copy in the
        scratch folder, which `close` removes. `NotThere` if it does not exist. Do not change it."""
        ...

    async def get_file(self, path: str, to: Path) -> int:
        """Copy a file to a local path, piece by piece; its size in bytes. `NotThere` if it does not exist."""
        ...

    async def get_end(self, found: Found, count: int) -> bytes:
        """The last `count` bytes of a file, or the whole file if it is smaller. The whole file may be larger than memory."""
        ...

    def list(self, prefix: str = "") -> AsyncIterator[list[Found]]:
        """List the files below a prefix, in pages. Raises if the listing fails; it is never reported as empty then."""
        ...

    async def delete(self, path: str) -> None:
        """Remove one file. No error if it does not exist."""
        ...

    async def delete_prefix(self, prefix: str) -> int:
        """Remove all files below a non-empty prefix; the number of files."""
        ...

    async def close(self) -> None:
        """Close connections and remove scratch files."""
        ...


class StoreError(HoldfastError):
    """An operation of a store failed. `code` is stable; `transient`: a retry may succeed."""

    code = "store_error"
    transient = False


class AlreadyThere(StoreError):
    """The path exists. Files are never overwritten."""

    code = "store_already_there"


class NotThere(StoreError):
    """The path does not exist."""

    code = "store_not_there"


class StoreDenied(StoreError):
    """401 or 403, also after the credentials were read again. Transient, because a key may be about to be replaced."""

    code = "store_denied"
    transient = True


class StoreUnavailable(StoreError):
    """The store is temporarily unavailable: no connection, overload, an interrupted upload."""

    code = "store_unavailable"
    transient = True


class ScratchFull(StoreError):
    """The local disk is full or not writable. Transient: another worker or a later retry may succeed."""

    code = "scratch_full"
    transient = True
