"""When a policy is due, and the window that a moment is in. Pure."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

from holdfast.services.maintenance.policies.definition import Policy, Window
from holdfast.timetable.due_times import next_due

DAY = timedelta(days=1)


class Opening(NamedTuple):
    """One occurrence of a window: from `start` to before `end`."""

    start: datetime
    end: datetime


def opening_around(policy: Policy, moment: datetime) -> Opening | None:
    """The occurrence of the window that this moment is in; None if it is in none, or the policy has no window."""
    if policy.window is None:
        return None
    return next((one for one in _openings(policy, moment) if one.start <= moment < one.end), None)


def is_open(policy: Policy, moment: datetime) -> bool:
    """Whether actions may begin at this moment."""
    return policy.window is None or opening_around(policy, moment) is not None


def next_run(policy: Policy, moment: datetime, *, since: datetime | None = None) -> datetime:
    """The first run after `moment`: a due time, or the start of the next window if the due time is outside of one.

    `since`: an earlier due time, from which the interval of `every` is counted.
    """
    assert policy.is_scheduled, f"the policy {policy.name} has no due times"
    due = next_due(policy, moment, since=since)
    if is_open(policy, due):
        return due
    return min(one.start for one in _openings(policy, due) if one.start > due)


def next_runs(policy: Policy, moment: datetime, count: int) -> list[datetime]:
    """The next `count` runs."""
    found: list[datetime] = []
    while len(found) < count:
        found.append(next_run(policy, found[-1] if found else moment, since=found[0] if found else None))
    return found


def _openings(policy: Policy, moment: datetime) -> list[Opening]:
    """The occurrences of the window that begin on the days around a moment, by the policy's time zone."""
    assert policy.window is not None
    zone = ZoneInfo(policy.timezone)
    today = moment.astimezone(zone).date()
    return [_opening(policy.window, zone, today + DAY * shift) for shift in (-1, 0, 1, 2)]


def _opening(window: Window, zone: ZoneInfo, day: date) -> Opening:
    start = datetime.combine(day, window.start, zone)
    last = day if window.end > window.start else day + DAY
    end = datetime.combine(last, window.end, zone)
    return Opening(start.astimezone(UTC), end.astimezone(UTC))
