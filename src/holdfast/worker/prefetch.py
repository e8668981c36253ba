"""How many jobs a worker claims next, and of which kinds. Asked by: claiming and the sweeps. The only place that counts them.

A free lane takes a job of any kind. Beyond that, short jobs are claimed ahead: as many as the lanes finish in 50 ms, which
`duration_estimates.py` estimates.
"""

from __future__ import annotations

import time
from collections import Counter
from operator import attrgetter
from typing import NamedTuple

from holdfast.jobs.model import NewJob
from holdfast.worker.context import Lease
from holdfast.worker.duration_estimates import AHEAD, DurationEstimates
from holdfast.worker.lanes import Lanes
from holdfast.worker.transports.interface import Takes

KIND = attrgetter("kind")
ANY_KIND_EVERY = 0.5  # seconds: a steady flow of short jobs must not keep the other kinds out


class Wanted(NamedTuple):
    """What to claim next."""

    limit: int
    takes: Takes
    any_kind: bool = True  # False: only short kinds, to be held ahead


class Prefetch:
    """The limits of one worker: its lanes, `most` jobs in all, and whether it may claim at all."""

    def __init__(self, lanes: Lanes, takes: Takes, lease: Lease, *, most: int | None = None) -> None:
        self._lanes, self._takes, self._lease, self._most = lanes, takes, lease, most
        self._durations = DurationEstimates()
        self.note_ended = self._durations.note_ended  # a job of this kind took so long
        self._is_quiet = False
        self._reserved = 0  # jobs that are just being claimed: lanes are kept free for them
        self._reserved_ahead = 0  # the same for short jobs that are to be held ahead
        self._any_kind_at = 0.0  # when jobs of any kind are to be claimed next, though no lane is free

    @property
    def is_quiet(self) -> bool:
        """An operator wants that nothing more is claimed for now."""
        return self._is_quiet

    def be_quiet(self, quiet: bool) -> None:
        self._is_quiet = quiet

    @property
    def is_limited(self) -> bool:
        """Whether there is a limit of jobs in all."""
        return self._most is not None

    def wanted(self) -> Wanted:
        """What to claim next."""
        takes, free, durations = self._takes, self._free(), self._durations
        short = {kind: version for kind, version in takes.versions.items() if durations.is_short(kind)}
        turning = self._turning(all_short=len(short) == len(takes.versions)) if short else 0
        ahead = free + durations.ahead(turning) if turning > 0 else free
        if ahead <= max(0, free):
            return Wanted(self.may_take(free), takes)
        if len(short) == len(takes.versions):
            return Wanted(self.may_take(ahead), takes)
        now = time.perf_counter()
        if free > 0 or now >= self._any_kind_at:
            self._any_kind_at = now + ANY_KIND_EVERY
            return Wanted(self.may_take(max(free, turning)), takes)
        return Wanted(self.may_take(ahead), Takes(short, takes.queues), any_kind=False)

    def may_take(self, wanted: int) -> int:
        """So many of the wanted ones: none while the worker stops or is quiet, and no more than `most` in all."""
        if self._lease.stopping or self._is_quiet:
            return 0
        if self._most is None:
            return wanted
        return min(wanted, self._most - self._lanes.taken - self._reserved - self._reserved_ahead)

    def may_chain(self, child: NewJob) -> bool:
        """Whether this worker may claim this job with the end of its parent."""
        takes = self._takes
        known = takes.knows(child.kind, child.kind_version) and child.queue in takes.queues
        return known and not self._lanes.is_closing and self.may_take(1) > 0

    def reserve(self, count: int, *, ahead: bool = False) -> None:
        """Count jobs that are just being claimed: keep lanes free for them, or hold them `ahead`. Until `release`."""
        if ahead:
            self._reserved_ahead += count
        else:
            self._reserved += count

    def release(self, count: int, *, ahead: bool = False) -> None:
        """They have arrived in the lanes, or could not be claimed."""
        self.reserve(-count, ahead=ahead)

    # ------------------------------------------------------------------------------------------------- how long jobs take

    def note_running(self) -> None:
        """What runs for long counts before it has ended: jobs of its kind are not held ahead any more."""
        now = time.perf_counter()
        for one in self._lanes.attempts():
            if not one.in_poll_lane:
                self._durations.note_running(one.claim.kind, now - one.started)

    def _free(self) -> int:
        """Lanes without a job; negative where jobs wait for one."""
        lanes = self._lanes
        return lanes.count - lanes.jobs_running - lanes.waiting - self._reserved - self._reserved_ahead

    def _turning(self, *, all_short: bool) -> int:
        """Lanes that are free, or will be within 50 ms: they run short jobs, and only short ones wait for them.

        `all_short`: no kind of this worker is long, so nothing that waits is.
        """
        since, is_short = time.perf_counter() - AHEAD, self._durations.is_short
        long = sum(
            not one.in_poll_lane and (one.started < since or not is_short(one.claim.kind)) for one in self._lanes.attempts()
        )
        waiting = 0 if all_short else sum(n for kind, n in Counter(map(KIND, self._lanes.jobs)).items() if not is_short(kind))
        return self._lanes.count - self._reserved - long - waiting
