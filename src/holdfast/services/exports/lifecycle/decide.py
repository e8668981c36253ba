"""Decide which mappings and snapshots to delete, and when a pass must not delete anything. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from holdfast.errors import HoldfastError
from holdfast.services.exports.durations import InvalidDuration, end_of, parse

BREAKER_LEAST: Final = 20  # fewer deletions than this never stop a pass
BREAKER_SHARE: Final = 0.5


class ExpiryReason(StrEnum):
    """Why a mapping or snapshot has expired."""

    TTL = "ttl"
    INACTIVITY = "inactivity"


@dataclass(frozen=True, slots=True)
class Life:
    """A mapping or snapshot with a TTL or inactivity timeout, as read from the database at `now`, the database's time."""

    id: int
    owner: str
    name: str
    created_at: datetime
    used_at: datetime
    ttl: str | None
    inactivity_timeout: str | None
    now: datetime
    is_open: bool = False  # a snapshot that is being created
    users: int = 0  # uses of a snapshot by other services, snapshots of a mapping
    deleting_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """It has expired. With `blocked_by` it cannot be deleted yet."""

    because: ExpiryReason
    since: datetime
    blocked_by: str | None = None


def decide(life: Life) -> Verdict | None:
    """Whether it has expired; None if not. A deletion that has started is completed, even if the limits have changed."""
    ends = {
        ExpiryReason.TTL: end_of(life.created_at, life.ttl),
        ExpiryReason.INACTIVITY: end_of(life.used_at, life.inactivity_timeout),
    }
    over = [(since, because) for because, since in ends.items() if since is not None and life.now >= since]
    if not over and life.deleting_since is None:
        return None
    since, because = min(over) if over else (life.deleting_since or life.now, ExpiryReason.TTL)
    if life.is_open:
        return Verdict(because, since, "it is being created")
    if life.users:
        return Verdict(because, since, f"it has {life.users} user(s)")
    return Verdict(because, since)


def invalid_durations(life: Life) -> list[str]:
    """The errors of its durations. An invalid duration never expires."""
    found = []
    for text in (life.ttl, life.inactivity_timeout):
        try:
            if text is not None:
                parse(text)
        except InvalidDuration as error:
            found.append(str(error))
    return found


class TooManyExpired(HoldfastError):
    """A pass would delete most mappings or snapshots. A wrong clock is more likely than a real expiry."""

    def __init__(self, what: str, expired: int, total: int) -> None:
        super().__init__(
            f"{expired} of {total} {what}s have expired, which is more than {BREAKER_SHARE:.0%}; nothing was deleted. Check "
            "the clock of the database server; if it is right, run the loop by hand: holdfast periodic run lifecycle --reason …"
        )


def refuse_too_many(what: str, *, expired: int, total: int, is_manual: bool) -> None:
    """The circuit breaker of a scheduled pass. It does not apply to runs that an operator triggered with a reason."""
    if not is_manual and expired >= BREAKER_LEAST and expired > total * BREAKER_SHARE:
        raise TooManyExpired(what, expired, total)
