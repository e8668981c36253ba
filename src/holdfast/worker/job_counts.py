"""How many jobs a worker has taken, and how they ended. Filled by: the worker; added up by: the keeper, for its exit code."""

from __future__ import annotations

from dataclasses import astuple, dataclass


@dataclass(frozen=True, slots=True)
class JobCounts:
    """Numbers of jobs by outcome."""

    taken: int = 0
    completed: int = 0
    failed: int = 0  # attempts that ended in an error, whether or not they are retried
    given_back: int = 0  # released at shutdown: they run again and no attempt is counted
    cut_off: int = 0  # failed by the shutdown: their kind has on_shutdown="fail"

    def __add__(self, other: JobCounts) -> JobCounts:
        return JobCounts(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))
