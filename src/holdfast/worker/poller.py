"""When a worker polls the database: the clock of heartbeats and polls. Called by: the heartbeat. Pure.

Notifications start jobs at once. A poll finds what they missed: pending and due jobs, expired leases, due polls of engines, and
steps of a chain that a crash left behind. The heartbeat's statement polls, too (`jobs/renew.py`), so an idle worker needs no
second one. While a worker holds jobs, it sends heartbeats often, for its lease; while it holds none, it only polls, and ten
idle workers together send less than one query a second.

The interval adapts: if the last poll saw that a lease will expire before the next, that one comes sooner.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

SPREAD = 0.2  # random part of the interval: workers that started together do not poll together
JUST_AFTER = 0.05  # seconds after a lease has expired


@dataclass(frozen=True, slots=True)
class PollClock:
    """The intervals of heartbeats and polls, in seconds."""

    beat: float
    poll: float
    lease: float

    @classmethod
    def of(cls, beat: timedelta, poll: timedelta | None, lease: timedelta) -> PollClock:
        """By default, a poll is due at every second heartbeat."""
        return cls(beat.total_seconds(), (2 * beat if poll is None else poll).total_seconds(), lease.total_seconds())

    @property
    def longest(self) -> float:
        """The longest time between two polls. The lease of an idle worker must not expire either: it may claim at any time."""
        return min(self.poll * (1 + SPREAD), self.lease / 2)

    def next_beat(self, chance: float) -> float:
        """The wait while jobs are held: rather early than late."""
        return self.beat * (0.9 + 0.1 * chance)

    def next_poll(self, chance: float, next_expiry: timedelta | None) -> float:
        """The wait while no jobs are held. `next_expiry`: until the first lease of a worker with jobs expires, if not
        renewed."""
        usual = min(self.poll * (1 + SPREAD * chance), self.longest)
        if next_expiry is None:
            return usual
        return min(usual, max(0.0, next_expiry.total_seconds()) + JUST_AFTER)
