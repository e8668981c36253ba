"""The claims that a worker holds: some wait in a queue, some run in a lane. Filled by: claiming; emptied by: `attempt.py`.

A lane is a task that takes one claim after another from a queue and runs its attempt. Polls of external engines have their own
queue and lanes: they are short and mostly wait for an answer, but there may be hundreds. In one queue with the jobs they would
delay each other, and an engine abandons a query that is not polled.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.errors import ClaimLost
from holdfast.jobs.model import AttemptId, Claim
from holdfast.telemetry.durations import waited
from holdfast.telemetry.trace import Span
from holdfast.worker.claim_queue import ClaimQueue
from holdfast.worker.context import Context
from holdfast.worker.isolated.parent import IsolatedAttempt
from holdfast.worker.kinds import Job
from holdfast.worker.options import POLL_LANES
from holdfast.worker.outcome_writer import report_stale_write
from holdfast.worker.transports.interface import Running


@dataclass(slots=True)
class RunningAttempt:
    """One attempt that runs in a lane."""

    claim: Claim
    lane: asyncio.Task[Any] | None
    started: float
    is_async: bool = False  # its handler can be interrupted
    in_poll_lane: bool = False
    context: Context | IsolatedAttempt | None = None
    stop_reason: str | None = None
    is_lost: bool = False
    written_move: str | None = None  # how a child process has ended it
    span: Span | None = None
    is_ending: bool = False  # the handler has returned and its outcome is being written: nothing may interrupt that

    def use_process(self, attempt: IsolatedAttempt) -> None:
        """It runs in a child process; pass on what was learned about it meanwhile."""
        self.context = attempt
        if self.stop_reason is not None:
            attempt.ask_to_stop(self.stop_reason)
        if self.is_lost:
            attempt.lose()

    def lose(self) -> None:
        """Another worker has this job: the handler learns it at its next checkpoint.

        A child process reports it itself, because it may have written the end of the job a moment ago.
        """
        if self.is_ending or self.is_lost:
            return
        self.is_lost = True
        if not isinstance(self.context, IsolatedAttempt):
            report_stale_write(ClaimLost(self.claim.id, self.claim.attempt_id, "heartbeat"))
        if self.context is not None:
            self.context.lose()

    def stop(self, reason: str) -> None:
        """The job was cancelled: an async handler is interrupted, any other is told through its context."""
        if self.is_ending or self.stop_reason is not None:
            return
        self.stop_reason = reason
        if self.context is not None:
            self.context.ask_to_stop(reason)
        if self.lane is not None and self.is_async and not isinstance(self.context, IsolatedAttempt):
            self.lane.cancel()


class Lanes:
    """Everything that this worker has claimed and not ended yet."""

    def __init__(
        self,
        kinds: Mapping[str, Job[..., Any]],
        count: int,
        *,
        poll_lanes: int = POLL_LANES,
        on_idle: Callable[[], None] = lambda: None,
    ) -> None:
        self.count, self.poll_lanes = count, poll_lanes
        self.taken = 0  # claims in all
        self.ended = 0  # attempts in all, polls included
        self.jobs, self.polls = ClaimQueue(on_idle), ClaimQueue()
        self._kinds = kinds
        self._running: dict[AttemptId, RunningAttempt] = {}  # by attempt: a worker may reclaim a job whose lost attempt runs
        self._polling = 0
        self._renounced: set[AttemptId] = set()
        self._closing = False

    # ------------------------------------------------------------------------------------------------- what is here

    @property
    def is_closing(self) -> bool:
        return self._closing

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def jobs_running(self) -> int:
        """Attempts in job lanes."""
        return len(self._running) - self._polling

    @property
    def waiting(self) -> int:
        """Jobs that wait for a lane. Polls do not: no more of them are claimed than there are lanes."""
        return len(self.jobs)

    @property
    def free_poll_lanes(self) -> int:
        """Poll lanes without a poll. One that needs a process waits among the jobs, and counts here as well."""
        return self.poll_lanes - self._polling - len(self.polls) - sum(claim.is_poll for claim in self.jobs)

    def attempts(self) -> list[RunningAttempt]:
        """What runs. A copy, because the heartbeat's thread asks as well."""
        return list(self._running.values())

    def held(self) -> list[Claim]:
        """What runs and what waits."""
        return [*(one.claim for one in self.attempts()), *self.jobs, *self.polls]

    def running_for(self) -> list[Running]:
        """The running attempts, each with its seconds so far."""
        now = time.perf_counter()
        return [(one.claim.id, one.claim.attempt_id, now - one.started) for one in self.attempts()]

    def find(self, attempt_id: AttemptId) -> RunningAttempt | None:
        return self._running.get(attempt_id)

    # ------------------------------------------------------------------------------------------------- in and out

    def hand_out(self, claims: list[Claim], queue: ClaimQueue | None = None) -> None:
        """Queue new claims."""
        claims = [claim for claim in claims if claim.attempt_id not in self._renounced]
        self.taken += len(claims)
        for claim in claims:
            if claim.attempt_no == 1 and claim.waited is not None:
                waited.observe((claim.kind,), claim.waited)
        (self.jobs if queue is None else queue).add(claims)

    def hand_out_polls(self, claims: list[Claim]) -> None:
        """Queue polls for their own lanes; but one that needs a process costs as much as a job, and goes to the jobs."""
        light: list[Claim] = []
        heavy: list[Claim] = []
        for claim in claims:
            (heavy if claim.alone or self._kinds[claim.kind].policy.run_in == "process" else light).append(claim)
        self.hand_out(light, self.polls)
        self.hand_out(heavy)

    def accept_next_step(self, claim: Claim) -> bool:
        """Count the next step of a chain, which was claimed with the end of the last; False if it was renounced."""
        self.taken += 1
        return claim.attempt_id not in self._renounced

    def begin(self, running: RunningAttempt) -> None:
        """A lane begins this attempt."""
        self._running[running.claim.attempt_id] = running
        self._polling += running.in_poll_lane

    def end(self, running: RunningAttempt) -> None:
        """Its lane is done with it."""
        del self._running[running.claim.attempt_id]
        self._polling -= running.in_poll_lane
        self.ended += 1

    def take_back(self, longer_than: float | None = None) -> list[Claim]:
        """Remove and return what waits for a lane, or only what has waited for more than so many seconds."""
        return [*self.jobs.take_back(longer_than), *self.polls.take_back(longer_than)]

    def renounce(self, attempts: Iterable[AttemptId]) -> list[AttemptId]:
        """Those of these attempts that are not held here. They never begin here, should their claim be answered after all."""
        held = {claim.attempt_id for claim in self.held()}
        unknown = [attempt for attempt in attempts if attempt not in held]
        self._renounced.update(unknown)
        return unknown

    def close(self) -> None:
        """No lane begins another job once it is done with the one it has."""
        self._closing = True
        self.jobs.close()
        self.polls.close()

    # ------------------------------------------------------------------------------------------------- from a heartbeat

    def lose(self, attempt_id: AttemptId) -> None:
        """Another worker has this job now."""
        if (running := self._running.get(attempt_id)) is not None:
            running.lose()

    def stop(self, attempt_id: AttemptId, reason: str) -> None:
        """This job was cancelled."""
        if (running := self._running.get(attempt_id)) is not None:
            running.stop(reason)
