"""Updates and requirements of table commits, as PyIceberg models. Pure. One place that knows the names of their fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import Field
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Snapshot, Summary
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
    ValidatableTableRequirement,
)


def same_table(metadata: TableMetadata) -> TableRequirement:
    """The table was not dropped and created again."""
    return AssertTableUUID(uuid=metadata.table_uuid)


def ref_is(ref: str, snapshot_id: int | None) -> TableRequirement:
    """The branch or tag names this snapshot; None: it does not exist."""
    return AssertRefSnapshotId.model_validate({"ref": ref, "snapshot-id": snapshot_id})


def set_branch(ref: str, snapshot_id: int) -> TableUpdate:
    """Let a branch name this snapshot."""
    return SetSnapshotRefUpdate.model_validate(
        {"ref-name": ref, "type": SnapshotRefType.BRANCH.value, "snapshot-id": snapshot_id}
    )


def set_tag(ref: str, snapshot_id: int) -> TableUpdate:
    """Create a tag."""
    return SetSnapshotRefUpdate.model_validate({"ref-name": ref, "type": SnapshotRefType.TAG.value, "snapshot-id": snapshot_id})


def remove_ref(ref: str) -> TableUpdate:
    """Remove a branch or tag."""
    return RemoveSnapshotRefUpdate.model_validate({"ref-name": ref})


def remove_snapshots(ids: Iterable[int]) -> TableUpdate:
    """Remove snapshots from the metadata."""
    return RemoveSnapshotsUpdate.model_validate({"snapshot-ids": list(ids)})


def add_snapshot(snapshot: Snapshot) -> TableUpdate:
    """Add a snapshot; a branch must name it in the same commit."""
    return AddSnapshotUpdate(snapshot=snapshot)


def new_snapshot(ids: tuple[int, int | None], manifest_list: str, sequence: int, summary: Summary, schema_id: int) -> Snapshot:
    """A snapshot; `ids` are its own and its parent's."""
    given: Mapping[str, Any] = {
        "snapshot-id": ids[0],
        "parent-snapshot-id": ids[1],
        "manifest-list": manifest_list,
        "sequence-number": sequence,
        "summary": summary,
        "schema-id": schema_id,
    }
    return Snapshot.model_validate(given)


class RefsUnchanged(ValidatableTableRequirement):
    """No branch or tag was created, moved or removed. For catalogs that check requirements in this process, where the catalog
    then compares the metadata location: all but REST, which does not know this requirement."""

    type: str = "holdfast-assert-refs-unchanged"
    refs: dict[str, int] = Field(default_factory=dict)

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]
        """Compare the refs of the table as it is now."""
        now = {name: ref.snapshot_id for name, ref in base_metadata.refs.items()} if base_metadata else None
        if now != self.refs:
            raise CommitFailedException("a branch or tag changed since the commit was planned")
