"""Which mappings and snapshots are to be deleted, and when a pass must not delete anything. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from holdfast.errors import HoldfastError
from holdfast.services.exports.durations import InvalidDuration, end_of, parse

BREAKER_LEAST: Final = 20  # fewer deletions than this never stop a pass
BREAKER_SHARE: Final = 0.5


class Because(StrEnum):
    """Why something is deleted."""

    TTL = "ttl"
    INACTIVITY = "inactivity"


@dataclass(frozen=True, slots=True)
class Life:
    """A mapping or snapshot with a limit to its life, as the database has it at `now`, by its own clock."""

    id: int
    owner: str
    name: str
    created_at: datetime
    used_at: datetime
    ttl: str | None
    inactivity_timeout: str | None
    now: datetime
    is_open: bool = False  # a snapshot that is being made
    users: int = 0  # graph instances of a snapshot, snapshots of a mapping
    deleting_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of it. With `blocked_by` it has expired and cannot be deleted yet."""

    because: Because
    since: datetime
    blocked_by: str | None = None


def decide(life: Life) -> Verdict | None:
    """Whether it has expired; None: no. A deletion that has begun is completed, whatever has changed since."""
    ends = {
        Because.TTL: end_of(life.created_at, life.ttl),
        Because.INACTIVITY: end_of(life.used_at, life.inactivity_timeout),
    }
    over = [(since, because) for because, since in ends.items() if since is not None and life.now >= since]
    if not over and life.deleting_since is None:
        return None
    since, because = min(over) if over else (life.deleting_since or life.now, Because.TTL)
    if life.is_open:
        return Verdict(because, since, "it is being made")
    if life.users:
        return Verdict(because, since, f"{life.users} of them use it")
    return Verdict(because, since)


def invalid_durations(life: Life) -> list[str]:
    """What is wrong with its durations, one sentence each. An invalid duration never expires anything."""
    found = []
    for text in (life.ttl, life.inactivity_timeout):
        try:
            if text is not None:
                parse(text)
        except InvalidDuration as error:
            found.append(str(error))
    return found


class TooManyExpired(HoldfastError):
    """A pass would delete most of what there is: rather a wrong clock than a wish."""

    def __init__(self, what: str, expired: int, total: int) -> None:
        super().__init__(
            f"{expired} of {total} {what}s have expired, which is more than {BREAKER_SHARE:.0%}; nothing was deleted. Check "
            "the clock of the database server; if it is right, run the loop by hand: holdfast periodic run lifecycle --reason …"
        )


def refuse_too_many(what: str, *, expired: int, total: int, is_manual: bool) -> None:
    """The circuit breaker of a scheduled pass. A run that an operator asked for, with a reason, goes ahead."""
    if not is_manual and expired >= BREAKER_LEAST and expired > total * BREAKER_SHARE:
        raise TooManyExpired(what, expired, total)
