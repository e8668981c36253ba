"""The engine spark: Iceberg's procedures (`CALL catalog.system.…`), through Spark Connect or a Spark Thrift Server.

The statements are the same over both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from holdfast.services.maintenance.engines.actions import (
    ACTIONS,
    Action,
    ComputeStatistics,
    ExpireSnapshots,
    RemoveOrphanFiles,
    RewriteDataFiles,
    RewriteManifests,
)
from holdfast.services.maintenance.engines.interface import (
    ActionUnsupported,
    TableRef,
    TableStats,
    never_cancelled,
)
from holdfast.services.maintenance.engines.sql_engine import FOLLOW_UPS, Rows, SqlEngine


class SparkLink(Protocol):
    """How statements reach Spark: `spark_connect.py` or `spark_thrift.py`."""

    def begin(self, tag: str) -> str:
        """Prepare the work of an attempt; the reference by which any process finds it."""
        ...

    def end(self, tag: str) -> None:
        """The attempt needs no remote work any more."""
        ...

    def run(self, sql: str, tag: str, work: str, cancelled: Callable[[], bool]) -> Rows:
        """The rows of a statement; `Stopped` if it was cancelled."""
        ...

    def find(self, reference: str, /) -> str | None:
        """The handle of work with this reference; None: certainly none."""
        ...

    def stop(self, handle: str) -> None:
        """Stop it, and return when it has stopped."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


class SparkMaintenance(SqlEngine):
    """Maintenance with Spark. `catalogs` maps our names of catalogs to Spark's."""

    name = "spark"
    actions = frozenset(ACTIONS)

    def __init__(self, link: SparkLink, catalogs: Mapping[str, str]) -> None:
        super().__init__(catalogs)
        self._link = link

    def query(self, sql: str, tag: str, work: str = "", cancelled: Callable[[], bool] = never_cancelled) -> Rows:
        """Run a statement; a cancel interrupts it in Spark."""
        return self._link.run(sql, tag, work, cancelled)

    def begin(self, tag: str) -> str:
        """Prepare the work of an attempt; the reference by which any process finds it."""
        return self._link.begin(tag)

    def end(self, tag: str) -> None:
        """The attempt needs no remote work any more."""
        self._link.end(tag)

    def find(self, reference: str) -> str | None:
        """The handle of work that an attempt has started and that may still run."""
        return self._link.find(reference)

    def stop(self, handle: str) -> None:
        """Stop it, and return when it has stopped."""
        self._link.stop(handle)

    def list_tables(self) -> Iterator[TableRef]:
        """Every table of the configured catalogs. Namespaces with several levels are not listed."""
        for ours, theirs in self._catalogs.items():
            for (namespace,) in self._look(f"SHOW NAMESPACES IN {quoted(theirs)}"):
                for row in self._look(f"SHOW TABLES IN {quoted(theirs)}.{quoted(namespace)}"):
                    yield TableRef(ours, namespace, row[1])

    def metadata_table(self, table: TableRef, name: str) -> str:
        """`catalog.namespace.table.files`."""
        return f"{self._name(table)}.{name}"

    def age(self, column: str) -> str:
        """Seconds since a timestamp."""
        return f"(unix_timestamp() - unix_timestamp({column}))"

    def properties(self, table: TableRef) -> dict[str, str]:
        """The properties of the table, with its format version."""
        return dict(self._look(f"SHOW TBLPROPERTIES {self._name(table)}"))

    def partition_column(self, table: TableRef) -> str:
        """`partition`; a table without partitions does not have the column."""
        columns = {row[0] for row in self._look(f"DESCRIBE TABLE {self.metadata_table(table, 'files')}")}
        return "partition" if "partition" in columns else "content IS NULL"

    def statement(self, table: TableRef, action: Action, *, dry_run: bool = False) -> str:
        """`CALL catalog.system.…`. Its arguments are literals: Iceberg's parser for Spark 3 takes no expressions."""
        self.refuse(action, dry_run=dry_run)
        arguments = [f"table => {text(f'{table.namespace}.{table.name}')}"]
        match action:
            case RewriteDataFiles():
                arguments += _rewrite_arguments(action)
            case RewriteManifests():
                arguments.append("use_caching => false")
            case ExpireSnapshots():
                arguments += [f"older_than => {self._ago(action.older_than)}", f"retain_last => {action.retain_last}"]
            case RemoveOrphanFiles():
                arguments += [f"older_than => {self._ago(action.older_than)}", "prefix_mismatch_mode => 'ERROR'"]
                arguments += ["dry_run => true"] if dry_run else []
            case ComputeStatistics():
                if action.columns:
                    arguments.append(f"columns => array({', '.join(map(text, action.columns))})")
            case _:
                raise ActionUnsupported(action.name)
        return self._call(table, PROCEDURES.get(action.name, action.name), arguments)

    def afterwards(self, table: TableRef, action: Action, before: TableStats) -> dict[str, str]:
        """Spark keeps the delete files that a rewrite has applied: another procedure removes those that apply to nothing."""
        if not isinstance(action, RewriteDataFiles) or not before.delete_files:
            return {}
        (work,) = FOLLOW_UPS
        arguments = [f"table => {text(f'{table.namespace}.{table.name}')}", "options => map('rewrite-all', 'true')"]
        return {work: self._call(table, work, arguments)}

    def figures(self, action: Action, rows: Rows, *, dry_run: bool = False) -> dict[str, Any]:
        """The columns of the procedure's answer. Orphan files are listed one per row."""
        if isinstance(action, RemoveOrphanFiles):
            deleted = {} if dry_run else {"deleted_files": len(rows)}
            return {"orphan_files": len(rows), **deleted, "examples": [str(row[0]) for row in rows[:10]]}
        names = FIGURES.get(action.name, ())
        return dict(zip(names, rows[0], strict=False)) if rows else {}

    def _call(self, table: TableRef, procedure: str, arguments: list[str]) -> str:
        return f"CALL {quoted(self._theirs(table.catalog))}.system.{procedure}({', '.join(arguments)})"

    def _ago(self, seconds: int) -> str:
        """The time before so many seconds, by Spark's clock, which has also dated the snapshots."""
        ((now,),) = self._look("SELECT unix_micros(current_timestamp())")
        then = datetime.fromtimestamp(int(now) / 1e6 - seconds, UTC)
        return f"TIMESTAMP '{then:%Y-%m-%d %H:%M:%S.%f}Z'"

    def _name(self, table: TableRef) -> str:
        return ".".join(map(quoted, (self._theirs(table.catalog), *table.namespace.split("."), table.name)))

    def close(self) -> None:
        """Close the connection."""
        self._link.close()


PROCEDURES: Final = {ComputeStatistics.name: "compute_table_stats"}
FIGURES: Final[dict[str, tuple[str, ...]]] = {
    RewriteDataFiles.name: ("rewritten_files", "added_files", "rewritten_bytes", "failed_files", "removed_delete_files"),
    RewriteManifests.name: ("rewritten_manifests", "added_manifests"),
    ExpireSnapshots.name: (
        "deleted_data_files",
        "deleted_position_delete_files",
        "deleted_equality_delete_files",
        "deleted_manifests",
        "deleted_manifest_lists",
        "deleted_statistics_files",
    ),
    ComputeStatistics.name: ("statistics_file",),
}


def _rewrite_arguments(action: RewriteDataFiles) -> list[str]:
    """Without `partial-progress.enabled`: its commits come from a thread that outlives an interrupted operation."""
    options = {"min-input-files": str(action.min_input_files), "delete-file-threshold": str(action.delete_file_threshold)}
    if action.target_file_size:
        options["target-file-size-bytes"] = str(action.target_file_size)
    pairs = ", ".join(f"{text(key)}, {text(value)}" for key, value in options.items())
    given = [f"strategy => '{action.strategy}'", f"options => map({pairs})"]
    if action.sort_by:
        order = ", ".join(f"{c.removeprefix('-')} {'DESC' if c.startswith('-') else 'ASC'}" for c in action.sort_by)
        given.append(f"sort_order => {text(order)}")
    if action.where:
        given.append(f"where => {text(action.where)}")
    return given


def quoted(name: str) -> str:
    """An identifier in Spark's SQL."""
    return "`" + name.replace("`", "``") + "`"


def text(value: str) -> str:
    """A string literal in Spark's SQL."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
