"""Which tables a policy maintains when it is due, and why it leaves the others alone. Pure.

The loop and the preview use the same decision.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from holdfast.services.maintenance.engines.interface import TableRef
from holdfast.services.maintenance.policies.definition import Policy


class Known(NamedTuple):
    """What is known of a table: its score, and the runs of this policy."""

    table: TableRef
    health: int | None


class Runs(NamedTuple):
    """The runs of a policy for one table: one that has not ended, and the start of the last one."""

    live_job_id: int | None
    last_at: datetime | None


@dataclass(frozen=True, slots=True)
class Choice:
    """A table that the policy matches. `skipped` says why it is left alone; None: it is maintained."""

    table: TableRef
    health: int | None
    skipped: str | None


def choose(policy: Policy, tables: Iterable[Known], runs: Mapping[TableRef, Runs], now: datetime) -> list[Choice]:
    """The tables that match, the worst health first. Pure."""
    found = [Choice(one.table, one.health, _reason(policy, one, runs.get(one.table), now)) for one in tables
             if policy.matches(one.table)]  # fmt: skip
    return sorted(found, key=lambda one: (one.health is None, one.health or 0, one.table))


def _reason(policy: Policy, known: Known, runs: Runs | None, now: datetime) -> str | None:
    if runs is not None and runs.live_job_id is not None:
        return f"job {runs.live_job_id} of this policy has not ended"
    if policy.health_below is not None and known.health is None:
        return "its health was not measured yet"
    if not policy.wants(known.health):
        return f"its health is {known.health}, not below {policy.health_below}"
    if not policy.is_scheduled and runs is not None and runs.last_at is not None:
        free_at = runs.last_at + policy.min_interval
        if free_at > now:
            return f"the last run was less than min_interval ({policy.min_interval}) ago"
    return None
