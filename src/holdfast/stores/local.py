"""Local files: written under a temporary name in the same folder, flushed to disk, then linked to their final name."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from holdfast.stores.paths import Location, PathRefused, joined
from holdfast.stores.port import AlreadyThere, Found, NotThere, ScratchFull, StoreUnavailable
from holdfast.threads import in_thread

PAGE_SIZE = 1000
NOT_WRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM})
NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EXDEV})


class LocalStore:
    """A local folder, below one of the allowed folders."""

    def __init__(self, location: Location, allowed: Sequence[Path], closed: Sequence[Path] = ()) -> None:
        self.location = location
        self._closed = [folder.resolve() for folder in closed]
        self._root = Path(location.prefix)
        self._allowed = [folder.resolve() for folder in allowed]
        self._refuse_outside(self._root)

    def stage(self, path: str) -> Path:
        """A hidden name in the same folder: publishing needs no copy, and removing the folder removes the staged file, too."""
        place = self._place(path)
        with translated_errors():
            place.parent.mkdir(parents=True, exist_ok=True)
        self._refuse_outside(place.parent)
        return place.parent / f".{place.name}.{secrets.token_hex(4)}"

    async def put_file(self, path: str, staged: Path) -> int:
        return int(await in_thread(lambda: self._put_file(path, staged)))

    async def put(self, path: str, content: bytes) -> None:
        def write() -> None:
            staged = self.stage(path)
            try:
                with translated_errors():
                    staged.write_bytes(content)
            except BaseException:
                staged.unlink(missing_ok=True)
                raise
            self._put_file(path, staged)

        await in_thread(write)

    async def get(self, path: str) -> bytes:
        try:
            with translated_errors():
                content: bytes = await in_thread(self._place(path).read_bytes)
        except (FileNotFoundError, NotADirectoryError):
            raise NotThere(f"there is no {self.location.url}/{path}") from None
        return content

    async def local_copy(self, path: str) -> Path:
        place = self._place(path)
        self._refuse_outside(place.parent)
        with translated_errors():
            is_file = await in_thread(lambda: place.is_file() and not place.is_symlink())
        if not is_file:
            raise NotThere(f"there is no {self.location.url}/{path}")
        return place

    async def get_file(self, path: str, to: Path) -> int:
        def copy() -> int:
            with translated_errors():
                shutil.copyfile(self._place(path), to)
                return to.stat().st_size

        try:
            return int(await in_thread(copy))
        except (FileNotFoundError, NotADirectoryError):
            raise NotThere(f"there is no {self.location.url}/{path}") from None

    async def get_end(self, found: Found, count: int) -> bytes:
        def read() -> bytes:
            with self._place(found.path).open("rb") as file:
                file.seek(max(0, found.bytes - count))
                return file.read()

        try:
            with translated_errors():
                content: bytes = await in_thread(read)
        except (FileNotFoundError, NotADirectoryError):
            raise NotThere(f"there is no {self.location.url}/{found.path}") from None
        return content

    async def list(self, prefix: str = "") -> AsyncIterator[list[Found]]:
        folder = self._place(prefix) if prefix else self._root
        found: list[Found] = await in_thread(lambda: [*self._walk(folder)])
        for start in range(0, len(found), PAGE_SIZE):
            yield found[start : start + PAGE_SIZE]

    async def delete(self, path: str) -> None:
        with translated_errors():
            await in_thread(lambda: self._place(path).unlink(missing_ok=True))

    async def delete_prefix(self, prefix: str) -> int:
        def remove() -> int:
            folder = self._place(prefix)
            count = sum(1 for _ in self._walk(folder))
            with translated_errors(), suppress(FileNotFoundError):
                shutil.rmtree(folder)  # does not follow symlinks
            return count

        return int(await in_thread(remove))

    async def close(self) -> None:
        """No resources to release."""

    # -----------------------------------------------------------------------------------------------------------------

    def _put_file(self, path: str, staged: Path) -> int:
        place = self._place(path)
        self._refuse_outside(place.parent)
        try:
            with translated_errors():
                size = _flush(staged)
                _link(staged, place)
                _flush(place.parent)
        except FileExistsError:
            raise AlreadyThere(f"{self.location.url}/{path} already exists; files are never overwritten") from None
        finally:
            staged.unlink(missing_ok=True)
        return size

    def _place(self, path: str) -> Path:
        return self._root / joined(path)

    def _refuse_outside(self, folder: Path) -> None:
        """Check the resolved path: symlinks may point anywhere. Below the root of the store, symlinks are not followed."""
        real = folder.resolve()
        for closed in self._closed:
            if real.is_relative_to(closed):
                raise PathRefused(f"{folder} is in {closed}, which contains passwords and tokens; choose another folder")
        if not any(real.is_relative_to(allowed) for allowed in self._allowed):
            allowed = ", ".join(map(str, self._allowed)) or "none"
            raise PathRefused(
                f"{folder} is not in a folder that this process may write to ({allowed}); add it to HOLDFAST_EXPORT_DIRS, or, "
                "for snapshots, set HOLDFAST_SNAPSHOTS_TO to the same absolute path for the server and the workers"
            )
        if folder != self._root and real != self._root.resolve() / folder.relative_to(self._root):
            raise PathRefused(f"{folder} contains a symlink below {self._root}; symlinks are not followed there")

    def _walk(self, folder: Path) -> Iterator[Found]:
        for at, _, names in os.walk(folder, onerror=_raise_unless_missing):
            for name in sorted(names):
                file = Path(at) / name
                with suppress(FileNotFoundError):
                    yield Found(str(file.relative_to(self._root)), file.lstat().st_size)


@contextmanager
def translated_errors() -> Iterator[None]:
    """Convert errors of the file system to errors of stores."""
    try:
        yield
    except (FileExistsError, FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        if error.errno in NOT_WRITABLE:
            raise ScratchFull(f"scratch_full: the disk is full or not writable: {error}") from error
        raise StoreUnavailable(f"the file system failed: {error}") from error


def _flush(path: Path) -> int:
    """Flush a file or folder to disk; its size."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
        return os.fstat(handle).st_size
    finally:
        os.close(handle)


def _link(staged: Path, place: Path) -> None:
    """Give the file its final name, unless that exists: atomic with hard links, otherwise in two steps."""
    try:
        os.link(staged, place, follow_symlinks=False)
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        os.close(os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        staged.replace(place)


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise StoreUnavailable(f"the folder cannot be read: {error}") from error
