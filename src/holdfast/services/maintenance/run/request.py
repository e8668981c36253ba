"""Check a request for maintenance: every mistake at once, before anything is written. Pure.

Called by: the API, and the check of policies, which have the same actions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from holdfast.errors import UsageError
from holdfast.jobs.model import Lock, NewJob
from holdfast.services.maintenance.engines.actions import (
    ORPHAN_GUARD_SECONDS,
    Action,
    ActionsInvalid,
    Problem,
    RemoveOrphanFiles,
    parse_actions,
)
from holdfast.services.maintenance.engines.interface import TableRef
from holdfast.services.maintenance.engines.limits import ENGINES as ENGINES
from holdfast.services.maintenance.engines.limits import missing, planner_of

KIND: Final = "maintenance.run"
OnSigterm = Literal["release", "fail"]


class RequestInvalid(UsageError):
    """A request or a policy has mistakes; `problems` has all of them with their places."""

    slug = "validation-failed"

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("; ".join(f"{one.pointer}: {one.message}" for one in problems[:20]))
        self.problems = list(problems)

    def members(self) -> dict[str, Any]:
        return {"errors": [{"pointer": one.pointer, "message": one.message} for one in self.problems[:100]]}


@dataclass(frozen=True, slots=True)
class Wanted:
    """A checked request: what to do with which table, and how."""

    table: TableRef
    actions: tuple[Action, ...]  # in the order in which they run
    engine: str
    dry_run: bool = False
    wait: bool = False  # wait for the lock instead of being refused
    on_sigterm: OnSigterm = "release"
    reason: str | None = None
    policy: str | None = None
    due_at: datetime | None = None
    not_after: datetime | None = None
    permits: int | None = None  # how many jobs of policies may run at once in this catalog

    @property
    def lock_key(self) -> str:
        return lock_key(self.table)

    def job(self) -> NewJob:
        """The job. A dry run changes nothing and takes no lock; the job of a policy has the slot of its table."""
        payload = {
            "catalog": self.table.catalog,
            "namespace": self.table.namespace,
            "name": self.table.name,
            "actions": [action.as_json() for action in self.actions],
            "engine": self.engine,
            "dry_run": self.dry_run,
            "on_sigterm": self.on_sigterm,
        }
        if self.dry_run:
            return NewJob(KIND, payload)
        locks = [Lock(self.lock_key, when_busy="wait" if self.wait else "reject")]
        if self.permits is not None:
            locks.append(Lock(f"maintenance:{self.table.catalog}", most=self.permits))
        slot = None if self.policy is None else slot_key(self.policy, self.table)
        return NewJob(KIND, payload, locks=tuple(locks), slot_key=slot)


def lock_key(table: TableRef) -> str:
    """The lock that every job that changes this table holds. Pure."""
    return f"table:{table}"


def slot_key(policy: str, table: TableRef) -> str:
    """The slot of a policy's jobs for one table: at most one of them waits, however often the policy is due. Pure."""
    return f"maintenance-policy:{policy}:{table}"


def check_actions(
    given: Any, engine: str | None, at: str, problems: list[Problem], *, dry_run: bool = False, embedded: bool = False
) -> tuple[Action, ...]:
    """The actions, in the order in which they run; mistakes are added to `problems`. Each item may be a name,
    `{action: name, …}` or `{name: {…}}`. `embedded`: whether the embedded engine has the catalog, for dry runs."""
    if not isinstance(given, (list, tuple)):
        problems.append(Problem(at, "must be a list of actions"))
        return ()
    try:
        actions = tuple(parse_actions([_flat(item) for item in given]))
    except ActionsInvalid as invalid:
        problems += [Problem(f"{at}{one.pointer}", one.message) for one in invalid.problems]
        return ()
    for action in actions:
        planner = planner_of(engine or "", action, embedded=embedded) if dry_run else engine or ""
        for one in missing(planner, action, dry_run=dry_run):
            problems.append(Problem(at, one.sentence(engine or "", action)))
    return actions


def _flat(item: Any) -> Any:
    """`{"expire_snapshots": {"older_than": "7d"}}` as `{"action": "expire_snapshots", "older_than": "7d"}`. Pure."""
    if isinstance(item, Mapping) and len(item) == 1 and "action" not in item:
        ((name, parameters),) = item.items()
        if parameters is None or isinstance(parameters, Mapping):
            return {"action": name, **{key: value for key, value in (parameters or {}).items() if key != "action"}}
    return item


def check_engine(given: str, configured: Sequence[str], at: str, problems: list[Problem]) -> None:
    """Add a problem for an engine that is unknown or not configured."""
    if given not in ENGINES:
        problems.append(Problem(at, f"there is no engine {given!r}; use one of {', '.join(configured)}"))
    elif given not in configured:
        problems.append(Problem(at, f"the engine {given} is not configured; use one of {', '.join(configured)}"))


def forced(actions: Sequence[Action]) -> bool:
    """Whether files may be deleted that a running writer may still need: only an admin may ask for that. Pure."""
    return any(isinstance(one, RemoveOrphanFiles) and one.older_than < ORPHAN_GUARD_SECONDS for one in actions)
