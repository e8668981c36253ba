"""The schedule that `@job(cron=…)` or `@job(every=…)` declares. Called by: `kinds.py`, when a function is decorated."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from holdfast.errors import UsageError
from holdfast.jobs.periodic.schedule import DUE_AT, Schedule, declared, payload_at

SAMPLE = datetime(2024, 2, 29, 12, tzinfo=UTC)  # a due time to check a handler with
KEYS = ("locks", "slot", "unique")


def schedule_of(
    policy: Any,
    names: Collection[str],
    to_payload: Callable[[dict[str, Any]], dict[str, Any]],
    check: Callable[[Mapping[str, Any]], Any],
) -> Schedule | None:
    """The schedule of a kind whose handler has parameters with these names; None if it is not periodic.

    `to_payload` and `check` are the handler's own: arguments that it would refuse are refused here, and not at the due time.
    """
    schedule = declared(
        cron=policy.cron, every=policy.every, timezone=policy.timezone, catch_up=policy.catch_up, args=policy.args
    )
    if schedule is None:
        return None
    for name in KEYS:
        if callable(getattr(policy, name)):  # any worker enqueues it, also one that does not have the function
            raise UsageError(f"{name} of a periodic job must be a template such as 'report:{{region}}', not a function")
    gives_due_at = DUE_AT in names and DUE_AT not in schedule.payload
    arguments = {**schedule.payload, **({DUE_AT: SAMPLE} if gives_due_at else {})}
    try:
        payload = to_payload(arguments)
    except UsageError as error:
        raise UsageError(f"each run needs its arguments: {error}; give them defaults, or args={{'name': value}}") from None
    check(payload_at(payload, gives_due_at, SAMPLE))
    if gives_due_at:
        payload = {name: value for name, value in payload.items() if name != DUE_AT}
    return replace(schedule, payload=payload, gives_due_at=gives_due_at)
