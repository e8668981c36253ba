"""What engines that run SQL have in common: sizes from metadata tables, one statement per action, and a look at the fence.

Trino and Spark run an action as one statement and commit it themselves, so the catalog cannot check the fence in that
commit. The attempt is checked before each statement, the statement is tagged with the attempt, and work of an earlier
attempt is stopped before a new one begins. What remains is the time between the check and the commit of a statement whose
attempt is replaced meanwhile and which cannot be stopped: Iceberg's own validation then refuses it if the two touch the
same files.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from holdfast.services.maintenance.engines.actions import (
    DAY,
    Action,
    ComputeStatistics,
    ExpireSnapshots,
    RewriteDataFiles,
    RewriteManifests,
)
from holdfast.services.maintenance.engines.interface import (
    ActionCancelled,
    ActionResult,
    ActionUnsupported,
    Fence,
    HealthInputs,
    Progress,
    TableNotFound,
    TableRef,
    TableRefused,
    TableStats,
    never_cancelled,
    no_progress,
)
from holdfast.services.maintenance.engines.limits import missing

Rows = list[tuple[Any, ...]]
TARGET_BYTES: Final = 512 << 20
FOLLOW_UPS: Final = ("rewrite_position_delete_files",)  # statements that complete an action, beside those of the actions
NOT_FOUND: Final = ("TABLE_NOT_FOUND", "TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND", "NoSuchTableException")
LOOK: Final = "holdfast-look"  # the tag of statements that only read


class Stopped(Exception):
    """The statement was cancelled."""


class SqlEngine(ABC):
    """An engine that runs SQL. Subclasses send statements and know the dialect."""

    name: str
    actions: frozenset[str]

    def __init__(self, catalogs: Mapping[str, str]) -> None:
        self._catalogs = dict(catalogs)  # our names of catalogs: theirs

    @abstractmethod
    def query(self, sql: str, tag: str, work: str = "", cancelled: Callable[[], bool] = never_cancelled) -> Rows:
        """Run a statement and return its rows; `Stopped` if it was cancelled. `work`: which one of the attempt's."""

    @abstractmethod
    def metadata_table(self, table: TableRef, name: str) -> str:
        """The name of a metadata table (`files`, `snapshots`, …) in SQL."""

    @abstractmethod
    def statement(self, table: TableRef, action: Action, *, dry_run: bool = False) -> str:
        """The statement of an action. `ActionUnsupported` if it has parameters that this engine does not have."""

    def afterwards(self, table: TableRef, action: Action, before: TableStats) -> dict[str, str]:
        """Statements that complete the action, by the name of their work (`FOLLOW_UPS`)."""
        return {}

    @abstractmethod
    def figures(self, action: Action, rows: Rows, *, dry_run: bool = False) -> dict[str, Any]:
        """The figures in the answer to a statement."""

    @abstractmethod
    def list_tables(self) -> Iterator[TableRef]:
        """Every Iceberg table of the configured catalogs."""

    def begin(self, tag: str) -> str:
        """Prepare the work of an attempt; its tag is enough to find it."""
        return tag

    def end(self, tag: str) -> None:  # noqa: B027 - most engines have nothing to end
        """The attempt needs no remote work any more."""

    @abstractmethod
    def find(self, reference: str) -> str | None:
        """The handle of remote work with this reference that may still run."""

    @abstractmethod
    def stop(self, handle: str) -> None:
        """Stop remote work."""

    @abstractmethod
    def close(self) -> None:
        """Release connections."""

    def supports(self, action: str) -> bool:
        """Whether it can run the action of this name."""
        return action in self.actions

    def stats(self, table: TableRef) -> TableStats:
        """The size of the table now, from its metadata tables, in one statement: each takes a second in a large engine."""
        files, others = self.metadata_table(table, "files"), ("manifests", "snapshots")
        counts = ", ".join(f"(SELECT count(*) FROM {self.metadata_table(table, name)})" for name in others)
        head = f"(SELECT max(snapshot_id) FROM {self.metadata_table(table, 'refs')} WHERE name = 'main')"
        sql = (
            f"SELECT count(CASE WHEN content = 0 THEN 1 END), sum(CASE WHEN content = 0 THEN file_size_in_bytes END), "
            f"sum(CASE WHEN content = 0 THEN record_count END), count(CASE WHEN content <> 0 THEN 1 END), {counts}, {head} "
            f"FROM {files}"
        )
        try:
            data, size, records, deletes, manifests, snapshots, snapshot_id = self._look(sql)[0]
        except TableRefused as refused:
            if any(word in str(refused) for word in NOT_FOUND):
                raise TableNotFound(table) from refused
            raise
        return TableStats(
            snapshot_id=None if snapshot_id is None else int(snapshot_id),
            data_files=int(data),
            data_bytes=int(size or 0),
            records=int(records or 0),
            delete_files=int(deletes),
            manifests=int(manifests),
            snapshots=int(snapshots),
        )

    def health_inputs(self, table: TableRef) -> HealthInputs:
        """What a health score is computed from. Files that have deletes are counted by partition: which ones is not in a
        metadata table."""
        stats, target = self.stats(table), self.target_bytes(table)
        small, files = f"content = 0 AND file_size_in_bytes < {int(target * 0.75)}", self.metadata_table(table, "files")
        partition = self.partition_column(table)
        of_partition = (
            "SELECT count(CASE WHEN content = 0 THEN 1 END) AS data, count(CASE WHEN content <> 0 THEN 1 END) AS deletes, "
            f"count(CASE WHEN content = 2 THEN 1 END) AS equality, count(CASE WHEN {small} THEN 1 END) AS small_files, "
            f"sum(CASE WHEN {small} THEN file_size_in_bytes ELSE 0 END) AS small_bytes FROM {files} GROUP BY {partition}"
        )
        partitions = self._look(
            "SELECT count(*), sum(small_files), sum(small_bytes), count(CASE WHEN small_files > 1 THEN 1 END), "
            f"sum(CASE WHEN deletes > 0 THEN data END), sum(equality) FROM ({of_partition}) AS parts WHERE data > 0"
        )[0]
        ages = self._look(
            f"SELECT {self.age('min(committed_at)')}, {self.age('max(committed_at)')}, "
            f"count(CASE WHEN {self.age('committed_at')} > {5 * DAY} AND snapshot_id NOT IN "
            f"(SELECT snapshot_id FROM {self.metadata_table(table, 'refs')}) THEN 1 END) "
            f"FROM {self.metadata_table(table, 'snapshots')}"
        )[0]
        count, small_files, small_bytes, small_partitions, with_deletes, equality = (int(one or 0) for one in partitions)
        return HealthInputs(
            stats=stats,
            target_file_bytes=target,
            small_files=small_files,
            small_bytes=small_bytes,
            partitions=count,
            small_partitions=small_partitions,
            files_with_deletes=with_deletes,
            equality_delete_files=equality,
            oldest_snapshot_seconds=int(ages[0]) if ages[0] is not None else None,
            newest_snapshot_seconds=int(ages[1]) if ages[1] is not None else None,
            snapshots_over_5_days=int(ages[2]),
            format_version=self.format_version(table),
        )

    def target_bytes(self, table: TableRef) -> int:
        """The size that files of this table should have: its property, or Iceberg's default."""
        return int(self.properties(table).get("write.target-file-size-bytes", TARGET_BYTES))

    def format_version(self, table: TableRef) -> int:
        """The version of the table format."""
        return int(self.properties(table).get("format-version", 2))

    @abstractmethod
    def properties(self, table: TableRef) -> dict[str, str]:
        """The properties of the table."""

    @abstractmethod
    def partition_column(self, table: TableRef) -> str:
        """The column of `files` that has the partition; a constant for a table without partitions."""

    @abstractmethod
    def age(self, column: str) -> str:
        """SQL for the age of a time in seconds."""

    def plan(self, table: TableRef, action: Action) -> ActionResult:
        """What the action would do, as far as metadata tables tell."""
        self.statement(table, action, dry_run=True)
        started, before = time.monotonic(), self.stats(table)
        details, after = self._planned(table, action, before)
        return ActionResult(action.name, before, after, time.monotonic() - started, details, dry_run=True)

    def _planned(self, table: TableRef, action: Action, before: TableStats) -> tuple[dict[str, Any], TableStats | None]:
        match action:
            case RewriteDataFiles():
                target = action.target_file_size or self.target_bytes(table)
                by_partition = (
                    f"SELECT count(*) AS files, sum(file_size_in_bytes) AS size FROM {self.metadata_table(table, 'files')} "
                    f"WHERE content = 0 AND file_size_in_bytes < {int(target * 0.75)} GROUP BY {self.partition_column(table)}"
                )
                partitions, files, size = (
                    int(one or 0)
                    for one in self._look(
                        f"SELECT count(*), sum(files), sum(size) FROM ({by_partition}) AS parts WHERE files > 1"
                    )[0]
                )
                added = max(partitions, -(-size // target))
                details = {"rewritten_files": files, "rewritten_bytes": size, "added_files": added}
                return details, replace(before, data_files=before.data_files - files + added)
            case RewriteManifests():
                return {"rewritten_manifests": before.manifests}, replace(before, manifests=min(1, before.manifests))
            case ExpireSnapshots():
                old = self._look(
                    f"SELECT count(*) FROM {self.metadata_table(table, 'snapshots')} "
                    f"WHERE {self.age('committed_at')} >= {action.older_than} AND snapshot_id NOT IN "
                    f"(SELECT snapshot_id FROM {self.metadata_table(table, 'refs')})"
                )[0][0]
                gone = max(0, min(int(old), before.snapshots - action.retain_last))
                return {"expired_snapshots": gone}, replace(before, snapshots=before.snapshots - gone)
            case ComputeStatistics():
                read = {"read_files": before.data_files, "read_bytes": before.data_bytes, "read_rows": before.records}
                return read, before
            case _:
                return self.figures(action, self._look(self.statement(table, action, dry_run=True)), dry_run=True), before

    def run(
        self,
        table: TableRef,
        action: Action,
        fence: Fence,
        *,
        progress: Callable[[Progress], None] = no_progress,
        cancelled: Callable[[], bool] = never_cancelled,
    ) -> ActionResult:
        """Run the action as a statement, tagged with the attempt."""
        sql, started, before = self.statement(table, action), time.monotonic(), self.stats(table)
        details: dict[str, Any] = {}
        steps = {action.name: sql, **self.afterwards(table, action, before)}
        try:
            for number, (work, statement) in enumerate(steps.items()):
                progress(Progress(number, len(steps), "statements"))
                fence.check()
                rows = self.query(statement, fence.tag, work, cancelled)
                details |= self.figures(action, rows) if work == action.name else {}
        except Stopped:
            partly = ActionResult(action.name, before, self.stats(table), time.monotonic() - started, details)
            raise ActionCancelled(partly) from None
        fence.check()
        progress(Progress(len(steps), len(steps), "statements"))
        return ActionResult(action.name, before, self.stats(table), time.monotonic() - started, details)

    def _look(self, sql: str) -> Rows:
        return self.query(sql, LOOK)

    def _theirs(self, name: str) -> str:
        return self._catalogs.get(name, name)

    def refuse(self, action: Action, *, dry_run: bool) -> None:
        """Raise if the action has something that this engine does not have."""
        for one in missing(self.name, action, dry_run=dry_run):
            raise ActionUnsupported(one.sentence(self.name, action))
