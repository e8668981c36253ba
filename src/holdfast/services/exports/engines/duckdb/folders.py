"""Folders that DuckDB may never be shown, however it would come to them: passwords and tokens lie there.

DuckDB knows folders that it may read, and none that it may not, and it follows symlinks. So a folder is refused that holds
such a place, lies in it, or has a symlink somewhere below it that leads to one. That is looked at when an engine is opened,
and at most once a minute: whoever can put a link there later has an account on the machine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from holdfast.errors import UsageError

LOOK_AGAIN = 60.0  # seconds


def refuse_closed(folders: tuple[Path, ...], closed: tuple[Path, ...]) -> None:
    """Raise `UsageError` if one of the folders leads to a closed place; the closed ones are resolved."""
    _refuse(folders, closed, int(time.monotonic() / LOOK_AGAIN))


@lru_cache(maxsize=8)
def _refuse(folders: tuple[Path, ...], closed: tuple[Path, ...], _: int) -> None:
    there = [place for place in closed if place.exists()]
    for folder in folders if there else ():
        for found, real in _reached_from(folder):
            for place in there:
                if real.is_relative_to(place) or place.is_relative_to(real):
                    raise UsageError(
                        f"HOLDFAST_DUCKDB_DIRS: {found} leads to {place}, where passwords and tokens lie; "
                        "name a folder beside it that holds data and nothing else"
                    )


def _reached_from(folder: Path) -> Iterator[tuple[Path, Path]]:
    """The folder, and everything that a symlink below it leads to, or one below that: by which way, and where it really is."""
    to_see, seen = [folder], set[Path]()
    while to_see:
        found = to_see.pop()
        real = found.resolve()
        if real not in seen:
            seen.add(real)
            yield found, real
            to_see += _links_below(real)


def _links_below(folder: Path) -> list[Path]:
    links: list[Path] = []
    to_read = [str(folder)]
    while to_read:
        with suppress(OSError), os.scandir(to_read.pop()) as entries:  # what cannot be read cannot be read by DuckDB either
            for entry in entries:
                if entry.is_symlink():
                    links.append(Path(entry.path))
                elif entry.is_dir(follow_symlinks=False):
                    to_read.append(entry.path)
    return links
