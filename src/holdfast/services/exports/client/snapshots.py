"""Snapshots: one run of a mapping version, as Parquet files."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from holdfast.errors import HoldfastError, UsageError
from holdfast.services.exports.client.mappings import Mapping
from holdfast.services.exports.client.mappings import id_of as mapping_id_of
from holdfast.toolkit.client.api import Api
from holdfast.toolkit.client.card import card
from holdfast.toolkit.client.progress import Line, ProgressView, progress_display
from holdfast.toolkit.client.records import record
from holdfast.toolkit.client.waiting import wait

ENDED = frozenset({"ready", "failed", "cancelled"})


class SnapshotFailed(HoldfastError):
    """The snapshot failed or was cancelled while `wait` waited for it; `snapshot` has its exports."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        super().__init__(f"snapshot {snapshot.id} {snapshot.status}: {snapshot.error_message or 'no error was recorded'}")


@dataclass(frozen=True, slots=True)
class Export:
    """One node or edge of a snapshot."""

    id: int
    job_type: str
    entity_name: str
    status: str
    location: str  # the folder or address of its files
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
    """A snapshot as it was when it was read. `refresh` reads it again."""

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
    exports: list[Export]
    _snapshots: Snapshots = field(repr=False, compare=False)

    def refresh(self) -> Snapshot:
        """The snapshot as it is now."""
        return self._snapshots.get(self)

    def wait(self, *, timeout: float | None = 900, show: bool = True) -> Snapshot:
        """The snapshot when it is ready; `SnapshotFailed` if it failed or was cancelled."""
        return self._snapshots.wait(self, timeout=timeout, show=show)

    def retry(self, *, reason: str | None = None) -> Snapshot:
        """Retry its failed and cancelled exports."""
        return self._snapshots.retry(self, reason=reason)

    def cancel(self, *, reason: str | None = None) -> Snapshot:
        """Cancel it."""
        return self._snapshots.cancel(self, reason=reason)

    def delete(self) -> None:
        """Delete it after it has ended; a job removes its files."""
        self._snapshots.delete(self)

    def files(self, entity: str) -> list[str]:
        """The addresses of the Parquet files of a completed node or edge."""
        found = next((one for one in self.exports if one.entity_name == entity), None)
        if found is None:
            raise UsageError(
                f"there is no node or edge {entity!r}; there are: {', '.join(one.entity_name for one in self.exports)}"
            )
        if found.status != "completed":
            raise UsageError(f"{entity} is {found.status}; its files are listed when it has completed")
        return [f"{found.location.rstrip('/')}/{one['path']}" for one in found.files or ()]

    def _repr_html_(self) -> str:
        return card(progress_of(self))


class Snapshots:
    """`hf.snapshots`. Methods that take a snapshot accept a `Snapshot` or its id."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def create(
        self, mapping: Mapping | int, *, version: int | None = None, role: str | None = None, **options: Any
    ) -> Snapshot:
        """Create a snapshot of the current version of a mapping, or of `version`. Options: name, description, runtime, ttl."""
        given = {"mapping_id": mapping_id_of(mapping), "mapping_version": version, **options}
        body = {name: value for name, value in given.items() if value is not None}
        return self._snapshot(self._api.act("POST", "/api/snapshots", body, role=role))

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
        """Create a snapshot and wait until it is ready; `SnapshotFailed` if it failed or was cancelled."""
        made = self.create(mapping, version=version, role=role, **options)
        return self.wait(made, timeout=timeout, show=show, on_progress=on_progress)

    def wait(
        self,
        snapshot: Snapshot | int,
        *,
        timeout: float | None = 900,
        show: bool = True,
        on_progress: Callable[[Snapshot], None] | None = None,
    ) -> Snapshot:
        """The snapshot when it is ready; `SnapshotFailed` if it failed or was cancelled."""
        found = wait(
            lambda: self.get(snapshot),
            lambda current: current.status in ENDED,
            timeout=timeout,
            display=progress_display(progress_of, show=show),
            describe=lambda current: f"snapshot {current.id} is {current.status}",
            on_progress=on_progress,
        )
        if found.status != "ready":
            raise SnapshotFailed(found)
        return found

    def get(self, snapshot: Snapshot | int) -> Snapshot:
        """The snapshot as it is now, with its exports."""
        return self._snapshot(self._api.get(f"/api/snapshots/{id_of(snapshot)}"))

    def list(
        self,
        *,
        mapping: Mapping | int | None = None,
        status: str | None = None,
        owner: str | None = None,
        most: int | None = 50,
    ) -> builtins.list[Snapshot]:
        """Snapshots without their exports, newest first, at most `most` (None: all)."""
        filters = {"mapping_id": None if mapping is None else mapping_id_of(mapping), "status": status, "owner": owner}
        rows = self._api.listed("/api/snapshots", most=most, **filters)
        return [record(Snapshot, row, exports=[], _snapshots=self) for row in rows]

    def cancel(self, snapshot: Snapshot | int, *, reason: str | None = None) -> Snapshot:
        """Cancel a snapshot: waiting exports are cancelled, running ones are asked to stop."""
        return self._snapshot(self._api.act("POST", f"/api/snapshots/{id_of(snapshot)}/cancel", {"reason": reason}))

    def retry(self, snapshot: Snapshot | int, *, reason: str | None = None) -> Snapshot:
        """Retry the failed and cancelled exports of a snapshot."""
        return self._snapshot(self._api.act("POST", f"/api/snapshots/{id_of(snapshot)}/retry", {"reason": reason}))

    def delete(self, snapshot: Snapshot | int) -> None:
        """Delete a snapshot that has ended; a job removes its files."""
        self._api.act("DELETE", f"/api/snapshots/{id_of(snapshot)}")

    def _snapshot(self, shown: dict[str, Any]) -> Snapshot:
        exports = [record(Export, export) for export in shown["exports"]]
        return record(Snapshot, shown["snapshot"], exports=exports, _snapshots=self)


def id_of(snapshot: Snapshot | int) -> int:
    """The id of a snapshot. Pure."""
    return snapshot.id if isinstance(snapshot, Snapshot) else snapshot


def progress_of(snapshot: Snapshot) -> ProgressView:
    """A snapshot for a progress display. Pure."""
    lines = [Line(one.entity_name, one.status, one.progress, _note(one)) for one in snapshot.exports]
    note = snapshot.error_message or (
        "" if snapshot.size_bytes is None else f"{_bytes(snapshot.size_bytes)} in {snapshot.location}"
    )
    return ProgressView(f"snapshot {snapshot.id} · {snapshot.name}", snapshot.status, lines, note)


def _note(export: Export) -> str:
    """Result, error or progress message of an export. Pure."""
    if export.status == "completed":
        return f"{export.row_count or 0:,} rows, {_bytes(export.size_bytes or 0)}"
    if export.error_message and export.status == "failed":
        return export.error_message
    waits = "" if export.queue_position is None else f"number {export.queue_position} in the queue"
    return export.message or waits or export.status


def _bytes(count: int) -> str:
    """A size in bytes, formatted. Pure."""
    size, units = float(count), ["B", "kB", "MB", "GB", "TB"]
    while size >= 1000 and len(units) > 1:
        size, units = size / 1000, units[1:]
    return f"{size:.0f} {units[0]}" if units[0] == "B" else f"{size:.1f} {units[0]}"
