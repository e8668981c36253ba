"""ISO 8601 durations of instances: weeks, days, hours, minutes and seconds, combined as in P1DT12H. Pure.

Years and months are refused, because their length depends on the calendar. Called by: the API, the loop instance_lifecycle.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Final

UNITS: Final = ("weeks", "days", "hours", "minutes", "seconds")
PATTERN: Final = (
    r"^P(?=[0-9]|T[0-9])(?:([0-9]{1,6})W)?(?:([0-9]{1,6})D)?"
    r"(?:T(?=[0-9])(?:([0-9]{1,6})H)?(?:([0-9]{1,6})M)?(?:([0-9]{1,9})S)?)?$"
)
DURATION: Final = re.compile(PATTERN, re.ASCII)
EXAMPLES: Final = "PT30M, PT24H, P7D, P2W, P1DT12H"


class InvalidDuration(ValueError):
    """Not a duration that an instance can have."""


@lru_cache(maxsize=256)  # most instances have the same few; a pass of instance_lifecycle reads each of them several times
def parse(text: str) -> timedelta:
    """The duration; `InvalidDuration` for every other text, for zero, and for more than a date can hold."""
    match = DURATION.fullmatch(text)
    if match is None or text.endswith("\n"):
        raise InvalidDuration(f"{text[:40]!r} is not a duration; use ISO 8601 without years and months, such as {EXAMPLES}")
    try:
        length = timedelta(**{unit: int(number) for unit, number in zip(UNITS, match.groups(), strict=True) if number})
    except OverflowError:
        raise InvalidDuration(f"{text[:40]!r} is too long for a duration") from None
    if not length:
        raise InvalidDuration(f"{text!r} is zero; a duration must be positive")
    return length


def written(length: timedelta) -> str:
    """A duration as text, in hours, minutes and seconds."""
    seconds = max(1, int(length.total_seconds()))
    parts = {"H": seconds // 3600, "M": seconds % 3600 // 60, "S": seconds % 60}
    return "PT" + "".join(f"{number}{unit}" for unit, number in parts.items() if number)


def end_of(begin: datetime, text: str | None) -> datetime | None:
    """When a duration that began then is over; None: never, or the duration is invalid."""
    if text is None:
        return None
    try:
        return begin + parse(text)
    except (InvalidDuration, OverflowError):
        return None
