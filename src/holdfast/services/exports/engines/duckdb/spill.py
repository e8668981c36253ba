"""Where a sandbox puts what does not fit into its memory: a folder of its own, for as long as it lives.

DuckDB gives its spill files the same names in every process and locks none of them, so two that share a folder read each
other's rows. And it lets its own SQL read that folder, whatever else is closed. Hence one folder for each sandbox, with a name
that nobody can guess, for this user alone.

A folder is locked while its sandbox lives. The lock goes with the process, however that ends: what a dead one left has none,
and goes when the next sandbox opens. (It is also what keeps `systemd-tmpfiles` away from a folder that is in use.)
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from holdfast.services.exports.engines.port import EngineUnavailable

PREFIX = "holdfast-duckdb-"


class SpillFolder:
    """A folder for one sandbox, made and locked; `remove` when it is closed."""

    def __init__(self, scratch: Path) -> None:
        sweep(scratch)
        try:
            scratch.mkdir(parents=True, exist_ok=True)
            self.path, self._lock = _locked_folder(scratch)
        except OSError as error:
            raise EngineUnavailable(
                f"DuckDB has no place for what does not fit into memory: {error}; "
                "set HOLDFAST_SCRATCH_DIR to a folder on a local disk that may be written"
            ) from None

    def remove(self) -> None:
        """It and all that is in it. The lock goes last, or somebody else would sweep at the same time."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _locked_folder(scratch: Path) -> tuple[Path, int]:
    """A new folder that is ours alone (0700). One that was swept away before it was locked is made again."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=scratch.resolve()))
        with suppress(FileNotFoundError):
            return path, _locked(path)


def _locked(path: Path) -> int:
    """The lock of a folder; `FileNotFoundError` if it is gone by the time that we have it."""
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
    """Remove the folders that dead processes of this user left. Another user's are theirs to remove."""
    with suppress(OSError), os.scandir(scratch) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX):
                with suppress(OSError):
                    _remove_if_dead(entry.path)


def _remove_if_dead(path: str) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(folder).st_uid == os.geteuid():
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises if its sandbox lives
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(folder)
