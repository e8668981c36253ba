"""The due times of a timetable: the next one, and those between two moments. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple, Protocol

from holdfast.timetable import cron as crontab

NEVER = timedelta(days=366 * 100)  # the wait for a due time that never comes
MOST_COUNTED = 1000  # due times of a cron expression that are counted one by one; between these and
COUNTED_AGAIN = timedelta(days=1)  # the last day they are skipped uncounted, because counting would take too long


class Timetable(Protocol):
    """An interval or a cron expression."""

    @property
    def every(self) -> timedelta | None: ...
    @property
    def cron(self) -> str | None: ...
    @property
    def timezone(self) -> str: ...


def next_due(timetable: Timetable, moment: datetime, *, since: datetime | None = None) -> datetime:
    """The first due time after `moment`. For an interval: a multiple of it after `since`."""
    if timetable.every is not None:
        if since is None:
            return moment + timetable.every
        return since + max((moment - since) // timetable.every + 1, 1) * timetable.every
    assert timetable.cron is not None
    found = crontab.next_after(timetable.cron, timetable.timezone, moment)
    return found if found is not None else moment + NEVER


class Passed(NamedTuple):
    """Due times that have passed: the latest, and how many there were in total."""

    latest: list[datetime]  # oldest first, at most as many as were asked for
    total: int


def passed(timetable: Timetable, first: datetime, now: datetime, *, most: int) -> Passed:
    """The due times from `first` to `now`: their number, and the latest `most` of them. `first` is a due time before `now`."""
    if timetable.every is not None:
        count = (now - first) // timetable.every + 1
        return Passed([first + n * timetable.every for n in range(max(0, count - most), count)], count)
    times, count, time = [first], 1, next_due(timetable, first)
    while time <= now:
        times, count = [*times, time][-most:], count + 1
        skips = count == MOST_COUNTED and now - time > COUNTED_AGAIN
        time = next_due(timetable, now - COUNTED_AGAIN if skips else time)
    return Passed(times, count)
