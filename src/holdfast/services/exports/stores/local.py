"""Local files: written beside their place, flushed to disk, and linked into it in one step."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from holdfast.services.exports.stores.paths import Location, PathRefused, joined
from holdfast.services.exports.stores.port import AlreadyThere, Found, NotThere, ScratchFull, StoreUnavailable
from holdfast.worker.threads import in_thread

AT_A_TIME = 1000
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM})
NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EXDEV})


class LocalStore:
    """A folder of this machine, below one of the allowed ones."""

    def __init__(self, location: Location, allowed: Sequence[Path], closed: Sequence[Path] = ()) -> None:
        self.location = location
        self._closed = [folder.resolve() for folder in closed]
        self._root = Path(location.prefix)
        self._allowed = [folder.resolve() for folder in allowed]
        self._refuse_outside(self._root)

    def stage(self, path: str) -> Path:
        """A hidden name in the folder of the file: to put it costs nothing, and who removes the folder removes it, too."""
        place = self._place(path)
        with as_ours():
            place.parent.mkdir(parents=True, exist_ok=True)
        self._refuse_outside(place.parent)
        return place.parent / f".{place.name}.{secrets.token_hex(4)}"

    async def put_file(self, path: str, staged: Path) -> int:
        return int(await in_thread(lambda: self._put_file(path, staged)))

    async def put(self, path: str, content: bytes) -> None:
        def write() -> None:
            staged = self.stage(path)
            try:
                with as_ours():
                    staged.write_bytes(content)
            except BaseException:
                staged.unlink(missing_ok=True)
                raise
            self._put_file(path, staged)

        await in_thread(write)

    async def get(self, path: str) -> bytes:
        try:
            with as_ours():
                content: bytes = await in_thread(self._place(path).read_bytes)
        except (FileNotFoundError, NotADirectoryError):
            raise NotThere(f"there is no {self.location.url}/{path}") from None
        return content

    async def get_end(self, found: Found, count: int) -> bytes:
        def read() -> bytes:
            with self._place(found.path).open("rb") as file:
                file.seek(max(0, found.bytes - count))
                return file.read()

        try:
            with as_ours():
                content: bytes = await in_thread(read)
        except (FileNotFoundError, NotADirectoryError):
            raise NotThere(f"there is no {self.location.url}/{found.path}") from None
        return content

    async def list(self, prefix: str = "") -> AsyncIterator[list[Found]]:
        folder = self._place(prefix) if prefix else self._root
        found: list[Found] = await in_thread(lambda: [*self._walk(folder)])
        for start in range(0, len(found), AT_A_TIME):
            yield found[start : start + AT_A_TIME]

    async def delete(self, path: str) -> None:
        with as_ours():
            await in_thread(lambda: self._place(path).unlink(missing_ok=True))

    async def delete_prefix(self, prefix: str) -> int:
        def remove() -> int:
            folder = self._place(prefix)
            count = sum(1 for _ in self._walk(folder))
            with as_ours(), suppress(FileNotFoundError):
                shutil.rmtree(folder)  # does not follow symlinks
            return count

        return int(await in_thread(remove))

    async def close(self) -> None:
        """Nothing is open."""

    # -----------------------------------------------------------------------------------------------------------------

    def _put_file(self, path: str, staged: Path) -> int:
        place = self._place(path)
        self._refuse_outside(place.parent)
        try:
            with as_ours():
                size = _flush(staged)
                _link(staged, place)
                _flush(place.parent)
        except FileExistsError:
            raise AlreadyThere(f"{self.location.url}/{path} is there already; files are written once") from None
        finally:
            staged.unlink(missing_ok=True)
        return size

    def _place(self, path: str) -> Path:
        return self._root / joined(path)

    def _refuse_outside(self, folder: Path) -> None:
        """A symlink may lead anywhere: where it really leads must be allowed, and below the store itself none is followed."""
        real = folder.resolve()
        for closed in self._closed:
            if real.is_relative_to(closed):
                raise PathRefused(f"{folder} is in {closed}, where passwords and tokens lie; no export goes there")
        if not any(real.is_relative_to(allowed) for allowed in self._allowed):
            allowed = ", ".join(map(str, self._allowed)) or "none"
            raise PathRefused(f"{folder} is in no folder that exports may write to ({allowed}); set HOLDFAST_EXPORT_DIRS")
        if folder != self._root and real != self._root.resolve() / folder.relative_to(self._root):
            raise PathRefused(f"{folder} is reached by a symlink, and may lead out of {self._root}")

    def _walk(self, folder: Path) -> Iterator[Found]:
        for at, _, names in os.walk(folder, onerror=_raise_unless_missing):
            for name in sorted(names):
                file = Path(at) / name
                with suppress(FileNotFoundError):
                    yield Found(str(file.relative_to(self._root)), file.lstat().st_size)


@contextmanager
def as_ours() -> Iterator[None]:
    """What the file system says, in the words of stores."""
    try:
        yield
    except (FileExistsError, FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        if error.errno in NO_ROOM:
            raise ScratchFull(f"scratch_full: no room here, or no right: {error}") from error
        raise StoreUnavailable(f"the file system failed: {error}") from error


def _flush(path: Path) -> int:
    """Have the disk keep it; its size."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
        return os.fstat(handle).st_size
    finally:
        os.close(handle)


def _link(staged: Path, place: Path) -> None:
    """Give the file its name, unless something has it: one step where the file system knows links, else nearly one."""
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
