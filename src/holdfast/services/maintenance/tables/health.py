"""The health score of a table: 0 to 100, with its parts, and which action would improve each. Pure.

The score starts at 100. Each part can take its weight from it. Small numbers count little: a table with six small files is
healthy, a table with six hundred is not.

| Part | Weight | All of it is lost when |
|---|---|---|
| small files | 45 | every data file is small and could be merged into a few |
| delete files | 25 | half of the data files have rows to skip |
| snapshots | 20 | 50 snapshots are older than 5 days |
| manifests | 10 | 100 manifests have fewer than 100 files each |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import ceil
from typing import Any, Final

from holdfast.services.maintenance.engines.interface import HealthInputs, TableStats

FEW_FILES: Final = 10  # mergeable files below which the part counts in proportion
MANY_SNAPSHOTS: Final = 50
FEW_MANIFESTS, MANY_MANIFESTS, FILES_PER_MANIFEST = 10, 100, 100


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the score: how many points it can take and takes, in words, and what would improve it."""

    name: str
    weight: int
    lost: int
    says: str
    action: str | None = None  # that would improve it; None: there is nothing to improve
    improvement: str | None = None


@dataclass(frozen=True, slots=True)
class Health:
    """The score and its parts, in the order of their weight."""

    score: int
    parts: tuple[Part, ...]

    @property
    def reasons(self) -> list[str]:
        """The parts that take points, the worst first."""
        return [part.name for part in sorted(self.parts, key=lambda part: -part.lost) if part.lost]


def health_of(inputs: HealthInputs) -> Health:
    """The health of a table. Pure."""
    parts = (_small_files(inputs), _delete_files(inputs), _snapshots(inputs), _manifests(inputs))
    return Health(max(0, 100 - sum(part.lost for part in parts)), parts)


def _small_files(inputs: HealthInputs) -> Part:
    stats, target = inputs.stats, max(1, inputs.target_file_bytes)
    needed = max(ceil(inputs.small_bytes / target), min(inputs.small_files, inputs.small_partitions or 1))
    mergeable = max(0, inputs.small_files - needed)
    share = mergeable / stats.data_files if stats.data_files else 0.0
    lost = _points(45, share * min(1.0, mergeable / FEW_FILES))
    says = f"{inputs.small_files:,} of {stats.data_files:,} data files are below 75 % of {size(target)}"
    after = stats.data_files - mergeable
    improvement = f"rewrite_data_files: {stats.data_files:,} data files → about {after:,}"
    return _part("small files", 45, lost, says, "rewrite_data_files", improvement)


def _delete_files(inputs: HealthInputs) -> Part:
    stats = inputs.stats
    share = inputs.files_with_deletes / stats.data_files if stats.data_files else 0.0
    lost = _points(25, min(1.0, 2 * share))
    says = f"{stats.delete_files:,} delete files apply to {inputs.files_with_deletes:,} data files"
    improvement = f"rewrite_data_files: applies {stats.delete_files:,} delete files to {inputs.files_with_deletes:,} data files"
    return _part("delete files", 25, lost, says, "rewrite_data_files", improvement)


def _snapshots(inputs: HealthInputs) -> Part:
    old = inputs.snapshots_over_5_days
    lost = _points(20, min(1.0, old / MANY_SNAPSHOTS))
    says = f"{old:,} of {inputs.stats.snapshots:,} snapshots are older than 5 days"
    return _part("snapshots", 20, lost, says, "expire_snapshots", f"expire_snapshots: removes {old:,} snapshots")


def _manifests(inputs: HealthInputs) -> Part:
    manifests, files = inputs.stats.manifests, inputs.stats.data_files
    are_small = manifests > FEW_MANIFESTS and files < manifests * FILES_PER_MANIFEST
    share = min(1.0, (manifests - FEW_MANIFESTS) / (MANY_MANIFESTS - FEW_MANIFESTS)) if are_small else 0.0
    lost = _points(10, share)
    says = f"{manifests:,} manifests list {files:,} data files"
    return _part("manifests", 10, lost, says, "rewrite_manifests", f"rewrite_manifests: {manifests:,} manifests → about 1")


def _points(weight: int, share: float) -> int:
    return round(weight * share)


def _part(name: str, weight: int, lost: int, says: str, action: str, improvement: str) -> Part:
    return Part(name, weight, lost, says, action, improvement) if lost else Part(name, weight, 0, says)


def size(count: int) -> str:
    """A number of bytes in a unit that people read. Pure."""
    for unit, bytes_ in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= bytes_:
            return f"{count / bytes_:.1f} {unit}".replace(".0 ", " ")
    return f"{count} B"


def inputs_from(stored: Mapping[str, Any]) -> HealthInputs:
    """The inputs as the table cache stores them. Fields of newer versions are ignored. Pure."""
    stats = stored["stats"]
    shown = stats["snapshot_id"]
    known = {one.name: stats[one.name] for one in fields(TableStats) if one.name != "snapshot_id"}
    of_table = TableStats(snapshot_id=None if shown is None else int(shown), **known)
    return HealthInputs(stats=of_table, **{one.name: stored[one.name] for one in fields(HealthInputs) if one.name != "stats"})


def label_of(score: int | None) -> str:
    """A word for a score: good, fair or poor. Pure."""
    if score is None:
        return "unknown"
    return "good" if score >= 80 else "fair" if score >= 50 else "poor"
