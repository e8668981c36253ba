"""What an engine does not have, and what to do instead. Pure. Called by: the check of requests, and engines themselves.

A parameter that an engine does not have is refused, never ignored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Final, NamedTuple

from holdfast.services.maintenance.engines.actions import (
    DAY,
    Action,
    ComputeStatistics,
    RemoveOrphanFiles,
    RewriteDataFiles,
    RewriteManifests,
)

ENGINES: Final = ("pyiceberg", "trino", "spark")


class Missing(NamedTuple):
    """A parameter of an action that an engine does not have (None: the action itself), and the fix."""

    parameter: str | None
    fix: str

    def sentence(self, engine: str, action: Action) -> str:
        """What is missing, for people."""
        what = action.name if self.parameter is None else f"{self.parameter} of {action.name}"
        return f"the engine {engine} has no {what}; {self.fix}"


def missing(engine: str, action: Action, *, dry_run: bool = False) -> Iterator[Missing]:
    """Everything in this action that the engine does not have."""
    match engine, action:
        case "pyiceberg", ComputeStatistics():
            yield Missing(None, "use the engine trino or spark")
        case "trino", RewriteDataFiles():
            if action.sort_by:
                yield Missing("sort_by", "Trino sorts by the table property sorted_by; leave sort_by out")
            for name in changed(action, "min_input_files", "delete_file_threshold"):
                yield Missing(name, "leave it out, or use the engine pyiceberg or spark")
        case "trino", RewriteManifests():
            for name in changed(action, "target_size", "min_input_manifests"):
                yield Missing(name, "leave it out, or use the engine pyiceberg")
        case "trino", RemoveOrphanFiles() if dry_run:
            yield Missing("dry_run", "add the catalog to HOLDFAST_ICEBERG_CATALOGS, or use the engine spark for it")
        case "spark", RewriteManifests():
            for name in changed(action, "target_size", "min_input_manifests"):
                yield Missing(name, "set the table property commit.manifest.target-size-bytes, or use the engine pyiceberg")
        case "spark", RemoveOrphanFiles() if action.older_than < DAY:
            yield Missing("older_than below 24 hours", "Spark refuses it; use the engine pyiceberg")


def planner_of(engine: str, action: Action, *, embedded: bool) -> str:
    """The engine that plans an action in a dry run. The embedded engine plans what another engine cannot, as Trino cannot list
    orphan files without deleting them, if it has the catalog (`embedded`)."""
    cannot_plan = any(one.parameter == "dry_run" for one in missing(engine, action, dry_run=True))
    return "pyiceberg" if cannot_plan and embedded else engine


def changed(action: Action, *names: str) -> list[str]:
    """Which of these parameters do not have their default."""
    return [one.name for one in fields(action) if one.name in names and getattr(action, one.name) != one.default]
