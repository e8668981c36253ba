"""What a run changed or would change, and which dry run a person can act on. Pure. Used by: the page of a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from holdfast.services.maintenance.engines.actions import ACTIONS, ActionsInvalid, parse_actions
from holdfast.services.maintenance.run.read import ActionView, RunView
from holdfast.services.maintenance.savings import Prices, Saved, saved_by
from holdfast.services.maintenance.tables.health import Part

FIGURES: Final = {
    "data_files": "data files",
    "average_file_bytes": "average file",
    "data_bytes": "size",
    "delete_files": "delete files",
    "manifests": "manifests",
    "snapshots": "snapshots",
}


@dataclass(frozen=True, slots=True)
class Change:
    """A figure of the table before and after; `after` is None if it is not known."""

    name: str
    before: int
    after: int | None
    is_size: bool


def changes_of(actions: Sequence[ActionView]) -> list[Change]:
    """The figures from before the first of these actions and after the last one."""
    before: dict[str, Any] = next((one.before for one in actions if one.before is not None), {})
    after: dict[str, Any] = next((one.after for one in reversed(actions) if one.after is not None), {})
    return [
        Change(word, before[name], after.get(name), name.endswith("bytes"))
        for name, word in FIGURES.items()
        if before.get(name) is not None
    ]


def plan_of(runs: Sequence[RunView]) -> RunView | None:
    """The newest dry run, if nothing was maintained since and its actions have no parameters of their own; newest run first.

    A button can only send the names of actions, so another plan would not be the one that then runs.
    """
    newest = next((run for run in runs if run.finished_at is not None or not run.dry_run), None)
    is_plan = newest is not None and newest.dry_run and newest.state == "completed"
    return newest if newest is not None and is_plan and all(_has_defaults(one) for one in newest.actions) else None


def _has_defaults(action: ActionView) -> bool:
    try:
        (default,) = parse_actions([action.action])
    except ActionsInvalid:  # of an older version
        return False
    return default.as_json() == action.parameters


def suggested(parts: Iterable[Part]) -> str:
    """The actions that would improve the health, for the form; without any: a rewrite of the data files."""
    found = {part.action for part in parts}
    return ", ".join(name for name in ACTIONS if name in found) or "rewrite_data_files"


def saved_together(runs: Iterable[RunView], prices: Prices) -> Saved:
    """What these runs saved, without dry runs and runs that have not ended."""
    ended = [run for run in runs if run.finished_at is not None and not run.dry_run]
    return saved_by([one for run in ended for one in run.actions if one.before is not None], prices)
