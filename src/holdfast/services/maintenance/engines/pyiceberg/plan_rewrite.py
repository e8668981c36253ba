"""Which data files are rewritten together. The decisions are pure; `read_plan` reads the manifests for them.

A group has files of one partition, and one commit replaces them. A file is a candidate if it is small, much larger than the
target, or has delete files. A partition is left alone if it has few small files and nothing else to do, so that a second run
has nothing to do after the first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from pyiceberg.expressions import BooleanExpression
from pyiceberg.expressions.parser import parse
from pyiceberg.expressions.visitors import _InclusiveMetricsEvaluator, bind, expression_evaluator, inclusive_projection
from pyiceberg.manifest import DataFile, FileFormat, ManifestContent
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.typedef import Record

from holdfast.services.maintenance.engines.actions import GiB, RewriteDataFiles
from holdfast.services.maintenance.engines.interface import TableRefused
from holdfast.services.maintenance.engines.pyiceberg import equality_deletes
from holdfast.services.maintenance.engines.pyiceberg.manifests import (
    Live,
    entries_in,
    has_live,
    is_unpartitioned,
    live_of,
    manifests_of,
    slim,
)
from holdfast.services.maintenance.engines.pyiceberg.measure import SMALL_SHARE, target_bytes

LARGE_SHARE: Final = 1.8  # of the target size: larger files are split
GROUP_BYTES: Final = GiB  # of one commit, if several target sizes fit into it
EXAMPLES: Final = 3

Partition = tuple[int, Record]


@dataclass(frozen=True, slots=True)
class Group:
    """Files of one partition that one commit replaces, and the delete files that may apply to them."""

    spec_id: int
    partition: Record
    inputs: tuple[Live, ...]
    deletes: tuple[Live, ...]

    @property
    def key(self) -> Partition:
        """The partition."""
        return (self.spec_id, self.partition)

    @property
    def bytes(self) -> int:
        """The size of its files."""
        return sum(file.bytes for file in self.inputs)


@dataclass(frozen=True, slots=True)
class Limits:
    """The sizes that decide about a rewrite."""

    target: int
    min_input_files: int
    delete_file_threshold: int
    whole_partitions: bool  # sorted files must not overlap, so all files of a partition are one group

    @classmethod
    def of(cls, action: RewriteDataFiles, table: Table) -> Limits:
        """The limits of an action on this table."""
        return cls(
            target=action.target_file_size or target_bytes(table.metadata),
            min_input_files=action.min_input_files,
            delete_file_threshold=action.delete_file_threshold,
            whole_partitions=action.strategy == "sort",
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """What a rewrite would do."""

    groups: list[Group]
    skipped: dict[str, int]  # files that cannot be rewritten, by reason
    delete_files: int  # of the whole table

    @property
    def files(self) -> int:
        """The number of files that would be replaced."""
        return sum(len(group.inputs) for group in self.groups)

    @property
    def bytes(self) -> int:
        """Their size."""
        return sum(group.bytes for group in self.groups)


def read_plan(table: Table, action: RewriteDataFiles, *, only: Partition | None = None) -> Plan:
    """The groups of the table as it is now; with `only`, those of one partition. `TableRefused` if a file cannot be handled."""
    manifests = manifests_of(table.metadata.current_snapshot(), table.io)
    keep = file_filter(table, action.where)
    deletes = list(live_of(manifests, table.io, deletes=True))
    by_partition: dict[Partition, list[Live]] = defaultdict(list)
    skipped: dict[str, int] = defaultdict(int)
    for manifest in manifests:
        if manifest.content != ManifestContent.DATA or not has_live(manifest):
            continue
        for entry in entries_in(manifest, table.io):
            if not keep(entry.data_file):
                continue
            file = slim(entry, manifest.manifest_path)
            if only is not None and only != (file.spec_id, file.partition):
                continue
            reason = unreadable(file)
            if reason:
                skipped[reason] += 1
                continue
            by_partition[file.spec_id, file.partition].append(file)
    limits = Limits.of(action, table)
    index = DeleteIndex(deletes, lambda spec_id: is_unpartitioned(table.metadata, spec_id))
    groups = [group for key, files in by_partition.items() for group in groups_of(key, files, index, limits)]
    refuse_unreadable_deletes(groups, table.metadata.schema())
    return Plan(groups, dict(skipped), len(deletes))


class DeleteIndex:
    """Finds the delete files that may apply to a data file."""

    def __init__(self, deletes: Iterable[Live], is_unpartitioned: Callable[[int], bool]) -> None:
        self._by_partition: dict[Partition, list[Live]] = defaultdict(list)
        self._everywhere: list[Live] = []  # equality deletes without a partition apply to every partition
        self._is_unpartitioned = is_unpartitioned
        for delete in deletes:
            if delete.is_equality_delete and is_unpartitioned(delete.spec_id):
                self._everywhere.append(delete)
            else:
                self._by_partition[delete.spec_id, delete.partition].append(delete)

    def of(self, data: Live) -> list[Live]:
        """The delete files that may apply to this data file."""
        candidates = [*self._by_partition.get((data.spec_id, data.partition), ()), *self._everywhere]
        return [
            delete for delete in candidates if delete.may_apply_to(data, unpartitioned=self._is_unpartitioned(delete.spec_id))
        ]

    def of_all(self, inputs: Iterable[Live]) -> dict[str, Live]:
        """The delete files that may apply to any of these data files, by path."""
        return {delete.path: delete for data in inputs for delete in self.of(data)}


def groups_of(key: Partition, files: Sequence[Live], index: DeleteIndex, limits: Limits) -> Iterator[Group]:
    """The groups of one partition. Pure."""
    deletes = {file.path: index.of(file) for file in files}
    small = [file for file in files if file.bytes < limits.target * SMALL_SHARE]
    large = [file for file in files if file.bytes > limits.target * LARGE_SHARE]
    dirty = [file for file in files if len(deletes[file.path]) >= limits.delete_file_threshold]
    chosen = {file.path: file for file in (*large, *dirty)}
    if len(small) >= limits.min_input_files or (len(small) > 1 and sum(file.bytes for file in small) >= limits.target):
        chosen |= {file.path: file for file in small}
    if chosen and limits.whole_partitions:
        chosen = {file.path: file for file in files}
    ordered = sorted(chosen.values(), key=lambda file: (file.sequence, file.path))  # neighbours in time stay neighbours
    for batch in _batches(ordered, limits):
        applying = {delete.path: delete for file in batch for delete in deletes[file.path]}
        yield Group(key[0], key[1], tuple(batch), tuple(applying.values()))


def _batches(files: Sequence[Live], limits: Limits) -> Iterator[list[Live]]:
    """Split the files of a partition into groups that can be repeated after a conflict without much loss."""
    most = max(GROUP_BYTES // limits.target * limits.target, limits.target)
    batch: list[Live] = []
    size = 0
    for file in files:
        if batch and not limits.whole_partitions and size + file.bytes > most:
            yield batch
            batch, size = [], 0
        batch.append(file)
        size += file.bytes
    if batch:
        yield batch


def unreadable(file: Live) -> str | None:
    """Why a data file cannot be rewritten; None if it can."""
    if file.format != FileFormat.PARQUET:
        return f"files in {file.format.name} are not rewritten"
    if file.encrypted:
        return "encrypted files are not rewritten"
    return None


def refuse_unreadable_deletes(groups: Iterable[Group], schema: Schema) -> None:
    """Raise if delete files apply to a group that this engine cannot apply. They are never dropped."""
    for group in groups:
        equality_deletes.refuse(group.deletes, schema)
        for delete in group.deletes:
            if delete.format != FileFormat.PARQUET:
                raise TableRefused(
                    f"the delete file {delete.path} has the format {delete.format.name}, which the embedded engine cannot "
                    "read; nothing was changed. Use the engine spark or trino for rewrite_data_files"
                )


def file_filter(table: Table, where: str | None) -> Callable[[DataFile], bool]:
    """Tells whether a data file may have rows that match the filter; without a filter, always."""
    if where is None:
        return lambda _: True
    schema = table.metadata.schema()
    expression = parsed(where, schema)
    metrics = _InclusiveMetricsEvaluator(schema, expression).eval
    partitions: dict[int, Callable[[Record], bool]] = {}

    def may_match(file: DataFile) -> bool:
        if file.spec_id not in partitions:
            spec = table.metadata.specs()[file.spec_id]
            projected = inclusive_projection(schema, spec)(expression)
            partitions[file.spec_id] = expression_evaluator(Schema(*spec.partition_type(schema).fields), projected, True)
        return partitions[file.spec_id](file.partition) and bool(metrics(file))

    return may_match


def parsed(where: str, schema: Schema) -> BooleanExpression:
    """The filter as an expression; `TableRefused` if it is not one, or names unknown columns."""
    try:
        expression = parse(where)
        bind(schema, expression, case_sensitive=True)
    except Exception as wrong:  # the parser raises errors of its own library
        raise TableRefused(f"where: {where!r} is not a filter on this table: {wrong}; write e.g. day >= '2024-01-01'") from None
    return expression
