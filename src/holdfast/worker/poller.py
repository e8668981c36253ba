"""When a worker looks around by itself: the safety poller's clock. Called by: the heartbeat. Pure.

Hints and nudges start jobs at once; whatever they missed, a look finds: what is pending and due, leases that are over, polls
that are due, steps of a chain that a crash left behind. The look is the beat's own statement (`jobs/renew.py`), so that an
idle worker needs no second one. While it holds jobs it beats often, for its lease; while it holds none, the looks are all
there is, and ten idle workers together ask less than once a second.

It adapts: a look comes sooner when the last one saw that somebody's lease will end before the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

SPREAD = 0.2  # of the interval, added by chance: a fleet that started together does not look together
JUST_AFTER = 0.05  # seconds after a lease has ended


@dataclass(frozen=True, slots=True)
class Clock:
    """How often to beat, and how often to look, in seconds."""

    beat: float
    look: float
    lease: float

    @classmethod
    def of(cls, beat: timedelta, poll: timedelta | None, lease: timedelta) -> Clock:
        """Without a word on it, a look is due every second beat."""
        return cls(beat.total_seconds(), (2 * beat if poll is None else poll).total_seconds(), lease.total_seconds())

    @property
    def longest(self) -> float:
        """The longest that may lie between two looks. Also of an idle worker the lease must hold: it may claim any moment."""
        return min(self.look * (1 + SPREAD), self.lease / 2)

    def next_beat(self, chance: float) -> float:
        """While something is held: a little early rather than late."""
        return self.beat * (0.9 + 0.1 * chance)

    def next_look(self, chance: float, next_expiry: timedelta | None) -> float:
        """While nothing is held: `next_expiry` is when somebody who holds jobs loses its lease, if it is not renewed."""
        usual = min(self.look * (1 + SPREAD * chance), self.longest)
        if next_expiry is None:
            return usual
        return min(usual, max(0.0, next_expiry.total_seconds()) + JUST_AFTER)
