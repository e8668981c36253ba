"""How long to wait before a request is repeated."""

from __future__ import annotations

import random
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

SHORTEST, LONGEST = 0.1, 60.0
FIRST = 0.05


def backoff(tries: int) -> float:
    """50 to 100 ms at first, then twice as long each time, never in step with others, at most a second."""
    return min(0.5, FIRST * 2.0 ** min(tries, 10)) * random.uniform(1, 2)  # noqa: S311 - spreads load, protects nothing


def retry_after(headers: Mapping[str, str]) -> float | None:
    """What a Retry-After asks for, within bounds; None when it asks for nothing that can be read.

    A date is compared with the `Date` of the same answer: the clock of this machine has no say.
    """
    said = headers.get("retry-after")
    if said is None:
        return None
    seconds = _seconds(said.strip(), headers.get("date"))
    return None if seconds is None else min(LONGEST, max(SHORTEST, seconds))


def _seconds(said: str, date: str | None) -> float | None:
    try:
        number = float(said)
        return number if number == number else None  # NaN is no number of seconds
    except ValueError:
        pass
    try:
        return (parsedate_to_datetime(said) - parsedate_to_datetime(date or "")).total_seconds()
    except (ValueError, TypeError, OverflowError):
        return None
