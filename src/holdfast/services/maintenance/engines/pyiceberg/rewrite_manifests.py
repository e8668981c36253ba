"""The action rewrite_manifests: combine small manifests, with their entries ordered by partition. No row changes.

The change is valid on every snapshot, so after another commit it is simply built again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from pyiceberg.manifest import ManifestContent, ManifestEntry, ManifestFile, ManifestWriter
from pyiceberg.table import Table

from holdfast.crashpoints import crashpoint
from holdfast.services.maintenance.engines.actions import RewriteManifests
from holdfast.services.maintenance.engines.interface import RowsChanged
from holdfast.services.maintenance.engines.pyiceberg.commit import Built, commit_change
from holdfast.services.maintenance.engines.pyiceberg.manifests import (
    THREADS,
    ManifestFactory,
    entries_in,
    has_live,
    in_order,
    manifests_of,
    refuse_unknown_format,
)
from holdfast.services.maintenance.engines.pyiceberg.running import Running

SMALL_SHARE: Final = 0.75
PASS_BYTES: Final = 64 << 20  # of manifests that are combined at once: entries are several times as large in memory


def plan(table: Table, action: RewriteManifests) -> dict[str, Any]:
    """What the action would do, in numbers."""
    refuse_unknown_format(table)
    groups = small_groups(manifests_of(table.metadata.current_snapshot(), table.io), action)
    return {
        "rewritten_manifests": sum(len(group) for group in groups),
        "added_manifests": sum(_parts_of(group, action) for group in groups),
        "entries": sum((one.added_files_count or 0) + (one.existing_files_count or 0) for group in groups for one in group),
    }


def run(running: Running, action: RewriteManifests) -> dict[str, Any]:
    """Combine the small manifests in one commit."""
    running.report(0, 1, "commits")
    change = CombineManifests(action, running)
    running.details = lambda: change.details
    commit_change(running.session, change, pause=running.pause)
    crashpoint("maintenance.manifests.committed")
    running.report_end(1, "commits")
    return change.details


def small_groups(manifests: Iterable[ManifestFile], action: RewriteManifests) -> list[list[ManifestFile]]:
    """The manifests that are combined, by partition spec and content. Pure."""
    by_spec: dict[tuple[int, ManifestContent], list[ManifestFile]] = defaultdict(list)
    for manifest in manifests:
        if has_live(manifest) and manifest.manifest_length < action.target_size * SMALL_SHARE:
            by_spec[manifest.partition_spec_id, manifest.content].append(manifest)
    return [part for group in by_spec.values() for part in _passes(group) if len(part) >= action.min_input_manifests]


def _passes(group: list[ManifestFile]) -> Iterable[list[ManifestFile]]:
    """Parts that fit into memory, ordered by partition so that each has neighbours."""
    ordered = sorted(group, key=lambda one: [(s.lower_bound or b"", s.upper_bound or b"") for s in one.partitions or ()])
    part: list[ManifestFile] = []
    size = 0
    for manifest in ordered:
        if part and size + manifest.manifest_length > PASS_BYTES:
            yield part
            part, size = [], 0
        part.append(manifest)
        size += manifest.manifest_length
    if part:
        yield part


def _parts_of(group: list[ManifestFile], action: RewriteManifests) -> int:
    """The number of manifests that a group becomes."""
    return max(1, -(-sum(one.manifest_length for one in group) // action.target_size))


@dataclass(slots=True)
class CombineManifests:
    """Replaces small manifests by fewer ones with the same entries, sequence numbers included."""

    action: RewriteManifests
    running: Running
    details: dict[str, Any] = field(default_factory=lambda: {"rewritten_manifests": 0, "added_manifests": 0, "entries": 0})

    def build(self, table: Table, factory: ManifestFactory, manifests: list[ManifestFile]) -> Built | None:
        """The new snapshot, or None if too few manifests are small."""
        refuse_unknown_format(table)
        groups = small_groups(manifests, self.action)
        if not groups:
            return None
        replaced = {manifest.manifest_path for group in groups for manifest in group}
        made: list[ManifestFile] = []
        entries = 0
        for group in groups:
            self.running.refuse_cancelled()
            new = self._combine(table, factory, group)
            made += new
            entries += _live(new)
        kept = [one for one in manifests if one.manifest_path not in replaced and has_live(one)]
        if _live(made) + _live(kept) != _live(manifests):
            raise RowsChanged(f"manifests had {_live(manifests):,} live entries and would have {_live(made) + _live(kept):,}")
        crashpoint("maintenance.manifests.written")
        self.details = {"rewritten_manifests": len(replaced), "added_manifests": len(made), "entries": entries}
        return Built(
            [*made, *kept],
            summary={
                "manifests-created": str(len(made)),
                "manifests-kept": str(len(kept)),
                "manifests-replaced": str(len(replaced)),
                "entries-processed": str(entries),
            },
        )

    def _combine(self, table: Table, factory: ManifestFactory, group: list[ManifestFile]) -> list[ManifestFile]:
        with ThreadPoolExecutor(THREADS, "holdfast-manifests") as pool:
            found = in_order(pool, lambda manifest: entries_in(manifest, table.io), group)
            entries = [entry for part in self.running.watched(found) for entry in part]
        entries.sort(key=lambda entry: (str(entry.data_file.partition), entry.data_file.file_path))
        count = -(-len(entries) // _parts_of(group, self.action))
        return [
            factory.manifest(
                group[0].partition_spec_id,
                partial(_keep, entries=entries[start : start + count]),
                content=group[0].content,
            )
            for start in range(0, len(entries), count)
        ]


def _keep(writer: ManifestWriter, entries: Iterable[ManifestEntry]) -> None:
    for entry in entries:
        writer.existing(entry)


def _live(manifests: Iterable[ManifestFile]) -> int:
    return sum((one.added_files_count or 0) + (one.existing_files_count or 0) for one in manifests)
