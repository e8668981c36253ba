"""The action rewrite_data_files: combine small files of a partition and apply position deletes, one commit per group.

A group is written, checked (as many rows as the old files have, without deleted ones) and committed. If another writer
changed its files meanwhile, the new files are deleted and the partition is planned again. At the end, delete files that apply
to nothing any more are removed. A group that stays in conflict is reported, and the others are committed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
from pyiceberg.table import Table

from holdfast.crashpoints import crashpoint
from holdfast.services.maintenance.engines.actions import RewriteDataFiles
from holdfast.services.maintenance.engines.interface import RowsChanged, TableConflict
from holdfast.services.maintenance.engines.pyiceberg.commit import Conflict, commit_change, delete_quietly
from holdfast.services.maintenance.engines.pyiceberg.manifests import refuse_unknown_format
from holdfast.services.maintenance.engines.pyiceberg.plan_rewrite import Group, Limits, read_plan
from holdfast.services.maintenance.engines.pyiceberg.read_rows import RowReader
from holdfast.services.maintenance.engines.pyiceberg.replace_files import DropDanglingDeletes, ReplaceFiles
from holdfast.services.maintenance.engines.pyiceberg.running import Running
from holdfast.services.maintenance.engines.pyiceberg.sort_rows import sort_keys, sorted_chunks
from holdfast.services.maintenance.engines.pyiceberg.write_files import FileWriter

TRIES: Final = 3  # of one group, each with a new plan


@dataclass(slots=True)
class Totals:
    """What the action has committed."""

    groups: int = 0
    conflicts: int = 0
    rewritten_files: int = 0
    added_files: int = 0
    rewritten_bytes: int = 0
    added_bytes: int = 0
    rows: int = 0
    delete_files_applied: int = 0
    deleted_rows_applied: int = 0
    removed_delete_files: int = 0
    skipped: dict[str, int] = field(default_factory=dict)

    def details(self) -> dict[str, Any]:
        """The figures for the result."""
        shown = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "skipped"}
        return {**shown, **({"skipped_files": self.skipped} if self.skipped else {})}


def plan(table: Table, action: RewriteDataFiles) -> dict[str, Any]:
    """What the action would do, in numbers."""
    refuse_unknown_format(table)
    if action.strategy == "sort":
        sort_keys(table, action)
    found, target = read_plan(table, action), Limits.of(action, table).target
    return {
        "groups": len(found.groups),
        "rewritten_files": found.files,
        "rewritten_bytes": found.bytes,
        "added_files": sum(max(1, -(-group.bytes // target)) for group in found.groups),
        "delete_files_applied": len({delete.path for group in found.groups for delete in group.deletes}),
        **({"skipped_files": found.skipped} if found.skipped else {}),
    }


def run(running: Running, action: RewriteDataFiles) -> dict[str, Any]:
    """Rewrite every group; the figures. `TableConflict` if nothing could be committed because of other writers."""
    table = running.session.load()
    refuse_unknown_format(table)
    found = read_plan(table, action)
    crashpoint("maintenance.rewrite.planned")
    totals = Totals(skipped=found.skipped)
    running.details = totals.details
    for number, group in enumerate(found.groups):
        running.report(number, len(found.groups), "groups")
        _rewrite(running, action, group, totals)
        crashpoint("maintenance.rewrite.committed")
    if found.delete_files or totals.delete_files_applied:  # an attempt before this one may have applied them and died
        drop = DropDanglingDeletes()
        commit_change(running.session, drop)
        totals.removed_delete_files = drop.dropped
    running.report_end(len(found.groups), "groups")
    if totals.conflicts and not totals.groups:
        raise TableConflict(
            f"other writers changed all {totals.conflicts} groups of {running.session.ref} while they were rewritten; "
            "run it when fewer writers delete or update"
        )
    return totals.details()


def _rewrite(running: Running, action: RewriteDataFiles, planned: Group, totals: Totals) -> None:
    """Rewrite and commit one group. After a conflict, plan the partition again."""
    groups = [planned]
    for _ in range(TRIES):
        retry = False
        for group in groups:
            running.refuse_cancelled()
            if not _rewrite_once(running, action, group, totals):
                retry = True
        if not retry:
            return
        running.session.fence.check()  # the conflict may be with the attempt that replaced this one
        groups = read_plan(running.session.load(), action, only=planned.key).groups
        if not groups:
            return
    totals.conflicts += 1


def _rewrite_once(running: Running, action: RewriteDataFiles, group: Group, totals: Totals) -> bool:
    """Write and commit a group; False if other writers changed its files."""
    table = running.session.load()
    reader = RowReader(table.io, table.metadata, group)
    writer = _writer(table, action, group, reader)
    try:
        try:
            writer.write(running.watched(_rows(table, action, reader)))
        except FileNotFoundError:  # another writer replaced a file, and an expiry deleted it
            raise Conflict from None
        if writer.rows_written != reader.rows_read:
            raise RowsChanged(f"{reader.rows_read:,} rows were read and {writer.rows_written:,} were written")
        crashpoint("maintenance.rewrite.written")
        commit_change(running.session, ReplaceFiles(group, writer.files), pause=running.pause)
    except Conflict:
        delete_quietly(table, writer.abort())
        return False
    except running.certain_failures:
        delete_quietly(table, writer.abort())
        raise
    finally:
        pa.default_memory_pool().release_unused()
    totals.groups += 1
    totals.rewritten_files += len(group.inputs)
    totals.rewritten_bytes += group.bytes
    totals.added_files += len(writer.files)
    totals.added_bytes += sum(file.file_size_in_bytes for file in writer.files)
    totals.rows += writer.rows_written
    totals.delete_files_applied += len(group.deletes)
    totals.deleted_rows_applied += reader.rows_deleted
    return True


def _rows(table: Table, action: RewriteDataFiles, reader: RowReader) -> Iterable[Any]:
    if action.strategy == "sort":
        return sorted_chunks(reader.chunks(), sort_keys(table, action)[0])
    return reader.chunks()


def _writer(table: Table, action: RewriteDataFiles, group: Group, reader: RowReader) -> FileWriter:
    limits = Limits.of(action, table)
    records = max(1, sum(file.records for file in group.inputs))
    return FileWriter(
        io=table.io,
        metadata=table.metadata,
        schema=reader.schema,
        arrow=reader.arrow,
        spec_id=group.spec_id,
        partition=group.partition,
        target=limits.target,
        rows_per_file=max(1000, limits.target * records // max(1, group.bytes)),
        sort_order_id=sort_keys(table, action)[1] if action.strategy == "sort" else None,
    )
