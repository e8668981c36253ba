"""The action remove_orphan_files: delete files in the table's folder that no snapshot refers to.

Files are listed first, and the metadata is read afterwards, so that a file that is committed in between is referred to.
Only files that are older than the limit are candidates: younger ones may belong to a writer that has not committed yet.
Before each batch of deletions the metadata is read again, and files of new snapshots are kept.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from pyiceberg.table import Table

from holdfast.crashpoints import crashpoint
from holdfast.services.maintenance.engines.actions import RemoveOrphanFiles
from holdfast.services.maintenance.engines.interface import TableRefused
from holdfast.services.maintenance.engines.pyiceberg.expire_snapshots import refuse_without_gc
from holdfast.services.maintenance.engines.pyiceberg.list_files import Listed, files_below
from holdfast.services.maintenance.engines.pyiceberg.paths import normalised
from holdfast.services.maintenance.engines.pyiceberg.references import References
from holdfast.services.maintenance.engines.pyiceberg.running import Running

BATCH: Final = 500  # files that are deleted between two looks at the fence and the metadata
EXAMPLES: Final = 10


@dataclass(slots=True)
class Found:
    """What the action has found and deleted."""

    listed_files: int = 0
    young_files: int = 0  # not looked at: a writer may still commit them
    orphan_files: int = 0
    orphan_bytes: int = 0
    deleted_files: int = 0
    deleted_bytes: int = 0
    examples: list[str] = field(default_factory=list)


def plan(running: Running, action: RemoveOrphanFiles) -> dict[str, Any]:
    """List the orphans, and delete nothing."""
    found = Found()
    with tempfile.TemporaryDirectory(prefix="holdfast-orphans-") as folder:
        _list(running, action, Path(folder), found)
    return asdict(found)


def run(running: Running, action: RemoveOrphanFiles) -> dict[str, Any]:
    """Delete the orphans in batches."""
    found = Found()
    running.details = lambda: asdict(found)
    with tempfile.TemporaryDirectory(prefix="holdfast-orphans-") as folder:
        table, orphans = _list(running, action, Path(folder), found)
        crashpoint("maintenance.orphans.listed")
        seen = References.of_metadata(table)
        for batch in _batches(_read(orphans)):
            running.report(found.deleted_files, found.orphan_files, "files")
            running.session.fence.check()
            table, seen, new = _new_references(running, table, seen)
            for orphan in batch:
                if orphan.location not in new:
                    _delete(table, orphan, found)
            crashpoint("maintenance.orphans.deleting")
    running.report_end(found.orphan_files, "files")
    return asdict(found)


def _list(running: Running, action: RemoveOrphanFiles, folder: Path, found: Found) -> tuple[Table, Path]:
    """Find the orphans: the table as it was after the listing, and a file with them. Both listings are streams."""
    table = running.session.load()
    refuse_without_gc(table)
    limit = running.now_ms - action.older_than * 1000
    candidates, orphans = folder / "candidates", folder / "orphans"
    with candidates.open("w", encoding="utf-8") as out:
        for file in running.watched(files_below(table.io, table.location())):
            found.listed_files += 1
            refuse_other_table(table, file)
            if file.modified_ms >= limit:
                found.young_files += 1
            else:
                out.write(f"{file.size}\t{file.location}\n")
    table = running.session.load()
    used = References.of(table, watch=running.watched)
    with orphans.open("w", encoding="utf-8") as out:
        candidates_left = 0
        for file in _read(candidates):
            candidates_left += 1
            if file.location in used:
                continue
            found.orphan_files += 1
            found.orphan_bytes += file.size
            if len(found.examples) < EXAMPLES:
                found.examples.append(file.location)
            out.write(f"{file.size}\t{file.location}\n")
    refuse_if_all_are_orphans(table, candidates_left, found)
    return table, orphans


def refuse_other_table(table: Table, file: Listed) -> None:
    """Raise if the folder has the metadata of another table: its files would be taken for orphans."""
    if not file.location.endswith(".metadata.json"):
        return
    folder = normalised(file.location).rpartition("/")[0]
    known = {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
    if folder not in {normalised(place).rpartition("/")[0] for place in known}:
        raise TableRefused(
            f"{file.location} is metadata of another table inside the folder of {'.'.join(table.name())}; orphan files "
            "are only removed from folders with one table. Move the other table to a folder of its own"
        )


def refuse_if_all_are_orphans(table: Table, candidates: int, found: Found) -> None:
    """Raise if not one of many listed files is in use while the table has snapshots: the paths are spelled differently then."""
    everything = found.orphan_files == candidates == found.listed_files
    if everything and candidates and table.metadata.snapshots:
        raise TableRefused(
            f"none of the {candidates:,} files below {table.location()} is used by the table, so its metadata must name "
            f"them in another way (for example {table.metadata_location}); nothing was deleted"
        )


def _new_references(running: Running, table: Table, seen: set[int]) -> tuple[Table, set[int], References]:
    """The files of snapshots that were committed since the last look."""
    now = running.session.load()
    if now.metadata_location == table.metadata_location:
        return table, seen, References.none()
    new = [snapshot for snapshot in now.metadata.snapshots if snapshot.snapshot_id not in seen]
    references = References.of(now, snapshots=new)
    return now, seen | {snapshot.snapshot_id for snapshot in new}, references


def _delete(table: Table, orphan: Listed, found: Found) -> None:
    try:
        table.io.delete(orphan.location)
    except FileNotFoundError:
        return
    found.deleted_files += 1
    found.deleted_bytes += orphan.size


def _read(path: Path) -> Iterator[Listed]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            size, _, location = line.rstrip("\n").partition("\t")
            yield Listed(location, int(size), 0)


def _batches(items: Iterable[Listed]) -> Iterator[list[Listed]]:
    batch: list[Listed] = []
    for item in items:
        batch.append(item)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch
