"""Snapshots: one run of a mapping version, to Parquet files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from holdfast.client.api import Api
from holdfast.client.card import card
from holdfast.client.mappings import Mapping
from holdfast.client.problems import SnapshotFailed
from holdfast.client.records import record
from holdfast.client.showing import Line, Picture, bars_or_card
from holdfast.client.waiting import wait
from holdfast.errors import UsageError

ENDED = frozenset({"ready", "failed", "cancelled"})


@dataclass(frozen=True, slots=True)
class Export:
    """One node or edge of a snapshot."""

    id: int
    job_type: str
    entity_name: str
    status: str
    gcs_path: str  # where its files are, whatever the store: the name is the documents'
    row_count: int | None
    size_bytes: int | None
    error_message: str | None
    attempts: int
    progress: float | None
    message: str | None
    queue_position: int | None
    files: list[dict[str, Any]] | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot as it was when it was looked at."""

    id: int
    mapping_id: int
    mapping_version: int
    name: str
    status: str
    location: str
    error_message: str | None
    node_counts: dict[str, int] | None
    edge_counts: dict[str, int] | None
    size_bytes: int | None
    created_at: datetime
    finished_at: datetime | None
    expires_at: datetime | None
    inactive_at: datetime | None
    exports: list[Export] = field(default_factory=list)

    def files(self, entity: str) -> list[str]:
        """Where the Parquet files of a node or an edge are. Only what is complete is listed: other files do not count."""
        found = next((one for one in self.exports if one.entity_name == entity), None)
        if found is None:
            raise UsageError(f"no node or edge {entity!r}; there are: {', '.join(one.entity_name for one in self.exports)}")
        if found.status != "completed":
            raise UsageError(f"{entity} is {found.status}; its files are known when it has completed")
        return [f"{found.gcs_path.rstrip('/')}/{one['path']}" for one in found.files or ()]

    def _repr_html_(self) -> str:
        return card(picture_of(self))


class Snapshots:
    """`hf.snapshots`."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def create(
        self, mapping: Mapping | int, *, version: int | None = None, role: str | None = None, **options: Any
    ) -> Snapshot:
        """Make one of a mapping's current version, or of another; options: name, description, runtime, ttl."""
        mapping_id = mapping if isinstance(mapping, int) else mapping.id
        asked = {"mapping_id": mapping_id, "mapping_version": version, **options}
        body = {name: value for name, value in asked.items() if value is not None}
        return _snapshot(self._api.act("POST", "/api/snapshots", body, role=role))

    def create_and_wait(
        self,
        mapping: Mapping | int,
        *,
        version: int | None = None,
        role: str | None = None,
        timeout: float | None = 900,
        show: bool = True,
        on_progress: Callable[[Snapshot], None] | None = None,
        **options: Any,
    ) -> Snapshot:
        """Make one, and wait until it is ready; `SnapshotFailed` if it does not become so."""
        made = self.create(mapping, version=version, role=role, **options)
        return self.wait(made.id, timeout=timeout, show=show, on_progress=on_progress)

    def wait(
        self,
        snapshot_id: int,
        *,
        timeout: float | None = 900,
        show: bool = True,
        on_progress: Callable[[Snapshot], None] | None = None,
    ) -> Snapshot:
        """The snapshot when it is ready; `SnapshotFailed` if it has failed or was cancelled."""
        found = wait(
            lambda: self.get(snapshot_id),
            lambda snapshot: snapshot.status in ENDED,
            timeout=timeout,
            showing=bars_or_card(picture_of, show=show),
            says=lambda snapshot: f"snapshot {snapshot_id} is {snapshot.status}",
            on_progress=on_progress,
        )
        if found.status != "ready":
            raise SnapshotFailed(found)
        return found

    def get(self, snapshot_id: int) -> Snapshot:
        """One snapshot as it is now, with its exports."""
        return _snapshot(self._api.get(f"/api/snapshots/{snapshot_id}"))

    def list(self, *, most: int | None = 50, **filters: Any) -> Iterator[Snapshot]:
        """Snapshots, newest first, without their exports; filters: mapping_id, status, owner."""
        for row in self._api.listed("/api/snapshots", most=most, **filters):
            yield record(Snapshot, row, exports=[])

    def cancel(self, snapshot_id: int, *, reason: str | None = None) -> Snapshot:
        """Stop it: exports that wait are cancelled, those that run are asked to stop."""
        return _snapshot(self._api.act("POST", f"/api/snapshots/{snapshot_id}/cancel", {"reason": reason}))

    def retry(self, snapshot_id: int, *, reason: str | None = None) -> Snapshot:
        """Run what failed or was cancelled once more; what completed stays."""
        return _snapshot(self._api.act("POST", f"/api/snapshots/{snapshot_id}/retry", {"reason": reason}))

    def delete(self, snapshot_id: int) -> None:
        """Delete one that has ended; a job removes its files."""
        self._api.act("DELETE", f"/api/snapshots/{snapshot_id}")


def _snapshot(shown: dict[str, Any]) -> Snapshot:
    exports = [record(Export, export) for export in shown["exports"]]
    return record(Snapshot, shown["snapshot"], exports=exports)


def picture_of(snapshot: Snapshot) -> Picture:
    """A snapshot for the eyes. Pure."""
    lines = [Line(one.entity_name, one.status, one.progress, _says(one)) for one in snapshot.exports]
    says = snapshot.error_message or (
        "" if snapshot.size_bytes is None else f"{_bytes(snapshot.size_bytes)} in {snapshot.location}"
    )
    return Picture(f"snapshot {snapshot.id} · {snapshot.name}", snapshot.status, lines, says)


def _says(export: Export) -> str:
    """What there is to say of an export, in a few words. Pure."""
    if export.status == "completed":
        return f"{export.row_count or 0:,} rows, {_bytes(export.size_bytes or 0)}"
    if export.error_message and export.status == "failed":
        return export.error_message
    waits = "" if export.queue_position is None else f"number {export.queue_position} in the queue"
    return export.message or waits or export.status


def _bytes(count: int) -> str:
    """A size for people. Pure."""
    size, units = float(count), ["B", "kB", "MB", "GB", "TB"]
    while size >= 1000 and len(units) > 1:
        size, units = size / 1000, units[1:]
    return f"{size:.0f} {units[0]}" if units[0] == "B" else f"{size:.1f} {units[0]}"
