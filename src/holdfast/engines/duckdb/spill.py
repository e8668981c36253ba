"""Spill folders: each sandbox has a separate folder for data that does not fit into its memory.

DuckDB uses the same names for spill files in every process and does not lock them, so two processes that share a folder read
each other's rows. It also lets SQL read its spill folder, even if external access is off. So each sandbox has a separate folder
with a random name, readable by this user only.

The folder is locked while the sandbox is open. The operating system releases the lock when the process ends, however it ends.
A folder without a lock was left by a dead process and is removed when the next sandbox opens. (The lock also keeps
`systemd-tmpfiles` from removing a folder that is in use.)
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from holdfast.engines.port import EngineUnavailable

PREFIX = "holdfast-duckdb-"


class SpillFolder:
    """A locked folder for one sandbox. Call `remove` when the sandbox is closed."""

    def __init__(self, scratch: Path) -> None:
        sweep(scratch)
        try:
            scratch.mkdir(parents=True, exist_ok=True)
            self.path, self._lock = _locked_folder(scratch)
        except OSError as error:
            raise EngineUnavailable(
                f"DuckDB cannot create its spill folder: {error}; set HOLDFAST_SCRATCH_DIR to a writable folder on a local disk"
            ) from None

    def remove(self) -> None:
        """Remove the folder and its files. Release the lock last: otherwise another process would sweep it at the same time."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _locked_folder(scratch: Path) -> tuple[Path, int]:
    """Create a folder with mode 0700 and lock it. If another process swept it before it was locked, create another."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=scratch.resolve()))
        with suppress(FileNotFoundError):
            return path, _locked(path)


def _locked(path: Path) -> int:
    """Lock a folder. Raises `FileNotFoundError` if it was removed before the lock was acquired."""
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        path.stat()
    except OSError:
        os.close(lock)
        shutil.rmtree(path, ignore_errors=True)
        raise
    return lock


def sweep(scratch: Path) -> None:
    """Remove the folders of dead processes of this user. Folders of other users are left alone."""
    with suppress(OSError), os.scandir(scratch) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX):
                with suppress(OSError):
                    _remove_if_dead(entry.path)


def _remove_if_dead(path: str) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(folder).st_uid == os.geteuid():
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises if its sandbox is open
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(folder)
