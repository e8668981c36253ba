"""The lanes of a stepped worker. Called by: `schedules/world.py`, `prefetching.py`.

`Prefetch.wanted`, `Lanes.take_back` and `DurationEstimates` are the product's own. No handler runs: a claim gets a lane as
soon as one is free, and keeps it until the worker lets it go. Called by: `schedules/world.py`, `prefetching.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from proof.checker.witness import Witness

from holdfast.jobs.claim import NEWEST
from holdfast.jobs.model import Claim
from holdfast.worker import claim_queue, lanes, prefetch
from holdfast.worker.lanes import Lanes, RunningAttempt
from holdfast.worker.prefetch import Prefetch, Wanted
from holdfast.worker.transports.interface import Running, Takes

LANES = 2
SEEN = 60  # jobs of a short kind that a worker has run before the schedule starts: enough to know that they are short


@dataclass(slots=True)
class Clock:
    """Seconds, moved by the schedule. Stands in for `time` where lanes measure how long jobs run and wait."""

    now: float = 1000.0

    def perf_counter(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now


class SteppedLanes:
    """The jobs that one worker has claimed for its lanes: `LANES` of them have begun, the others wait."""

    def __init__(
        self, witness: Witness, clock: Clock, worker_id: str, *, queues: Sequence[str], usual: Mapping[str, float]
    ) -> None:
        self._witness, self._clock, self._worker_id = witness, clock, worker_id
        self._usual, self._last, self._ended = usual, dict(usual), 0
        self.kinds = dict.fromkeys(usual, NEWEST)
        lease: Any = SimpleNamespace(stopping=False)
        self._lanes = Lanes({}, LANES)
        self._prefetch = Prefetch(self._lanes, Takes(self.kinds, queues), lease)
        for kind, seconds in usual.items():
            for _ in range(SEEN):
                self._prefetch.note_ended(kind, seconds)

    @contextmanager
    def _on_our_clock(self) -> Iterator[Lanes]:
        with ExitStack() as patched:
            for module in (lanes, prefetch, claim_queue):
                patched.enter_context(patch.object(module, "time", self._clock))
            yield self._lanes

    @property
    def waiting(self) -> list[Claim]:
        """Held, and not begun."""
        return list(self._lanes.jobs)

    @property
    def free(self) -> int:
        """Lanes without a job."""
        return LANES - self._lanes.running

    def wanted(self) -> Wanted:
        """What the product would claim now."""
        with self._on_our_clock():
            return self._prefetch.wanted()

    def facts(self) -> dict[str, Any]:
        """What the checker needs to judge a claim for these lanes without `DurationEstimates`: how long jobs took here."""
        return {
            "lanes": LANES,
            "free": self.free,
            "knows": sorted(self.kinds),
            "clock": self._clock.now,
            "usual": dict(self._usual),
            "last": dict(self._last),
            "ended": self._ended,
        }

    def running(self) -> list[Running]:
        """What has begun, each with its seconds."""
        with self._on_our_clock() as product:
            return product.running_for()

    def hand_out(self, claims: list[Claim]) -> list[Claim]:
        """These were claimed; those that get a lane now, or got one."""
        with self._on_our_clock() as product:
            product.hand_out(claims)
        return self._begin()

    def end(self, claim: Claim) -> list[Claim]:
        """The attempt is over; those that get a lane now."""
        one = self._lanes.find(claim.attempt_id)
        if one is not None:
            self._lanes.end(one)
            seconds = self._clock.now - one.started
            self._prefetch.note_ended(claim.kind, seconds)
            self._last[claim.kind], self._ended = seconds, self._ended + 1
        return self._begin()

    def return_waiting(self, longer_than: float) -> list[Claim]:
        """As a beat does it: what runs for long is no short kind, and what has waited for long is returned."""
        with self._on_our_clock() as product:
            self._prefetch.note_running()
            return product.take_back(longer_than)

    def _begin(self) -> list[Claim]:
        begun: list[Claim] = []
        while self.free > 0 and (claim := self._lanes.jobs.take_now()) is not None:
            self._lanes.begin(RunningAttempt(claim, None, self._clock.now))
            facts = {"job": claim.id, "attempt": claim.attempt_id, "worker": self._worker_id}
            self._witness.note("start", self._witness.tick(), **facts)
            begun.append(claim)
        return begun
