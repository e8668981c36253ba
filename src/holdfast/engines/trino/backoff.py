"""How long to wait before a request is retried."""

from __future__ import annotations

import random
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

SHORTEST, LONGEST = 0.1, 60.0
FIRST = 0.05


def backoff(tries: int) -> float:
    """Exponential backoff with jitter: 50 to 100 ms at first, doubled for each try, at most one second."""
    return min(0.5, FIRST * 2.0 ** min(tries, 10)) * random.uniform(1, 2)  # noqa: S311 - spreads load, protects nothing


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of a Retry-After header, within limits; None if it is missing or invalid.

    A date is compared with the `Date` header of the same response, not with the clock of this machine.
    """
    header = headers.get("retry-after")
    if header is None:
        return None
    seconds = _seconds(header.strip(), headers.get("date"))
    return None if seconds is None else min(LONGEST, max(SHORTEST, seconds))


def _seconds(header: str, date: str | None) -> float | None:
    try:
        number = float(header)
        return number if number == number else None  # None for NaN
    except ValueError:
        pass
    try:
        return (parsedate_to_datetime(header) - parsedate_to_datetime(date or "")).total_seconds()
    except (ValueError, TypeError, OverflowError):
        return None
