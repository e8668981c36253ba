"""Refuse folders through which DuckDB could read passwords and tokens.

DuckDB has a list of folders that it may read, but no list of folders that it may not, and it follows symlinks. So a folder is
refused if it contains a closed folder, is inside one, or has a symlink below it that leads to one. The check runs when an
engine is opened, at most once a minute. That is enough: creating a symlink there later requires an account on the machine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from holdfast.errors import UsageError

RECHECK_SECONDS = 60.0


def refuse_closed(folders: tuple[Path, ...], closed: tuple[Path, ...]) -> None:
    """Raise `UsageError` if a closed folder can be reached through one of the folders. `closed` must be resolved paths."""
    _refuse(folders, closed, int(time.monotonic() / RECHECK_SECONDS))


@lru_cache(maxsize=8)
def _refuse(folders: tuple[Path, ...], closed: tuple[Path, ...], _: int) -> None:
    existing = [place for place in closed if place.exists()]
    for folder in folders if existing else ():
        for found, real in _reachable_from(folder):
            for place in existing:
                if real.is_relative_to(place) or place.is_relative_to(real):
                    raise UsageError(
                        f"HOLDFAST_DUCKDB_DIRS: {found} leads to {place}, which contains passwords and tokens; "
                        "use a separate folder that contains only data"
                    )


def _reachable_from(folder: Path) -> Iterator[tuple[Path, Path]]:
    """The folder and all targets of symlinks below it, recursively: each as a path and as the resolved path."""
    pending, seen = [folder], set[Path]()
    while pending:
        found = pending.pop()
        real = found.resolve()
        if real not in seen:
            seen.add(real)
            yield found, real
            pending += _links_below(real)


def _links_below(folder: Path) -> list[Path]:
    links: list[Path] = []
    to_read = [str(folder)]
    while to_read:
        with suppress(OSError), os.scandir(to_read.pop()) as entries:  # DuckDB cannot read it either
            for entry in entries:
                if entry.is_symlink():
                    links.append(Path(entry.path))
                elif entry.is_dir(follow_symlinks=False):
                    to_read.append(entry.path)
    return links
