"""What a worker has done so far. Filled by: the worker; added up by: the keeper, which makes an exit code of it."""

from __future__ import annotations

from dataclasses import astuple, dataclass


@dataclass(frozen=True, slots=True)
class Tally:
    """How many jobs came to what."""

    taken: int = 0
    completed: int = 0
    failed: int = 0  # attempts that ended in an error, whether or not they are tried again
    given_back: int = 0  # at shutdown, unharmed
    cut_off: int = 0  # failed by the shutdown, because their kind says so

    def __add__(self, other: Tally) -> Tally:
        return Tally(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))
