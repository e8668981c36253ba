"""The embedded engine: runs actions in this process with PyIceberg and PyArrow."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table

from holdfast.services.maintenance.engines.actions import (
    Action,
    ExpireSnapshots,
    RemoveOrphanFiles,
    RewriteDataFiles,
    RewriteManifests,
)
from holdfast.services.maintenance.engines.catalogs import Catalogs
from holdfast.services.maintenance.engines.interface import (
    ActionCancelled,
    ActionResult,
    ActionUnsupported,
    EngineFailed,
    Fence,
    HealthInputs,
    Progress,
    TableNotFound,
    TableRef,
    TableStats,
    never_cancelled,
    no_progress,
)
from holdfast.services.maintenance.engines.pyiceberg import (
    expire_snapshots,
    fence_tag,
    measure,
    remove_orphan_files,
    rewrite_data_files,
    rewrite_manifests,
)
from holdfast.services.maintenance.engines.pyiceberg.commit import Session
from holdfast.services.maintenance.engines.pyiceberg.fence_scope import ChecksFence
from holdfast.services.maintenance.engines.pyiceberg.running import Cancelled, Running

SUPPORTED: Final = frozenset({RewriteDataFiles.name, RewriteManifests.name, ExpireSnapshots.name, RemoveOrphanFiles.name})


class PyIcebergEngine:
    """The engine `pyiceberg`. `now_ms` is the time in milliseconds, of the database; ages are measured with it."""

    name = "pyiceberg"

    def __init__(self, catalogs: Catalogs, now_ms: Callable[[], int]) -> None:
        self._catalogs, self._now_ms = catalogs, now_ms

    def supports(self, action: str) -> bool:
        """Whether it can run the action: all but compute_statistics."""
        return action in SUPPORTED

    def list_tables(self) -> Iterator[TableRef]:
        """Every table of every catalog."""
        for name in self._catalogs.names:
            catalog = self._catalogs.open(name)
            for namespace in namespaces(catalog):
                for identifier in catalog.list_tables(namespace):
                    yield TableRef(name, ".".join(identifier[:-1]), identifier[-1])

    def stats(self, table: TableRef) -> TableStats:
        """The size of the table now."""
        return measure.stats(self._load(table))

    def health_inputs(self, table: TableRef) -> HealthInputs:
        """What a health score is computed from."""
        return measure.health_inputs(self._load(table), self._now_ms())

    def plan(self, table: TableRef, action: Action) -> ActionResult:
        """What the action would do, with numbers."""
        self._refuse_unsupported(action)
        loaded, started, now = self._load(table), time.monotonic(), self._now_ms()
        before = measure.stats(loaded)
        match action:
            case RewriteDataFiles():
                details = rewrite_data_files.plan(loaded, action)
            case RewriteManifests():
                details = rewrite_manifests.plan(loaded, action)
            case ExpireSnapshots():
                details = expire_snapshots.plan(loaded, action, now)
            case RemoveOrphanFiles():
                details = remove_orphan_files.plan(self._looking(table), action)
        return ActionResult(
            action.name, before, estimated(before, action, details), time.monotonic() - started, details, dry_run=True
        )

    def run(
        self,
        table: TableRef,
        action: Action,
        fence: Fence,
        *,
        progress: Callable[[Progress], None] = no_progress,
        cancelled: Callable[[], bool] = never_cancelled,
    ) -> ActionResult:
        """Run the action under the fence."""
        self._refuse_unsupported(action)
        fence.check()
        catalog, started = self._catalogs.open(table.catalog), time.monotonic()
        before = measure.stats(self._load(table))
        session = self._session(catalog, table, action, fence)
        running = Running(session, progress, cancelled, self._now_ms())
        try:
            details = _run(running, action)
            fence.check()  # an attempt that was replaced and found nothing left to do has not done the work
        except Cancelled:
            raise ActionCancelled(self._result(table, action, before, started, running.details())) from None
        except (OSError, ConnectionError) as error:
            raise EngineFailed(f"{action.name} of {table} failed: {type(error).__name__}: {error}") from error
        finally:
            if session.tag is not None:
                fence_tag.release(catalog, session.load, session.tag)
        return self._result(table, action, before, started, details)

    def begin(self, tag: str) -> str:
        """Nothing to prepare: there is no remote work."""
        return tag

    def end(self, tag: str) -> None:
        """Nothing to end."""

    def find(self, reference: str) -> str | None:
        """None: the work ends with the process, and the fence refuses what a frozen process commits later."""
        return None

    def stop(self, handle: str) -> None:
        """Nothing to stop."""

    def close(self) -> None:
        """Close the catalogs."""
        self._catalogs.close()

    def _session(self, catalog: Catalog, table: TableRef, action: Action, fence: Fence) -> Session:
        session = Session(catalog, table, fence, action.name)
        if isinstance(catalog, ChecksFence):
            return session
        return Session(catalog, table, fence, action.name, fence_tag.claim(catalog, session.load, fence))

    def _looking(self, table: TableRef) -> Running:
        """A run that changes nothing."""
        nobody = Fence(0, "", 0, check=lambda: None)
        return Running(
            Session(self._catalogs.open(table.catalog), table, nobody, "plan"), no_progress, never_cancelled, self._now_ms()
        )

    def _result(
        self, table: TableRef, action: Action, before: TableStats, started: float, details: dict[str, Any]
    ) -> ActionResult:
        return ActionResult(action.name, before, self.stats(table), time.monotonic() - started, details)

    def _load(self, table: TableRef) -> Table:
        try:
            return self._catalogs.open(table.catalog).load_table(table.identifier)
        except NoSuchTableError:
            raise TableNotFound(table) from None

    def _refuse_unsupported(self, action: Action) -> None:
        if not self.supports(action.name):
            raise ActionUnsupported(f"the embedded engine does not have {action.name}; use the engine spark or trino for it")


def _run(running: Running, action: Action) -> dict[str, Any]:
    match action:
        case RewriteDataFiles():
            return rewrite_data_files.run(running, action)
        case RewriteManifests():
            return rewrite_manifests.run(running, action)
        case ExpireSnapshots():
            return expire_snapshots.run(running, action)
        case RemoveOrphanFiles():
            return remove_orphan_files.run(running, action)
    raise ActionUnsupported(action.name)


def estimated(before: TableStats, action: Action, details: dict[str, Any]) -> TableStats | None:
    """The size of the table after the action, as far as a plan tells. Pure."""
    match action:
        case RewriteDataFiles():
            change = details["added_files"] - details["rewritten_files"]
            deletes = before.delete_files - details["delete_files_applied"]
            return _changed(before, data_files=before.data_files + change, delete_files=deletes)
        case RewriteManifests():
            return _changed(before, manifests=before.manifests + details["added_manifests"] - details["rewritten_manifests"])
        case ExpireSnapshots():
            return _changed(before, snapshots=before.snapshots - details["expired_snapshots"])
        case RemoveOrphanFiles():
            return before
    return None


def _changed(before: TableStats, **figures: int) -> TableStats:
    values = {name: getattr(before, name) for name in before.__dataclass_fields__}
    return TableStats(**{**values, **figures})


def namespaces(catalog: Catalog, parent: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every namespace of a catalog, also nested ones."""
    for namespace in catalog.list_namespaces(parent):
        name = tuple(namespace)
        if name != parent:
            yield name
            yield from namespaces(catalog, name)
