"""When a cron expression is due: five fields, in a named time zone. Pure; APScheduler's trigger does the computing.

As in cron(8), a fixed time that a change of the clocks skips runs when the gap is over, and one that comes twice runs once.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, cast
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from apscheduler.triggers.cron import CronTrigger

from holdfast.errors import UsageError

LONGEST_GAP = timedelta(days=366 * 41)  # 29 February on one weekday comes every 28 years, around 2100 only after 40
ANY_TIME = datetime(2024, 1, 1, tzinfo=UTC)
WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
STEP = re.compile(r"(?P<from>\*|[0-7])(?:-(?P<to>[0-7]))?(?:/(?P<step>[1-9]))?")


def check(expression: str, timezone: str) -> None:
    """`UsageError` for an expression that cannot be read, a zone that is not there, and a date that never comes."""
    if next_after(expression, timezone, ANY_TIME) is None:
        raise UsageError(f"cron {expression!r} never comes: no month has such a day")


def next_after(expression: str, timezone: str, moment: datetime) -> datetime | None:
    """The first due time after this moment; None if there is none within 41 years, which is never."""
    zone = _zone(timezone)
    found = moment
    while found - moment < LONGEST_GAP:
        trigger = _trigger(expression, timezone)
        trigger.end_date = moment.astimezone(zone) + LONGEST_GAP  # so that a date that never comes is not looked for for ever
        local = trigger.get_next_fire_time(None, (found + timedelta(microseconds=1)).astimezone(zone))
        if local is None:
            return None
        found = _not_after_what_the_wall_says(expression, zone, found, cast("datetime", local).astimezone(UTC))
        if not (_is_second_time(found.astimezone(zone)) and _hour_is_fixed(expression)):
            return found
    return None


def _not_after_what_the_wall_says(expression: str, zone: ZoneInfo, moment: datetime, found: datetime) -> datetime:
    """The trigger steps from day to day by 24 hours: after a night that had 23 it comes too late for the first hour of the next
    day, and misses it. The clock on the wall knows no such night; what it skips or shows twice is left to the trigger."""
    if not _hour_is_fixed(expression):
        return found
    wall = moment.astimezone(zone).replace(tzinfo=UTC)
    trigger = _trigger(expression, "UTC")
    trigger.end_date = wall + LONGEST_GAP
    shown = trigger.get_next_fire_time(None, wall + timedelta(microseconds=1))
    if shown is None:
        return found
    there = cast("datetime", shown).replace(tzinfo=zone).astimezone(UTC)
    is_shown = there.astimezone(zone).replace(tzinfo=UTC) == shown
    return there if is_shown and moment < there < found else found


@lru_cache(maxsize=256)
def _trigger(expression: str, timezone: str) -> Any:
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
            minute=minute, hour=hour, day=day, month=month, day_of_week=_weekday(weekday), timezone=_zone(timezone)
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


def _is_second_time(local: datetime) -> bool:
    return local.fold == 1 and local.utcoffset() != local.replace(fold=0).utcoffset()


def _hour_is_fixed(expression: str) -> bool:
    """Every hour and every second hour go on through the change of the clocks; a time of the day comes once a day."""
    return not expression.split()[1].startswith("*")
