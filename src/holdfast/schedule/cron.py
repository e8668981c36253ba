"""When a cron expression is due: five fields, in a named time zone. Pure.

APScheduler's trigger finds the wall times that match; here they become moments. As in cron(8): a time of day that a clock
change skips is due at the end of the gap, and one that the clocks show twice is due once. An expression for every hour, or
every second one, follows the wall clock through the change.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, cast
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from apscheduler.triggers.cron import CronTrigger

from holdfast.errors import UsageError

LONGEST_GAP = timedelta(days=366 * 41)  # 29 February on one weekday comes every 28 years, around 2100 only after 40
LAST_YEAR = 2500  # where the search for a date that never comes ends
LONGEST_SHIFT = timedelta(hours=26)  # Samoa skipped a whole day in 2011
ANY_TIME = datetime(2024, 1, 1, tzinfo=UTC)
WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
STEP = re.compile(r"(?P<from>\*|[0-7])(?:-(?P<to>[0-7]))?(?:/(?P<step>[1-9]))?")


def check(expression: str, timezone: str) -> None:
    """`UsageError` for an expression that cannot be read, a zone that is not there, and a date that never comes."""
    if next_after(expression, timezone, ANY_TIME) is None:
        raise UsageError(f"cron {expression!r} never comes: no month has such a day")


def next_after(expression: str, timezone: str, moment: datetime) -> datetime | None:
    """The first due time after this moment; None if there is none within 41 years, which is never."""
    zone, once_a_day = _zone(timezone), _hour_is_fixed(expression)
    found: datetime | None = None
    for wall in _walls(expression, _earliest_wall(zone, moment)):
        first, again = _first_shown(zone, wall), _shown_again(zone, wall)
        if found is not None and first >= found:
            return found  # `first` never falls from one wall time to the next
        if first - moment > LONGEST_GAP:
            return None
        moments = [first] if once_a_day else [one for one in (first, again) if _is_shown(zone, wall, one)]
        found = min((one for one in (*moments, found) if one is not None and one > moment), default=None)
        if found is not None and once_a_day:
            return found
    return found


def _walls(expression: str, start: datetime) -> Iterator[datetime]:
    """The wall times from `start` on that match, as if there were no clock changes (and so labelled UTC)."""
    trigger = _trigger(expression)
    wall = trigger.get_next_fire_time(None, start)
    while wall is not None:
        yield cast("datetime", wall)
        wall = trigger.get_next_fire_time(None, wall + timedelta(microseconds=1))


def _earliest_wall(zone: ZoneInfo, moment: datetime) -> datetime:
    """From which wall time on there can be a moment after this one: earlier than now where a clock change is near."""
    near = [(moment + shift).astimezone(zone).utcoffset() for shift in (-LONGEST_SHIFT, timedelta(0), LONGEST_SHIFT)]
    offsets = [offset for offset in near if offset is not None]
    wall = moment.astimezone(zone).replace(tzinfo=UTC, fold=0)
    return wall - (max(offsets) - min(offsets)) + timedelta(microseconds=1)


def _first_shown(zone: ZoneInfo, wall: datetime) -> datetime:
    """When the clocks show this wall time first; the end of the gap for one that they skip."""
    first = wall.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if _is_shown(zone, wall, first):
        return first
    before = wall.replace(tzinfo=zone, fold=1).astimezone(UTC)  # in a gap the two folds enclose the change
    return _change_between(zone, before, first)


def _shown_again(zone: ZoneInfo, wall: datetime) -> datetime:
    return wall.replace(tzinfo=zone, fold=1).astimezone(UTC)


def _is_shown(zone: ZoneInfo, wall: datetime, moment: datetime) -> bool:
    return moment.astimezone(zone).replace(tzinfo=UTC, fold=0) == wall


def _change_between(zone: ZoneInfo, before: datetime, after: datetime) -> datetime:
    """The moment of the clock change between these two, to the second."""
    offset = before.astimezone(zone).utcoffset()
    while after - before > timedelta(seconds=1):
        middle = before + timedelta(seconds=(after - before) // timedelta(seconds=2))
        if middle.astimezone(zone).utcoffset() == offset:
            before = middle
        else:
            after = middle
    return after


@lru_cache(maxsize=256)
def _trigger(expression: str) -> Any:
    """Shared by all threads: nothing is ever set on it after it was made."""
    fields = expression.split()
    if len(fields) != 5:
        raise UsageError(f"cron {expression!r} has {len(fields)} fields; there are five: minute hour day month weekday")
    minute, hour, day, month, weekday = fields
    if day != "*" and weekday != "*":
        raise UsageError(
            f"cron {expression!r} names a day and a weekday, which crons read differently; register a loop for each of the two"
        )
    try:
        return CronTrigger(
            minute=minute,
            hour=hour,
            day=day,
            month=month,
            day_of_week=_weekday(weekday),
            timezone=UTC,
            end_date=datetime(LAST_YEAR, 1, 1, tzinfo=UTC),
        )
    except ValueError as error:
        raise UsageError(f"cron {expression!r} cannot be read: {error}") from None


def _weekday(field: str) -> str:
    """Numbers as crontab has them (0 and 7 are Sunday) as names: APScheduler counts from Monday."""
    if field == "*" or not re.search(r"\d", field):
        return field
    days: dict[str, None] = {}
    for part in field.split(","):
        match = STEP.fullmatch(part)
        if match is None:
            raise UsageError(f"weekday {field!r} cannot be read; use numbers from 0 to 7, or names such as mon-fri")
        first = 0 if match["from"] == "*" else int(match["from"])
        last = 6 if match["from"] == "*" else int(match["to"] or (6 if match["step"] else first))
        if last < first:
            raise UsageError(f"weekday {field!r} runs backwards; write it as two parts, such as 5-6,0-1")
        days.update(dict.fromkeys(WEEKDAYS[day % 7] for day in range(first, last + 1, int(match["step"] or 1))))
    return ",".join(days)


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise UsageError(
            f"no time zone {name!r}; use a name such as Europe/Zurich, and install tzdata if none is known"
        ) from None


def _hour_is_fixed(expression: str) -> bool:
    """Every hour and every second hour go on through the change of the clocks; a time of the day comes once a day."""
    return not expression.split()[1].startswith("*")
