"""Who gets a lock: decided from who holds its key and who waits for it. Pure. Called by: `locks.py`.

The line of a key is ordered by priority, then by id. Nobody enters past a waiter that stands before it and would have to wait
longer for it. A job stands in the line of each key that it found busy, and of no other: while it waits for one key it keeps
nobody from its free ones (docs/decisions/0017).
"""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple

from holdfast.jobs.model import JobId

HEAD = 20  # how much of a line is read; who stands behind that much waits


class Want(NamedTuple):
    """One key that one job asks for, with how much company it allows."""

    job_id: JobId
    key: str
    most: int | None
    priority: int = 0

    @property
    def turn(self) -> tuple[int, int]:
        """Its place in the line."""
        return self.priority, self.job_id


class Holder(NamedTuple):
    """One place on a key that is taken."""

    key: str
    permit: int
    most: int | None
    job_id: JobId


@dataclass(slots=True)
class Admission:
    """Which jobs get all their keys, which places they take, and which keys the others must wait for."""

    jobs: list[JobId] = field(default_factory=list)
    places: list[Holder] = field(default_factory=list)
    waiting: list[Want] = field(default_factory=list)
    reopened: list[str] = field(default_factory=list)  # keys whose line a job has left for that of another key


def admit(wants: Mapping[JobId, Sequence[Want]], holders: Iterable[Holder], line: Iterable[Want] = ()) -> Admission:
    """Decide who enters, in the given order. A key has room while its holders, the newcomer included, are no more than the
    smallest `most` that any of them asked for, and while nobody in its line would be overtaken."""
    taken, lines = _by_key(holders), _by_key(line)
    result = Admission()
    for job_id, keys in wants.items():
        missing = [want for want in keys if not any(h.job_id == job_id for h in taken[want.key])]
        for want in missing:  # it is decided anew in which lines it stands
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
    """Those at the head of each line that fit beside its holders and each other. Nobody behind one that does not fit."""
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
    """Whether it fits beside the holders and all that stand before it. A waiter that does not fit ends the matter: whoever fits
    where it does not allows more company, and would only make it wait longer."""
    inside = [holder.most for holder in holders]
    for other in line:
        if other.turn > want.turn:
            break
        if not _fits(other.most, inside):
            return False
        inside.append(other.most)
    else:
        if len(line) >= HEAD:  # nobody has read who else stands before it
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
