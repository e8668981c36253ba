"""The changes of rewrite_data_files: replace data files by files with the same rows, and remove delete files without effect.

A change validates itself against the table as it is now, see `commit.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntry, ManifestFile, ManifestWriter
from pyiceberg.table import Table

from holdfast.services.maintenance.engines.pyiceberg.commit import Built, Conflict
from holdfast.services.maintenance.engines.pyiceberg.manifests import (
    ManifestFactory,
    entries_in,
    has_live,
    is_unpartitioned,
    live_of,
)
from holdfast.services.maintenance.engines.pyiceberg.plan_rewrite import DeleteIndex, Group

SURVIVORS: Final = 5_000  # entries of one rewritten manifest


@dataclass(slots=True)
class ReplaceFiles:
    """Replaces the files of a group by files with the same rows.

    Valid as long as every old file is live and the same delete files apply to the old files as when they were read. What other
    commits did is irrelevant: appends elsewhere do not matter, a delete, an update or a rollback of these files does.
    """

    group: Group
    files: list[DataFile]

    def build(self, table: Table, factory: ManifestFactory, manifests: list[ManifestFile]) -> Built:
        """The new snapshot; `Conflict` if the old files changed."""
        self._compare_deletes(table, manifests)
        wanted = {file.path for file in self.group.inputs}
        untouched, survivors, removed = self._split(table, manifests, wanted)
        if wanted:
            raise Conflict(f"{len(wanted)} files of the group are not live any more")
        spec_id = self.group.spec_id
        made = [factory.manifest(spec_id, lambda writer: _delete(writer, removed))]
        if self.files:
            made.append(factory.manifest(spec_id, lambda writer: _add(writer, factory.snapshot_id, self.files)))
        for part in _parts(survivors):
            made.append(factory.manifest(spec_id, partial(_keep, entries=part)))
        return Built([*made, *untouched], added=self.files, removed=[entry.data_file for entry in removed])

    def _compare_deletes(self, table: Table, manifests: list[ManifestFile]) -> None:
        deletes = live_of(manifests, table.io, deletes=True)
        index = DeleteIndex(deletes, lambda spec_id: is_unpartitioned(table.metadata, spec_id))
        now, planned = set(index.of_all(self.group.inputs)), {delete.path for delete in self.group.deletes}
        if now != planned:
            raise Conflict(f"{len(now - planned)} delete files were added and {len(planned - now)} were removed")

    def _split(
        self, table: Table, manifests: list[ManifestFile], wanted: set[str]
    ) -> tuple[list[ManifestFile], list[ManifestEntry], list[ManifestEntry]]:
        """Manifests without an old file, entries that stay, and entries of old files. Found paths are removed from `wanted`.

        Manifests in which the plan found the files come first; others are read only if a file was not found there.
        """
        known = {file.manifest for file in self.group.inputs}
        untouched: list[ManifestFile] = []
        survivors: list[ManifestEntry] = []
        removed: list[ManifestEntry] = []
        for manifest in sorted(manifests, key=lambda one: one.manifest_path not in known):
            if not has_live(manifest):
                continue
            if manifest.content != ManifestContent.DATA or not wanted or manifest.partition_spec_id != self.group.spec_id:
                untouched.append(manifest)
                continue
            entries = entries_in(manifest, table.io)
            found = [entry for entry in entries if entry.data_file.file_path in wanted]
            if not found:
                untouched.append(manifest)
                continue
            wanted.difference_update(entry.data_file.file_path for entry in found)
            gone = {id(entry) for entry in found}
            removed += found
            survivors += [entry for entry in entries if id(entry) not in gone]
        return untouched, survivors, removed


@dataclass(slots=True)
class DropDanglingDeletes:
    """Removes delete files that apply to no data file. It is computed on the snapshot that it replaces, so it is always
    valid."""

    dropped: int = 0

    def build(self, table: Table, factory: ManifestFactory, manifests: list[ManifestFile]) -> Built | None:
        """The new snapshot, or None if every delete file applies to something."""
        deletes = {delete.path: delete for delete in live_of(manifests, table.io, deletes=True)}
        index = DeleteIndex(deletes.values(), lambda spec_id: is_unpartitioned(table.metadata, spec_id))
        for file in live_of(manifests, table.io, deletes=False):
            for applying in index.of(file):
                deletes.pop(applying.path, None)
        self.dropped = len(deletes)
        if not deletes:
            return None
        made: list[ManifestFile] = []
        removed: list[ManifestEntry] = []
        for manifest in manifests:
            entries = entries_in(manifest, table.io) if manifest.content == ManifestContent.DELETES else []
            gone = [entry for entry in entries if entry.data_file.file_path in deletes]
            if not gone:
                if has_live(manifest):
                    made.append(manifest)
                continue
            kept = [entry for entry in entries if entry.data_file.file_path not in deletes]
            removed += gone
            made.append(
                factory.manifest(
                    manifest.partition_spec_id,
                    partial(_keep_and_delete, kept=kept, gone=gone),
                    content=ManifestContent.DELETES,
                )
            )
        return Built(made, removed=[entry.data_file for entry in removed])


def _add(writer: ManifestWriter, snapshot_id: int, files: list[DataFile]) -> None:
    for file in files:
        writer.add(ManifestEntry.from_args(snapshot_id=snapshot_id, sequence_number=None, data_file=file))


def _keep(writer: ManifestWriter, entries: Iterable[ManifestEntry]) -> None:
    for entry in entries:
        writer.existing(entry)


def _delete(writer: ManifestWriter, entries: Iterable[ManifestEntry]) -> None:
    for entry in entries:
        writer.delete(entry)


def _keep_and_delete(writer: ManifestWriter, kept: Iterable[ManifestEntry], gone: Iterable[ManifestEntry]) -> None:
    _keep(writer, kept)
    _delete(writer, gone)


def _parts(entries: list[ManifestEntry]) -> Iterator[list[ManifestEntry]]:
    for start in range(0, len(entries), SURVIVORS):
        yield entries[start : start + SURVIVORS]
