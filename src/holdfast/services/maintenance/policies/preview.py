"""What a policy would do: the tables that it matches now, its next five runs, the order of its actions. Changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import psycopg

from holdfast.services.maintenance.policies.definition import Policy
from holdfast.services.maintenance.policies.due import is_open, next_runs
from holdfast.services.maintenance.policies.enqueue import choices
from holdfast.services.maintenance.policies.store import clock

Conn = psycopg.AsyncConnection[Any]
RUNS = 5


@dataclass(frozen=True, slots=True)
class TablePreview:
    """A table that the policy matches. `skipped`: why it would not be maintained now."""

    catalog: str
    database: str
    name: str
    health: int | None
    skipped: str | None


@dataclass(frozen=True, slots=True)
class Preview:
    """The tables with the worst health first, the next runs in the policy's time zone, the actions in their order."""

    name: str
    engine: str
    actions: list[dict[str, Any]]
    timezone: str
    next_runs: list[datetime]
    is_open_now: bool
    note: str
    tables: list[TablePreview]


async def of(conn: Conn, policy: Policy, *, default_engine: str) -> Preview:
    """The preview of a policy, by the database's clock."""
    now = await clock(conn)
    zone = ZoneInfo(policy.timezone)
    runs = [one.astimezone(zone) for one in next_runs(policy, now, RUNS)] if policy.is_scheduled and policy.enabled else []
    tables = [
        TablePreview(one.table.catalog, one.table.namespace, one.table.name, one.health, one.skipped)
        for one in await choices(conn, policy, now)
    ]
    return Preview(
        policy.name,
        policy.engine or default_engine,
        [action.as_json() for action in policy.actions],
        policy.timezone,
        runs,
        is_open(policy, now),
        note_of(policy),
        tables,
    )


def note_of(policy: Policy) -> str:
    """When the policy runs, in one sentence. Pure."""
    if not policy.enabled:
        return "The policy is not enabled: it never runs."
    window = policy.window
    within = "" if window is None else f", between {window.start:%H:%M} and {window.end:%H:%M}"
    when = "" if policy.health_below is None else f" for tables with a health below {policy.health_below}"
    if policy.cron is not None:
        return f"At cron {policy.cron!r} in {policy.timezone}{within}{when}."
    if policy.every is not None:
        return f"Every {policy.every}{within}{when}."
    return (
        f"Whenever a table has a health below {policy.health_below}{within}, at most once in {policy.min_interval} per table."
    )
