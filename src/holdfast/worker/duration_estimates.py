"""Estimate how long jobs of each kind take, to prefetch as many short jobs as the lanes finish in 50 ms. Pure.

Called by: `prefetch.py`. So short jobs are claimed in large batches. A kind that has not run here yet is assumed to be long:
none of its jobs are prefetched, because another worker may have a free lane for them.
"""

from __future__ import annotations

AHEAD = 0.05  # seconds of work
FIRST_GUESS = 1.0  # seconds for a kind that has not run here yet
FALLS = 0.25  # of the difference, with each job that took less than the estimate: a new kind is short after eleven short jobs


class DurationEstimates:
    """How long jobs of each kind took here recently."""

    def __init__(self) -> None:
        self.ended = 0
        self._usual: dict[str, float] = {}
        self._usual_short = AHEAD  # of all short kinds together

    def note_ended(self, kind: str, seconds: float) -> None:
        """A job has ended. The estimate rises at once and falls slowly. Called for every job: it calls nothing itself."""
        self.ended += 1
        usual = self._usual.get(kind, FIRST_GUESS)
        self._usual[kind] = usual = seconds + 1e-6 if seconds > usual else usual + FALLS * (seconds - usual) + 1e-7
        if usual <= AHEAD:
            short = self._usual_short
            self._usual_short = seconds + 1e-6 if seconds > short else short + FALLS * (seconds - short) + 1e-7

    def note_running(self, kind: str, seconds: float) -> None:
        """A job has been running for so long and has not ended."""
        if seconds > self._usual.get(kind, FIRST_GUESS):
            self._usual[kind] = seconds

    def is_short(self, kind: str) -> bool:
        """Whether jobs of this kind are known to be short."""
        return self._usual.get(kind, FIRST_GUESS) <= AHEAD

    def ahead(self, lanes: int) -> int:
        """How many short jobs so many lanes finish in 50 ms."""
        return int(lanes * AHEAD / self._usual_short)
