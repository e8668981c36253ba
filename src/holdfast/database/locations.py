"""The folders of the Alembic revisions: that of the kernel and one for each service. Used by: `migrate.py`, `revision.py`.

The services of this distribution are found by their path, without importing them, because a process that uses only the kernel
must also know the newest revision. `services/registration.py` adds the folders of other services.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

PACKAGE: Final = Path(__file__).parents[1]
KERNEL: Final = Path(__file__).parent / "migrations" / "versions"
_added: list[Path] = []


def folders() -> list[Path]:
    """Every folder with revisions, the kernel's first."""
    return list(dict.fromkeys([KERNEL, *sorted(PACKAGE.glob("services/*/migrations")), *_added]))


def add(folder: Path | None) -> None:
    """Add the revisions of this folder."""
    if folder is not None and folder not in folders():
        _added.append(folder)


def remove(folder: Path | None) -> None:
    """Undo `add`."""
    if folder in _added:
        _added.remove(folder)
