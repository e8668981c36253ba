"""The interface of maintenance engines: measure a table, plan an action, run it under a fence, find and stop remote work.

Engines are synchronous: a handler calls them in a thread. The rest of the service does not know which engine works. An action
may commit several times; each commit is complete in itself, so an action that stops half-way leaves a correct table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from holdfast.errors import ClaimLost, HoldfastError, UsageError
from holdfast.services.maintenance.engines.actions import ACTIONS as ACTIONS
from holdfast.services.maintenance.engines.actions import Action as Action
from holdfast.services.maintenance.engines.actions import ActionsInvalid as ActionsInvalid
from holdfast.services.maintenance.engines.actions import parse_actions as parse_actions

TAG_PREFIX = "holdfast-"  # of remote work and of tags of tables
SUMMARY_PREFIX = "holdfast."  # of the properties of our snapshots


@dataclass(frozen=True, slots=True, order=True)
class TableRef:
    """A table: the name of a configured catalog, the namespace (with dots if it has levels) and the name."""

    catalog: str
    namespace: str
    name: str

    @classmethod
    def parse(cls, text: str, *, catalog: str = "default") -> TableRef:
        """`catalog.namespace.name`, or `namespace.name` in the default catalog."""
        parts = text.split(".")
        if len(parts) < 2 or not all(parts):
            raise UsageError(f"{text!r} is not a table; use namespace.name or catalog.namespace.name")
        if len(parts) == 2:
            return cls(catalog, parts[0], parts[1])
        return cls(parts[0], ".".join(parts[1:-1]), parts[-1])

    @property
    def identifier(self) -> tuple[str, ...]:
        """The name within its catalog, as PyIceberg takes it."""
        return (*self.namespace.split("."), self.name)

    def __str__(self) -> str:
        return f"{self.catalog}.{self.namespace}.{self.name}"


# ---------------------------------------------------------------------------------------------------------------------
# Measurements and results
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TableStats:
    """The size of a table, from its metadata. `snapshot_id` is None for a table without a snapshot."""

    snapshot_id: int | None
    data_files: int
    data_bytes: int
    records: int  # in data files, before delete files are applied
    delete_files: int  # position and equality delete files, and deletion vectors
    manifests: int
    snapshots: int

    @property
    def average_file_bytes(self) -> int:
        """The average size of a data file."""
        return self.data_bytes // self.data_files if self.data_files else 0

    def as_json(self) -> dict[str, Any]:
        """The figures for results. The id of a snapshot is a text: it does not fit into a JavaScript number."""
        shown = None if self.snapshot_id is None else str(self.snapshot_id)
        return {**asdict(self), "snapshot_id": shown, "average_file_bytes": self.average_file_bytes}


@dataclass(frozen=True, slots=True)
class HealthInputs:
    """What a health score is computed from."""

    stats: TableStats
    target_file_bytes: int
    small_files: int  # data files below 75 % of the target
    small_bytes: int
    partitions: int  # with data files
    small_partitions: int  # partitions with at least two small files
    files_with_deletes: int  # data files to which a delete file may apply
    equality_delete_files: int
    oldest_snapshot_seconds: int | None  # age
    newest_snapshot_seconds: int | None
    snapshots_over_5_days: int  # snapshots older than that, except for the newest of every branch and tags
    format_version: int

    def as_json(self) -> dict[str, Any]:
        """The figures, with the stats as an object of their own."""
        return {**asdict(self), "stats": self.stats.as_json()}


@dataclass(frozen=True, slots=True)
class ActionResult:
    """What an action did, or what it would do (`dry_run`). `details` are the figures of the action itself.

    In a dry run `after` is an estimate; it is None if the engine cannot give one.
    """

    action: str
    before: TableStats
    after: TableStats | None
    engine_seconds: float
    details: dict[str, Any] = field(default_factory=dict)
    dry_run: bool = False

    def as_json(self) -> dict[str, Any]:
        """The result for the job resource."""
        return {
            "action": self.action,
            "before": self.before.as_json(),
            "after": self.after.as_json() if self.after else None,
            "engine_seconds": round(self.engine_seconds, 3),
            "details": self.details,
            "dry_run": self.dry_run,
        }


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an action is: `done` of `total` steps, and what the steps are (`partitions`, `files`, …)."""

    done: int
    total: int
    unit: str


# ---------------------------------------------------------------------------------------------------------------------
# The fence
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fence:
    """The attempt that an engine works for. Every commit carries it, and is refused once the attempt is replaced.

    `check` raises `ClaimLost` if the attempt does not hold its job any more. It is called before every commit and batch of
    deletions; it is cheap, and it may be called in any thread. The engine makes the commit itself conditional where the catalog
    allows it: a SQL catalog in our Postgres checks the job's row in the transaction of the commit, a REST catalog checks a tag.
    """

    job_id: int
    attempt_id: str
    fence_token: int
    check: Callable[[], None]

    @property
    def tag(self) -> str:
        """The name of this attempt in remote engines and in tables."""
        return f"{TAG_PREFIX}{self.attempt_id}"

    def lost(self, operation: str) -> ClaimLost:
        """The error that says that the attempt was replaced."""
        return ClaimLost(self.job_id, self.attempt_id, operation)

    def summary(self, action: str) -> dict[str, str]:
        """The properties of the snapshots that this attempt commits."""
        return {
            f"{SUMMARY_PREFIX}action": action,
            f"{SUMMARY_PREFIX}job-id": str(self.job_id),
            f"{SUMMARY_PREFIX}attempt-id": self.attempt_id,
            f"{SUMMARY_PREFIX}fence-token": str(self.fence_token),
        }


# ---------------------------------------------------------------------------------------------------------------------
# Engines
# ---------------------------------------------------------------------------------------------------------------------


def no_progress(_: Progress) -> None:
    """Ignore progress."""


def never_cancelled() -> bool:
    """Never stop."""
    return False


class Engine(Protocol):
    """A maintenance engine. Its methods block; call them in a thread. It may be used by several threads at once."""

    name: str

    def supports(self, action: str) -> bool:
        """Whether it can run the action of this name."""
        ...

    def list_tables(self) -> Iterator[TableRef]:
        """Every Iceberg table of the configured catalogs. Raises if one cannot be read: unknown is not empty."""
        ...

    def stats(self, table: TableRef) -> TableStats:
        """The size of the table now."""
        ...

    def health_inputs(self, table: TableRef) -> HealthInputs:
        """What a health score is computed from."""
        ...

    def plan(self, table: TableRef, action: Action) -> ActionResult:
        """What the action would do, with numbers. Changes nothing."""
        ...

    def run(
        self,
        table: TableRef,
        action: Action,
        fence: Fence,
        *,
        progress: Callable[[Progress], None] = no_progress,
        cancelled: Callable[[], bool] = never_cancelled,
    ) -> ActionResult:
        """Run the action. `cancelled` is asked often; `ActionCancelled` has the result of what was committed before."""
        ...

    def begin(self, tag: str) -> str:
        """Prepare the remote work of an attempt (`Fence.tag`). Returns the reference by which any process finds the work; it is
        recorded before the first action begins."""
        ...

    def end(self, tag: str) -> None:
        """The attempt needs no remote work any more. Called in the process that called `begin`."""
        ...

    def find(self, reference: str) -> str | None:
        """The handle of remote work with this reference that may still run; None: certainly none. If an attempt has recorded
        no reference, it is asked for by the tag."""
        ...

    def stop(self, handle: str) -> None:
        """Stop remote work, and return when it has stopped. No error if it has ended."""
        ...

    def close(self) -> None:
        """Release connections and threads."""
        ...


# ---------------------------------------------------------------------------------------------------------------------
# Errors
# ---------------------------------------------------------------------------------------------------------------------


class MaintenanceError(HoldfastError):
    """An action failed. `code` is stable; `transient`: another attempt may succeed."""

    code = "maintenance_error"
    transient = False


class TableNotFound(MaintenanceError):
    """The catalog has no such table."""

    code = "table_not_found"

    def __init__(self, table: TableRef) -> None:
        super().__init__(f"there is no table {table}; check its name with `holdfast table list`")
        self.table = table


class ActionUnsupported(MaintenanceError):
    """The engine does not have this action."""

    code = "action_unsupported"


class TableRefused(MaintenanceError):
    """This table cannot be maintained so: the message says why and what can be done."""

    code = "table_refused"


class TableConflict(MaintenanceError):
    """Other writers changed the same files each time the action tried. Nothing of this step was committed."""

    code = "table_conflict"
    transient = True


class RowsChanged(MaintenanceError):
    """The rewritten files do not have the rows of the old ones. Nothing was committed. This is a defect: report it."""

    code = "rows_changed"


class EngineFailed(MaintenanceError):
    """The engine or the catalog failed or could not be reached."""

    code = "maintenance_engine_failed"
    transient = True


class ActionCancelled(MaintenanceError):
    """The action stopped because it was cancelled. `result` has what was committed before."""

    code = "action_cancelled"

    def __init__(self, result: ActionResult) -> None:
        super().__init__(f"{result.action} was cancelled")
        self.result = result
