"""List the files below a location, folder by folder, with the credentials of the table. Called by: remove_orphan_files.

Hidden files and folders (`_` or `.` first) are left out, as in other engines: they belong to committers and tools.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow.fs as pafs
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO

from holdfast.services.maintenance.engines.interface import TableRefused
from holdfast.services.maintenance.engines.pyiceberg.paths import is_local, normalised


@dataclass(frozen=True, slots=True)
class Listed:
    """A file: its normalised location, its size and when it was last written."""

    location: str
    size: int
    modified_ms: int


def files_below(io: FileIO, location: str) -> Iterator[Listed]:
    """The files below a location. Raises if a folder cannot be listed: unknown is not empty.

    What other writers delete during the listing is left out: a try of a commit that is repeated deletes its manifests.
    """
    if is_local(location):
        yield from _local(normalised(location))
        return
    if not isinstance(io, PyArrowFileIO):
        raise TableRefused(
            f"the files of {location} cannot be listed with {type(io).__name__}; set py-io-impl of the catalog to "
            "pyiceberg.io.pyarrow.PyArrowFileIO"
        )
    scheme, netloc, path = io.parse_location(location, io.properties)
    root = normalised(location).removesuffix("/")
    yield from _remote(io.fs_by_scheme(scheme, netloc), path.rstrip("/"), root)


def is_hidden(name: str) -> bool:
    """Whether a file or folder belongs to a tool. A partition folder (`_day=1`) does not."""
    return name.startswith((".", "_")) and "=" not in name


def _local(root: str) -> Iterator[Listed]:
    folders = [root]
    while folders:
        folder = folders.pop()
        try:
            entries = os.scandir(folder)
        except FileNotFoundError:
            if folder == root:
                raise
            continue
        with entries:
            for entry in entries:
                if is_hidden(entry.name):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif entry.is_file(follow_symlinks=False):
                    try:
                        found = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue
                    yield Listed(entry.path, found.st_size, found.st_mtime_ns // 1_000_000)


def _remote(filesystem: pafs.FileSystem, base: str, root: str) -> Iterator[Listed]:
    folders = [base]
    while folders:
        folder = folders.pop()
        for info in filesystem.get_file_info(pafs.FileSelector(folder, allow_not_found=folder != base)):
            if is_hidden(info.base_name):
                continue
            if info.type == pafs.FileType.Directory:
                folders.append(info.path)
            elif info.type == pafs.FileType.File:
                if info.mtime is None:
                    raise TableRefused(f"{info.path} has no modification time, so its age is unknown; no file was deleted")
                yield Listed(root + info.path.removeprefix(base), info.size, info.mtime_ns // 1_000_000)
