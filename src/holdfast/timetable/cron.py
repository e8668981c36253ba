"""Due times of a cron expression with five fields in a named time zone. Pure.

APScheduler's trigger finds the matching wall times; this module converts them to moments. As in cron(8), a time of day that a
clock change skips is due at the end of the gap, and a time of day that occurs twice is due once. An expression that runs every
hour, or every second hour, follows the wall clock through the change.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from importlib import import_module
from typing import Any, cast
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from holdfast.errors import UsageError

LONGEST_GAP = timedelta(days=366 * 41)  # 29 February on a given weekday: every 28 years, around 2100 after 40
LAST_YEAR = 2500  # the search for a matching date ends here
LONGEST_SHIFT = timedelta(hours=26)  # Samoa skipped a whole day in 2011
ANY_TIME = datetime(2024, 1, 1, tzinfo=UTC)
TRIGGERS = "apscheduler.triggers.cron"  # loaded by the first cron expression: most programs have none
WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
STEP = re.compile(r"(?P<from>\*|[0-7])(?:-(?P<to>[0-7]))?(?:/(?P<step>[1-9]))?")


def check(expression: str, timezone: str) -> None:
    """`UsageError` for an invalid expression, an unknown time zone, and a date that does not exist, such as 30 February."""
    if next_after(expression, timezone, ANY_TIME) is None:
        raise UsageError(f"cron {expression!r} never matches: no month has such a day")


def next_after(expression: str, timezone: str, moment: datetime) -> datetime | None:
    """The first due time after `moment`; None if there is none within 41 years, which means never."""
    zone = _zone(timezone)
    _trigger(expression)  # refuses an invalid expression
    once_a_day = _hour_is_fixed(expression)
    found: datetime | None = None
    for wall in _walls(expression, _earliest_wall(zone, moment)):
        first, again = _first_shown(zone, wall), _shown_again(zone, wall)
        if found is not None and first >= found:
            return found  # `first` does not decrease from one wall time to the next
        if first - moment > LONGEST_GAP:
            return None
        moments = [first] if once_a_day else [one for one in (first, again) if _is_shown(zone, wall, one)]
        found = min((one for one in (*moments, found) if one is not None and one > moment), default=None)
        if found is not None and once_a_day:
            return found
    return found


def _walls(expression: str, start: datetime) -> Iterator[datetime]:
    """Matching wall times from `start` on, ignoring clock changes (and therefore labelled UTC)."""
    trigger = _trigger(expression)
    wall = trigger.get_next_fire_time(None, start)
    while wall is not None:
        yield cast("datetime", wall)
        wall = trigger.get_next_fire_time(None, wall + timedelta(microseconds=1))


def _earliest_wall(zone: ZoneInfo, moment: datetime) -> datetime:
    """The earliest wall time that can belong to a moment after `moment`: earlier than its own near a clock change."""
    near = [(moment + shift).astimezone(zone).utcoffset() for shift in (-LONGEST_SHIFT, timedelta(0), LONGEST_SHIFT)]
    offsets = [offset for offset in near if offset is not None]
    wall = moment.astimezone(zone).replace(tzinfo=UTC, fold=0)
    return wall - (max(offsets) - min(offsets)) + timedelta(microseconds=1)


def _first_shown(zone: ZoneInfo, wall: datetime) -> datetime:
    """The first moment with this wall time; the end of the gap if a clock change skips it."""
    first = wall.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if _is_shown(zone, wall, first):
        return first
    before = wall.replace(tzinfo=zone, fold=1).astimezone(UTC)  # in a gap, the two folds are on either side of the change
    return _change_between(zone, before, first)


def _shown_again(zone: ZoneInfo, wall: datetime) -> datetime:
    return wall.replace(tzinfo=zone, fold=1).astimezone(UTC)


def _is_shown(zone: ZoneInfo, wall: datetime, moment: datetime) -> bool:
    return moment.astimezone(zone).replace(tzinfo=UTC, fold=0) == wall


def _change_between(zone: ZoneInfo, before: datetime, after: datetime) -> datetime:
    """The moment of the clock change between `before` and `after`, to the second."""
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
    """The trigger of an expression. Threads share it: nothing writes to it after construction."""
    fields = expression.split()
    if len(fields) != 5:
        raise UsageError(f"cron {expression!r} has {len(fields)} fields; use five: minute hour day month weekday")
    minute, hour, day, month, weekday = fields
    if day != "*" and weekday != "*":
        raise UsageError(
            f"cron {expression!r} has a day of the month and a weekday, which cron programs interpret differently; "
            "declare one schedule for each"
        )
    try:
        return import_module(TRIGGERS).CronTrigger(
            minute=minute,
            hour=hour,
            day=day,
            month=month,
            day_of_week=_weekday(weekday),
            timezone=UTC,
            end_date=datetime(LAST_YEAR, 1, 1, tzinfo=UTC),
        )
    except ValueError as error:
        raise UsageError(f"cron {expression!r} is invalid: {error}") from None


def _weekday(field: str) -> str:
    """Weekday numbers of crontab (0 and 7 are Sunday) as names: APScheduler counts from Monday."""
    if field == "*" or not re.search(r"\d", field):
        return field
    days: dict[str, None] = {}
    for part in field.split(","):
        match = STEP.fullmatch(part)
        if match is None:
            raise UsageError(f"weekday {field!r} is invalid; use numbers from 0 to 7, or names such as mon-fri")
        first = 0 if match["from"] == "*" else int(match["from"])
        last = 6 if match["from"] == "*" else int(match["to"] or (6 if match["step"] else first))
        if last < first:
            raise UsageError(f"weekday {field!r} is a descending range; write two ranges, such as 5-6,0-1")
        days.update(dict.fromkeys(WEEKDAYS[day % 7] for day in range(first, last + 1, int(match["step"] or 1))))
    return ",".join(days)


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise UsageError(
            f"unknown time zone {name!r}; use an IANA name such as Europe/Zurich (if none is known, install tzdata)"
        ) from None


def _hour_is_fixed(expression: str) -> bool:
    """Whether it names hours of the day, each of which is due once a day; `*` and `*/2` continue through a clock change."""
    return not expression.split()[1].startswith("*")
