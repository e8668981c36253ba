"""Format and parse times, durations and counts. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import pairwise

from holdfast.errors import UsageError

UNITS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))
LENGTH = re.compile(r"^(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s?)?$")


def duration(length: timedelta) -> str:
    """The two largest units: 4s, 3m 20s, 2h, 5d 3h. Below a second: 0s. Never negative."""
    seconds = int(max(length.total_seconds(), 0))
    for (unit, size), (smaller, part) in pairwise(UNITS):
        whole, rest = divmod(seconds, size)
        if whole:
            return f"{whole}{unit} {rest // part}{smaller}" if rest // part else f"{whole}{unit}"
    return f"{seconds}s"


def took(seconds: float) -> str:
    """How long something took; below ten seconds with tenths."""
    return f"{seconds:.1f}s" if 0 <= seconds < 10 else duration(timedelta(seconds=seconds))


def relative(at: datetime, now: datetime) -> str:
    """`3m ago`, `in 2h`, `now`."""
    away = now - at
    if abs(away) < timedelta(seconds=1):
        return "now"
    rough = duration(abs(away)).split(" ")[0]
    return f"{rough} ago" if away > timedelta(0) else f"in {rough}"


def counted(number: int, thing: str) -> str:
    """`1 job`, `1,200 jobs`."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def moment(text: str) -> datetime:
    """A time as the API formats it."""
    found = datetime.fromisoformat(text)
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def clock_time(at: datetime, zone: tzinfo | None) -> str:
    """A time for people in this zone; None: local time."""
    return at.astimezone(zone).strftime("%Y-%m-%d %H:%M:%S")


def length(text: str) -> timedelta:
    """A duration as users write it: `30`, `90s`, `5m`, `1h30m`, `2d`."""
    match = LENGTH.match(text.strip().replace(" ", ""))
    if not match or not any(match.groups()):
        raise UsageError(f"{text!r} is not a duration; write 30s, 5m, 1h30m or 2d")
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
