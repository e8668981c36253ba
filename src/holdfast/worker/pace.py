"""How many jobs a worker may hold beyond those that its lanes run: as many as they finish in 50 ms, of short kinds only. Pure.

No-op jobs come in large batches that way. How long jobs take is known for each kind: a kind that was not seen yet is presumed
to be long, and nothing of it is held ahead, because another worker may have a free lane for it.
"""

from __future__ import annotations

AHEAD = 0.05  # seconds of work
FIRST_GUESS = 1.0  # seconds that a job of a new kind is presumed to take


class Pace:
    """How long jobs of each kind take here of late."""

    def __init__(self) -> None:
        self.ended = 0
        self._usual: dict[str, float] = {}
        self._usual_short = AHEAD  # among the short kinds, whichever ran last

    def took(self, kind: str, seconds: float) -> None:
        """A job has ended. Slow to believe that jobs are short, quick to believe that they are long."""
        self.ended += 1
        self._usual[kind] = usual = _adapted(self._usual.get(kind, FIRST_GUESS), seconds)
        if usual <= AHEAD:
            self._usual_short = _adapted(self._usual_short, seconds)

    def runs(self, kind: str, seconds: float) -> None:
        """A job has not ended for so long."""
        if seconds > self._usual.get(kind, FIRST_GUESS):
            self._usual[kind] = seconds

    def is_short(self, kind: str) -> bool:
        """Whether jobs of this kind are known to be short."""
        return self._usual.get(kind, FIRST_GUESS) <= AHEAD

    def ahead(self, lanes: int) -> int:
        """How many short jobs so many lanes finish in a moment."""
        return int(lanes * AHEAD / self._usual_short)


def _adapted(usual: float, seconds: float) -> float:
    return seconds + 1e-6 if seconds > usual else usual + 0.1 * (seconds - usual) + 1e-7
