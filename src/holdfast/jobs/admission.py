"""Decide which jobs get their locks, from the holders and waiters of each key. Pure. Called by: `locks.py`.

The line (wait queue) of a key is ordered by priority, then by id. A job must not overtake a waiter that would then wait longer.
A job stands in the line of each key that it found busy, and of no other: while it waits for one key, it does not block its free
keys for other jobs (docs/decisions/0017).
"""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple

from holdfast.jobs.model import JobId

HEAD = 20  # how many waiters of a line are read; a job behind them waits


class Want(NamedTuple):
    """A key that a job needs, with how many jobs may hold it together."""

    job_id: JobId
    key: str
    most: int | None
    priority: int = 0

    @property
    def turn(self) -> tuple[int, int]:
        """Its position in the line."""
        return self.priority, self.job_id


class Holder(NamedTuple):
    """A permit of a key that a job holds."""

    key: str
    permit: int
    most: int | None
    job_id: JobId


@dataclass(slots=True)
class Admission:
    """The decision: jobs that get all their keys, the permits that they take, and the keys for which the others wait."""

    jobs: list[JobId] = field(default_factory=list)
    places: list[Holder] = field(default_factory=list)
    waiting: list[Want] = field(default_factory=list)
    reopened: list[str] = field(default_factory=list)  # keys whose line a job has left to wait only for another key


def admit(wants: Mapping[JobId, Sequence[Want]], holders: Iterable[Holder], line: Iterable[Want] = ()) -> Admission:
    """Decide for each job, in the given order. A job gets a key if the number of holders, with this job, stays within the
    smallest `most` of all of them, and if it overtakes no waiter."""
    taken, lines = _by_key(holders), _by_key(line)
    result = Admission()
    for job_id, keys in wants.items():
        missing = [want for want in keys if not any(h.job_id == job_id for h in taken[want.key])]
        for want in missing:  # its places in the lines are decided again
            lines[want.key] = [other for other in lines[want.key] if other.job_id != job_id]
        busy = [want for want in missing if not _may_enter(want, taken[want.key], lines[want.key])]
        if busy:
            result.waiting += busy
            for want in busy:
                insort(lines[want.key], want, key=attrgetter("turn"))
            continue
        result.jobs.append(job_id)
        for want in missing:
            place = Holder(want.key, _free_permit(taken[want.key]), want.most, job_id)
            taken[want.key].append(place)
            result.places.append(place)
    return result


def first_in_line(holders: Iterable[Holder], line: Iterable[Want]) -> list[JobId]:
    """The jobs at the head of each line that fit with its holders and with each other, up to the first that does not fit."""
    taken = _by_key(holders)
    found: dict[JobId, None] = {}
    for key, waiters in _by_key(line).items():
        inside = [holder.most for holder in taken[key]]
        for want in waiters:
            if not _fits(want.most, inside):
                break
            inside.append(want.most)
            found[want.job_id] = None
    return list(found)


def _may_enter(want: Want, holders: Sequence[Holder], line: Sequence[Want]) -> bool:
    """Whether it fits with the holders and all waiters before it. If a waiter before it does not fit, the answer is no: a job
    that fits where that waiter does not has a larger `most`, and would make the waiter wait longer."""
    inside = [holder.most for holder in holders]
    for other in line:
        if other.turn > want.turn:
            break
        if not _fits(other.most, inside):
            return False
        inside.append(other.most)
    else:
        if len(line) >= HEAD:  # waiters before it may not have been read
            return False
    return _fits(want.most, inside)


def _fits(most: int | None, inside: Sequence[int | None]) -> bool:
    limits = [limit for limit in (most, *inside) if limit is not None]
    return not limits or len(inside) < min(limits)


def _free_permit(holders: Sequence[Holder]) -> int:
    used = {holder.permit for holder in holders}
    return next(permit for permit in range(1, len(used) + 2) if permit not in used)


def _by_key(some: Iterable[Any]) -> defaultdict[str, list[Any]]:
    grouped: defaultdict[str, list[Any]] = defaultdict(list)
    for one in some:
        grouped[one.key].append(one)
    return grouped
