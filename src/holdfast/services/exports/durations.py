"""ISO 8601 durations of mappings and snapshots: PT<n>H, PT<n>M, P<n>D, P<n>W. Called by: the API, the loop lifecycle."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Final

DURATION: Final = re.compile(r"PT(?P<hours>[0-9]+)H|PT(?P<minutes>[0-9]+)M|P(?P<days>[0-9]+)D|P(?P<weeks>[0-9]+)W")


class InvalidDuration(ValueError):
    """Not a duration that we know."""


def parse(text: str) -> timedelta:
    """The duration; `InvalidDuration` for every other form, for zero, and for more than a date can hold."""
    match = DURATION.fullmatch(text)
    if match is None:
        raise InvalidDuration(f"{text!r} is not a duration; use one of PT24H, PT30M, P7D, P2W")
    try:
        length = timedelta(**{unit: int(number) for unit, number in match.groupdict().items() if number is not None})
    except (OverflowError, ValueError):
        raise InvalidDuration(f"{text[:40]!r} is too long for a duration") from None
    if not length:
        raise InvalidDuration(f"{text!r} is zero; a duration must be positive, and no duration means no limit")
    return length


def end_of(begin: datetime, text: str | None) -> datetime | None:
    """When a duration that began then is over; None: never, or the duration is invalid."""
    if text is None:
        return None
    try:
        return begin + parse(text)
    except (InvalidDuration, OverflowError):
        return None
