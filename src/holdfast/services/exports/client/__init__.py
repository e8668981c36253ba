"""The client of exports: `hf.mappings`, `hf.snapshots`, `hf.exports` and `hf.schema` of `holdfast.client.connect()`."""

from holdfast.services.exports.client.mappings import Mapping
from holdfast.services.exports.client.snapshots import Export, Snapshot, SnapshotFailed

__all__ = ["Export", "Mapping", "Snapshot", "SnapshotFailed"]
