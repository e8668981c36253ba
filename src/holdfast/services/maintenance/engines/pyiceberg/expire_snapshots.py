"""The action expire_snapshots: remove old snapshots, then delete the files that only they used.

Branches and tags keep their snapshots. The commit asserts all of them, so one that is created during the expiry is kept as
well (REST catalogs cannot assert that no tag was added: see the explanation of fences). Files are deleted after the commit,
leaves first: a manifest list exists as long as something of its snapshot may be left. So a later run finds what an
interrupted one left, in the previous metadata files of the table.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, Final

from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot, ancestors_of

from holdfast.crashpoints import crashpoint
from holdfast.services.maintenance.engines.actions import ExpireSnapshots
from holdfast.services.maintenance.engines.interface import TableConflict, TableRefused
from holdfast.services.maintenance.engines.pyiceberg.manifests import THREADS, entries_in, in_order, manifests_in
from holdfast.services.maintenance.engines.pyiceberg.paths import normalised
from holdfast.services.maintenance.engines.pyiceberg.running import Running
from holdfast.services.maintenance.engines.pyiceberg.updates import RefsUnchanged, ref_is, remove_snapshots

BATCH: Final = 500  # files that are deleted between two looks at the fence
PREVIOUS_METADATA: Final = 20  # metadata files that are searched for an interrupted expiry
TRIES: Final = 20
PAUSE: Final = 0.05


@dataclass(slots=True)
class Deleted:
    """What the action has done."""

    expired_snapshots: int = 0
    resumed_snapshots: int = 0  # removed from the table by an earlier run that could not delete their files
    deleted_data_files: int = 0
    deleted_manifests: int = 0
    deleted_manifest_lists: int = 0
    deleted_statistics_files: int = 0
    deleted_bytes: int = 0  # of data files and manifests, which say their size


def plan(table: Table, action: ExpireSnapshots, now_ms: int) -> dict[str, Any]:
    """What the action would do, in numbers."""
    refuse_without_gc(table)
    gone = choose(table.metadata, action, now_ms)
    ids = {snapshot.snapshot_id for snapshot in gone}
    kept = [snapshot for snapshot in table.metadata.snapshots if snapshot.snapshot_id not in ids]
    with ThreadPoolExecutor(THREADS, "holdfast-expire") as pool:
        doomed = _doomed(table.io, pool, [snapshot.manifest_list for snapshot in gone], kept)
    return {
        "expired_snapshots": len(gone),
        "deleted_data_files": len(doomed.data),
        "deleted_manifests": len(doomed.manifests),
        "deleted_manifest_lists": len(doomed.lists),
        "deleted_bytes": sum(doomed.sizes.values()),
    }


def run(running: Running, action: ExpireSnapshots) -> dict[str, Any]:
    """Remove the snapshots in one commit, then delete their files."""
    table = running.session.load()
    refuse_without_gc(table)
    deleted = Deleted()
    running.details = lambda: asdict(deleted)
    running.report(0, 1, "files")
    gone, statistics = _commit(running, action)
    deleted.expired_snapshots = len(gone)
    crashpoint("maintenance.expire.committed")
    table = running.session.load()
    lists = {snapshot.manifest_list for snapshot in gone}
    resumed = left_behind(table) - lists
    deleted.resumed_snapshots = len(resumed)
    if lists or resumed:
        _delete(running, table, sorted(lists | resumed), deleted)
    _delete_statistics(running, table, statistics, deleted)
    return asdict(deleted)


def refuse_without_gc(table: Table) -> None:
    """Raise if the table's files may be used by others."""
    if table.metadata.properties.get("gc.enabled", "true").lower() == "false":
        raise TableRefused(
            f"{'.'.join(table.name())} has gc.enabled=false: other tables may use its files; set it to true to expire snapshots"
        )


def choose(metadata: TableMetadata, action: ExpireSnapshots, now_ms: int) -> list[Snapshot]:
    """The snapshots to remove. Pure. A branch may have limits of its own; what any limit keeps is kept."""
    older_than_ms = now_ms - action.older_than * 1000
    keep: set[int] = set()
    for ref in metadata.refs.values():
        keep |= _kept_by(metadata, ref, action, now_ms)
    return [one for one in metadata.snapshots if one.snapshot_id not in keep and one.timestamp_ms < older_than_ms]


def _kept_by(metadata: TableMetadata, ref: SnapshotRef, action: ExpireSnapshots, now_ms: int) -> set[int]:
    if ref.snapshot_ref_type == SnapshotRefType.TAG:
        return {ref.snapshot_id}
    head = metadata.snapshot_by_id(ref.snapshot_id)
    least = max(1, ref.min_snapshots_to_keep or 1, action.retain_last)
    oldest = now_ms - max(action.older_than * 1000, ref.max_snapshot_age_ms or 0)
    chain = ancestors_of(head, metadata)
    return {one.snapshot_id for number, one in enumerate(chain) if number < least or one.timestamp_ms >= oldest}


def _commit(running: Running, action: ExpireSnapshots) -> tuple[list[Snapshot], list[str]]:
    """Remove the snapshots from the metadata; the snapshots and their statistics files. Chosen again after another commit."""
    session = running.session
    for _ in range(TRIES):
        table = session.load()
        gone = choose(table.metadata, action, running.now_ms)
        crashpoint("maintenance.expire.chosen")
        if not gone:
            return [], []
        refs = {name: ref.snapshot_id for name, ref in table.metadata.refs.items()}
        asserted: tuple[Any, ...] = tuple(ref_is(name, snapshot_id) for name, snapshot_id in refs.items())
        if not isinstance(session.catalog, RestCatalog):
            asserted += (RefsUnchanged(refs=refs),)
        try:
            session.send(table, asserted, (remove_snapshots(one.snapshot_id for one in gone),))
        except CommitFailedException:
            running.pause(PAUSE)
            continue
        ids = {one.snapshot_id for one in gone}
        return gone, [one.statistics_path for one in table.metadata.statistics if one.snapshot_id in ids]
    raise TableConflict(f"{session.ref} was changed by others each of the {TRIES} times that its snapshots were to be expired")


def left_behind(table: Table) -> set[str]:
    """Manifest lists of snapshots that were removed from the table, and that still exist. Looks at a few old metadata files."""
    live = {snapshot.snapshot_id for snapshot in table.metadata.snapshots}
    lists: dict[int, str] = {}
    for entry in islice(reversed(table.metadata.metadata_log), PREVIOUS_METADATA):
        try:
            with table.io.new_input(entry.metadata_file).open() as source:
                old = json.loads(source.read())
        except (OSError, ValueError):  # deleted, or compressed: what it has is removed as an orphan
            continue
        for snapshot in old.get("snapshots", ()):
            if snapshot["snapshot-id"] not in live and "manifest-list" in snapshot:
                lists[snapshot["snapshot-id"]] = snapshot["manifest-list"]
    used = {normalised(snapshot.manifest_list) for snapshot in table.metadata.snapshots}
    return {place for place in lists.values() if normalised(place) not in used and table.io.new_input(place).exists()}


# ---------------------------------------------------------------------------------------------------------------------
# Files
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Doomed:
    """Files that only expired snapshots use."""

    data: list[str]
    manifests: list[str]
    lists: list[str]
    sizes: dict[str, int]  # of data files and manifests, by path


def _doomed(io: FileIO, pool: ThreadPoolExecutor, lists: Iterable[str], kept: Iterable[Snapshot]) -> Doomed:
    """The files that only the snapshots with these manifest lists use."""
    lists = list(lists)
    used = _manifests(io, pool, [snapshot.manifest_list for snapshot in kept], expired=False)
    only_expired = [one for path, one in _manifests(io, pool, lists, expired=True).items() if path not in used]
    data = {normalised(path): (path, size) for path, size in _files(io, pool, only_expired, expired=True)}
    if data:
        for path, _ in _files(io, pool, used.values(), expired=False):
            data.pop(normalised(path), None)
    manifests = {one.manifest_path: one.manifest_length for one in only_expired}
    return Doomed(sorted(path for path, _ in data.values()), sorted(manifests), lists, {**dict(data.values()), **manifests})


def _manifests(io: FileIO, pool: ThreadPoolExecutor, lists: list[str], *, expired: bool) -> dict[str, ManifestFile]:
    """The manifests of these manifest lists, by path. `expired`: an interrupted run may have deleted some of the files.

    A missing file of a snapshot that is kept is an error: what it used would be taken for unused.
    """

    found: dict[str, ManifestFile] = {}
    seen: set[str] = set()  # snapshots share most of their manifests

    def read(place: str) -> list[ManifestFile]:
        try:
            return [one for one in manifests_in(place, io) if one.manifest_path not in seen]
        except FileNotFoundError:
            if not expired:
                raise
            return []

    for manifests in in_order(pool, read, lists):
        new = {one.manifest_path: one for one in manifests if one.manifest_path not in seen}
        seen.update(new)
        found |= {normalised(path): one for path, one in new.items()}
    return found


def _files(
    io: FileIO, pool: ThreadPoolExecutor, manifests: Iterable[ManifestFile], *, expired: bool
) -> Iterator[tuple[str, int]]:
    """The live files of these manifests with their sizes; `expired` as in `_manifests`."""

    def read(manifest: ManifestFile) -> list[tuple[str, int]]:
        try:
            files = (entry.data_file for entry in entries_in(manifest, io))
            return [(one.file_path, one.file_size_in_bytes) for one in files]
        except FileNotFoundError:
            if not expired:
                raise
            return []

    for found in in_order(pool, read, manifests):
        yield from found


def _delete(running: Running, table: Table, lists: list[str], deleted: Deleted) -> None:
    """Delete the files of removed snapshots: data files, then manifests, then manifest lists."""
    with ThreadPoolExecutor(THREADS, "holdfast-expire") as pool:
        doomed = _doomed(table.io, pool, lists, table.metadata.snapshots)
        total = len(doomed.data) + len(doomed.manifests) + len(doomed.lists)
        done = 0
        for name, paths in (
            ("deleted_data_files", doomed.data),
            ("deleted_manifests", doomed.manifests),
            ("deleted_manifest_lists", doomed.lists),
        ):
            for start in range(0, len(paths), BATCH):
                running.report(done, total, "files")
                running.session.fence.check()
                batch = paths[start : start + BATCH]
                gone = list(pool.map(lambda path: _delete_one(table.io, path), batch))
                setattr(deleted, name, getattr(deleted, name) + sum(gone))
                deleted.deleted_bytes += sum(
                    doomed.sizes.get(path, 0) for path, count in zip(batch, gone, strict=True) if count
                )
                done += len(batch)
                crashpoint("maintenance.expire.deleting")
        running.report_end(total, "files")


def _delete_statistics(running: Running, table: Table, paths: list[str], deleted: Deleted) -> None:
    """Delete the statistics files of removed snapshots; the commit removed them from the metadata."""
    used = {one.statistics_path for one in (*table.metadata.statistics, *table.metadata.partition_statistics)}
    for path in paths:
        if path not in used:
            running.session.fence.check()
            deleted.deleted_statistics_files += _delete_one(table.io, path)


def _delete_one(io: FileIO, path: str) -> int:
    try:
        io.delete(path)
    except FileNotFoundError:
        return 0
    return 1
