"""S3 and GCS through obstore. Small files are put with a create-only precondition, large ones in parts after a HEAD request.

A lost response is not a failure: before a retry, the existing object is compared. If a server refuses the credentials, they are
read again once, because keys are rotated while workers run.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.extras import lazily
from holdfast.stores.credentials import Credentials
from holdfast.stores.local import translated_errors
from holdfast.stores.paths import Location, joined
from holdfast.stores.port import (
    AlreadyThere,
    Found,
    NotThere,
    StoreDenied,
    StoreError,
    StoreUnavailable,
)
from holdfast.threads import in_thread

if TYPE_CHECKING:
    import obstore
    import obstore.exceptions as said
    import obstore.store as stores
else:
    obstore = lazily("obstore")
    said = lazily("obstore.exceptions")
    stores = lazily("obstore.store")

T = TypeVar("T")
MIB = 1024 * 1024
SMALL = 8 * MIB  # sent in one request, with a precondition
PART = 8 * MIB
PARTS_AT_ONCE = 4
TRIES = 3
PAUSE = 0.5  # seconds before the second try
RETRY_CONFIG: dict[str, Any] = {"max_retries": 4, "retry_timeout": timedelta(seconds=60)}  # obstore's, for one request


class ObjectStore:
    """A prefix in a bucket."""

    def __init__(self, location: Location, credentials: Credentials, scratch: Path) -> None:
        self.location = location
        self._credentials, self._scratch_root = credentials, scratch
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._secrets: tuple[str, ...] = ()
        self._store = self._connect()

    def stage(self, path: str) -> Path:
        """A file in the scratch folder of this store. The folder is removed when the store is closed."""
        name = joined(path).replace("/", "_")
        with translated_errors():
            if self._scratch is None:
                self._scratch_root.mkdir(parents=True, exist_ok=True)
                self._scratch = tempfile.TemporaryDirectory(prefix="holdfast-export-", dir=self._scratch_root)
        return Path(self._scratch.name) / name

    async def put_file(self, path: str, staged: Path) -> int:
        try:
            size, content = await in_thread(lambda: _read_if_small(staged))
            if content is not None:
                await self.put(path, content)
            else:
                await self._put_in_parts(joined(path), staged, size)
        finally:
            await in_thread(lambda: staged.unlink(missing_ok=True))
        return int(size)

    async def put(self, path: str, content: bytes) -> None:
        key = joined(path)
        for number in range(TRIES):
            try:
                await self._ask(lambda store: obstore.put_async(store, key, content, mode="create", use_multipart=False))
                return
            except AlreadyThere:
                if await self.get(path) == content:  # ours: the response to an earlier try was lost
                    return
                raise
            except StoreUnavailable:
                if number == TRIES - 1:
                    raise
                await asyncio.sleep(PAUSE * 2**number)

    async def get(self, path: str) -> bytes:
        async def read(store: Any) -> bytes:
            answer = await obstore.get_async(store, joined(path))
            return bytes(await answer.bytes_async())

        return await self._ask(read)

    async def local_copy(self, path: str) -> Path:
        copy = self.stage(path)
        await self.get_file(path, copy)
        return copy

    async def get_file(self, path: str, to: Path) -> int:
        for number in range(TRIES):
            try:
                return await self._ask(lambda store: _download(store, joined(path), to))
            except StoreUnavailable:  # obstore repeats a request, but not the rest of a body that was cut off
                if number == TRIES - 1:
                    raise
                await asyncio.sleep(PAUSE * 2**number)
        raise AssertionError("unreachable")

    async def get_end(self, found: Found, count: int) -> bytes:
        begin = max(0, found.bytes - count)

        async def read(store: Any) -> bytes:
            return bytes(await obstore.get_range_async(store, joined(found.path), start=begin, end=found.bytes))

        return await self._ask(read)

    async def list(self, prefix: str = "") -> AsyncIterator[list[Found]]:
        below = joined(prefix) if prefix else None
        stream, page = await self._ask(lambda store: _start_listing(store, below))
        while page is not None:
            yield [Found(one["path"], one["size"]) for one in page]
            page = await self._once(lambda _: anext(stream, None))

    async def delete(self, path: str) -> None:
        await self._delete([joined(path)])

    async def delete_prefix(self, prefix: str) -> int:
        joined(prefix)
        count = 0
        async for page in self.list(prefix):
            await self._delete([one.path for one in page])
            count += len(page)
        return count

    async def close(self) -> None:
        if self._scratch is not None:
            self._scratch.cleanup()

    # -----------------------------------------------------------------------------------------------------------------

    async def _put_in_parts(self, key: str, staged: Path, size: int) -> None:
        """Upload in parts. Not every server supports a precondition for that, so check first whether the path exists. Only
        one attempt writes to a path, so there is no race."""
        if await self._size_of(key) is not None:
            raise AlreadyThere(f"{self.location.url}/{key} already exists; files are never overwritten")
        for number in range(TRIES):
            try:
                await self._ask(
                    lambda store: obstore.put_async(
                        store, key, staged, use_multipart=True, chunk_size=PART, max_concurrency=PARTS_AT_ONCE
                    )
                )
                return
            except (
                StoreUnavailable,
                NotThere,
            ):  # NotThere: the multipart upload, completed by a request whose response was lost
                if await self._size_of(key) == size:
                    return
                if number == TRIES - 1:
                    raise
                await asyncio.sleep(PAUSE * 2**number)

    async def _delete(self, keys: Sequence[str]) -> None:
        with suppress(NotThere):
            await self._ask(lambda store: obstore.delete_async(store, keys))

    async def _size_of(self, key: str) -> int | None:
        try:
            return int((await self._ask(lambda store: obstore.head_async(store, key)))["size"])
        except NotThere:
            return None

    async def _ask(self, act: Callable[[Any], Awaitable[T]]) -> T:
        """Send a request. If the server refuses the credentials, read them again and retry once."""
        try:
            return await self._once(act)
        except StoreDenied:
            self._store = self._connect()
        return await self._once(act)

    async def _once(self, act: Callable[[Any], Awaitable[T]]) -> T:
        try:
            return await act(self._store)
        except (said.AlreadyExistsError, said.PreconditionError) as error:
            raise self._error(AlreadyThere, error) from None
        except (said.NotFoundError, FileNotFoundError) as error:
            raise self._error(NotThere, error) from None
        except (said.BaseError, OSError) as error:
            raise self._error(StoreDenied if is_denied(error) else StoreUnavailable, error) from None

    def _error(self, kind: type[StoreError], error: Exception) -> StoreError:
        """Quote the first line of the server's message, without our secrets: a server may send them back."""
        lines = str(error).strip().splitlines()
        text = lines[0] if lines else type(error).__name__
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return kind(f"{self.location.url}: {text[:500]}")

    def _connect(self) -> Any:
        given = self._credentials.read()
        self._secrets = given.secrets
        kind: Any = stores.S3Store if self.location.scheme == "s3" else stores.GCSStore
        return kind(
            self.location.bucket,
            prefix=self.location.prefix or None,
            client_options={"allow_http": given.allow_http, "timeout": "60s"},
            retry_config=RETRY_CONFIG,
            **given.options,
        )


async def _download(store: Any, key: str, to: Path) -> int:
    """Write an object to a local file, part by part; its size."""
    answer, size = await obstore.get_async(store, key), 0
    with translated_errors(), to.open("wb") as file:
        async for part in answer.stream(min_chunk_size=PART):
            size += await in_thread(file.write, part)
    return size


def _read_if_small(staged: Path) -> tuple[int, bytes | None]:
    """The size of a file, and its content if it is small enough for one request."""
    with translated_errors():
        size = staged.stat().st_size
        return size, staged.read_bytes() if size <= SMALL else None


async def _start_listing(store: Any, below: str | None) -> tuple[Any, Any]:
    """Start a listing; its first page."""
    stream = obstore.list(store, below).__aiter__()
    return stream, await anext(stream, None)


def is_denied(error: Exception) -> bool:
    """Whether the server refused the credentials. For listings and multipart uploads only the message has the status."""
    if isinstance(error, (said.PermissionDeniedError, said.UnauthenticatedError)):
        return True
    return any(f"status code: {status}" in str(error) for status in (401, 403))
