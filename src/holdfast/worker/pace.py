"""How many jobs a worker may hold beyond those that its lanes are at: as many as they eat up in a moment. Pure.

No-op jobs come in large batches that way, and a job of seconds is never held while another worker has a free lane.
"""

from __future__ import annotations

AHEAD = 0.05  # seconds of work
NOTHING_KNOWN = 3600.0


class Pace:
    """How long jobs take here of late."""

    def __init__(self, lanes: int) -> None:
        self.ended = 0
        self._lanes = lanes
        self._usual = NOTHING_KNOWN  # so nothing is held ahead

    def took(self, seconds: float) -> None:
        """Slow to believe that jobs are short, quick to believe that they are long."""
        self.ended += 1
        if seconds > self._usual or self.ended == 1:
            self._usual = seconds + 1e-6
        else:
            self._usual += 0.1 * (seconds - self._usual) + 1e-7

    def forget(self) -> None:
        """What was known does not hold any more."""
        self._usual = NOTHING_KNOWN

    @property
    def ahead(self) -> int:
        """How many jobs the lanes eat up in a moment."""
        return int(self._lanes * AHEAD / self._usual)
