"""The size of a table, from its metadata: before and after an action, and for its health. Reads no data file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Snapshot

from holdfast.services.maintenance.engines.interface import HealthInputs, TableStats
from holdfast.services.maintenance.engines.pyiceberg.manifests import Live, is_unpartitioned, live_of, manifests_of

TARGET_PROPERTY: Final = "write.target-file-size-bytes"
TARGET_DEFAULT: Final = 512 << 20
SMALL_SHARE: Final = 0.75  # of the target size: smaller files are small
OLD_SNAPSHOT_MS: Final = 5 * 86_400_000


def stats(table: Table) -> TableStats:
    """The size of the table. Counts come from the manifest list, bytes from the summary or, if it is unusable, from
    manifests."""
    snapshot = table.metadata.current_snapshot()
    manifests = manifests_of(snapshot, table.io)
    data = [manifest for manifest in manifests if manifest.content == ManifestContent.DATA]
    files, records = _counted(data, "files"), _counted(data, "rows")
    deletes = _counted([manifest for manifest in manifests if manifest.content == ManifestContent.DELETES], "files")
    size = _summary_bytes(snapshot, files, deletes)
    if size is None or files is None or records is None or deletes is None:
        return measured(table, manifests)
    return _stats(table, manifests, (files, size, records), deletes)


def measured(table: Table, manifests: list[ManifestFile]) -> TableStats:
    """The same from the entries of all manifests."""
    files = size = records = 0
    for file in live_of(manifests, table.io, deletes=False):
        files, size, records = files + 1, size + file.bytes, records + file.records
    deletes = sum(1 for _ in live_of(manifests, table.io, deletes=True))
    return _stats(table, manifests, (files, size, records), deletes)


def _stats(table: Table, manifests: list[ManifestFile], data: tuple[int, int, int], deletes: int) -> TableStats:
    snapshot = table.metadata.current_snapshot()
    return TableStats(
        snapshot_id=snapshot.snapshot_id if snapshot else None,
        data_files=data[0],
        data_bytes=data[1],
        records=data[2],
        delete_files=deletes,
        manifests=len(manifests),
        snapshots=len(table.metadata.snapshots),
    )


def _counted(manifests: Iterable[ManifestFile], what: str) -> int | None:
    """The live files or rows of these manifests; None if a manifest list of version 1 does not have the counts."""
    total = 0
    for manifest in manifests:
        added, existing = getattr(manifest, f"added_{what}_count"), getattr(manifest, f"existing_{what}_count")
        if added is None or existing is None:
            return None
        total += added + existing
    return total


def _summary_bytes(snapshot: Snapshot | None, files: int | None, deletes: int | None) -> int | None:
    """The bytes of data files in the summary of a snapshot; None if the summary disagrees with the manifests, or if there
    are delete files: their bytes are part of the total."""
    if snapshot is None:
        return 0
    summary: Any = snapshot.summary.additional_properties if snapshot.summary else {}
    if deletes or summary.get("total-data-files") != str(files):
        return None
    size = summary.get("total-files-size")
    return int(size) if size is not None and size.isdecimal() else None


def target_bytes(metadata: TableMetadata) -> int:
    """The size that writers of the table aim at."""
    given = metadata.properties.get(TARGET_PROPERTY, "")
    return int(given) if given.isdecimal() and int(given) > 0 else TARGET_DEFAULT


def health_inputs(table: Table, now_ms: int) -> HealthInputs:
    """What a health score is computed from. Reads every manifest of the current snapshot."""
    metadata = table.metadata
    manifests = manifests_of(metadata.current_snapshot(), table.io)
    deletes = list(live_of(manifests, table.io, deletes=True))
    target = target_bytes(metadata)
    files = size = records = small_bytes = affected = 0
    small: Counter[Any] = Counter()
    partitions: set[Any] = set()
    for file in live_of(manifests, table.io, deletes=False):
        key = (file.spec_id, file.partition)
        partitions.add(key)
        files, size, records = files + 1, size + file.bytes, records + file.records
        if file.bytes < target * SMALL_SHARE:
            small[key] += 1
            small_bytes += file.bytes
        affected += deletes != [] and any(applies(metadata, delete, file) for delete in deletes)
    times = [snapshot.timestamp_ms for snapshot in metadata.snapshots]
    return HealthInputs(
        stats=_stats(table, manifests, (files, size, records), len(deletes)),
        target_file_bytes=target,
        small_files=small.total(),
        small_bytes=small_bytes,
        partitions=len(partitions),
        small_partitions=sum(1 for count in small.values() if count > 1),
        files_with_deletes=affected,
        equality_delete_files=sum(1 for delete in deletes if delete.is_equality_delete),
        oldest_snapshot_seconds=max(0, now_ms - min(times)) // 1000 if times else None,
        newest_snapshot_seconds=max(0, now_ms - max(times)) // 1000 if times else None,
        snapshots_over_5_days=_old_snapshots(metadata, now_ms),
        format_version=metadata.format_version,
    )


def applies(metadata: TableMetadata, delete: Live, data: Live) -> bool:
    """Whether the delete file may delete rows of the data file."""
    return delete.may_apply_to(data, unpartitioned=is_unpartitioned(metadata, delete.spec_id))


def _old_snapshots(metadata: TableMetadata, now_ms: int) -> int:
    named = {
        ref.snapshot_id
        for ref in metadata.refs.values()
        if ref.snapshot_ref_type in (SnapshotRefType.TAG, SnapshotRefType.BRANCH)
    }
    limit = now_ms - OLD_SNAPSHOT_MS
    return sum(1 for snapshot in metadata.snapshots if snapshot.snapshot_id not in named and snapshot.timestamp_ms < limit)
