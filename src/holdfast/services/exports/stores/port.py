"""What a store is: files under one prefix, each written once and whole, and found by listing.

A path is relative to the store's location and never leaves it (`paths.py`). What is put appears whole or not at all, and
never in place of something that is there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from holdfast.errors import HoldfastError
from holdfast.services.exports.stores.paths import Location


@dataclass(frozen=True, slots=True)
class Found:
    """A file in a store."""

    path: str
    bytes: int


class Store(Protocol):
    """Files under one prefix."""

    location: Location

    def stage(self, path: str) -> Path:
        """Where to write a file on this machine before it is put: beside its place if that is local, else in the scratch."""
        ...

    async def put_file(self, path: str, staged: Path) -> int:
        """Put a staged file at its path and remove it here; how many bytes it has. `AlreadyThere` if the path is taken."""
        ...

    async def put(self, path: str, content: bytes) -> None:
        """Put a small file; of two that do so at once one gets `AlreadyThere`, whatever the machine it runs on."""
        ...

    async def get(self, path: str) -> bytes:
        """What is there; `NotThere` if nothing is."""
        ...

    async def get_end(self, found: Found, count: int) -> bytes:
        """The last so many bytes of a file, or all of it: the whole may be larger than our memory."""
        ...

    def list(self, prefix: str = "") -> AsyncIterator[list[Found]]:
        """What is below a prefix, some at a time. Raises when it cannot be read: unknown is never empty."""
        ...

    async def delete(self, path: str) -> None:
        """Remove one file. Done also when it was not there."""
        ...

    async def delete_prefix(self, prefix: str) -> int:
        """Remove everything below a prefix, which must not be empty; how many files that were."""
        ...

    async def close(self) -> None:
        """Give back connections and scratch files."""
        ...


class StoreError(HoldfastError):
    """A store said no. `code` is stable; `transient`: another try may work."""

    code = "store_error"
    transient = False


class AlreadyThere(StoreError):
    """The path is taken: files are written once."""

    code = "store_already_there"


class NotThere(StoreError):
    """Nothing is at this path."""

    code = "store_not_there"


class StoreDenied(StoreError):
    """401 or 403, also with credentials that were read again: a key may be on its way."""

    code = "store_denied"
    transient = True


class StoreUnavailable(StoreError):
    """Not now: no connection, overload, an upload that was cut off."""

    code = "store_unavailable"
    transient = True


class ScratchFull(StoreError):
    """No room, or no right, to write on this machine: another worker or a later try may have it."""

    code = "scratch_full"
    transient = True
