"""Where handlers run: so many jobs at once, each in its lane from the claim to the end of its attempt. Started by: the loop.

Looks at an external engine have lanes of their own. They are short and mostly wait for an answer, but there may be hundreds: in
one line with the jobs they would hold each other up, and an engine gives up a query that nobody asks about.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Container, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from holdfast.errors import ClaimLost, PayloadInvalid, UnknownKind
from holdfast.jobs.client import Client, make_current
from holdfast.jobs.model import AttemptId, Claim
from holdfast.jobs.outcome import End, decide, released, released_poll
from holdfast.jobs.states import Move, State
from holdfast.telemetry import fields, kept
from holdfast.telemetry.durations import ran, waited
from holdfast.telemetry.log import log
from holdfast.telemetry.trace import Span, begin
from holdfast.worker.context import Context, Lease
from holdfast.worker.ends import Ends, as_text, attempts, refused
from holdfast.worker.execute import execute
from holdfast.worker.isolated import Attempt, Isolated
from holdfast.worker.kinds import Job
from holdfast.worker.logbook import Logbook
from holdfast.worker.options import LOOKS
from holdfast.worker.pace import AHEAD, Pace
from holdfast.worker.transport import UNREACHABLE, ForHandlers, Running, Takes
from holdfast.worker.waiting import Waiting

ANY_KIND_EVERY = 0.5  # seconds: a steady flow of short jobs must not keep the other kinds out


@dataclass(slots=True)
class _Running:
    """One job that a lane is at."""

    claim: Claim
    lane: asyncio.Task[Any] | None
    started: float
    is_look: bool = False
    context: Context | Attempt | None = None
    stop_reason: str | None = None
    is_lost: bool = False
    wrote: str | None = None  # how a process of its own has ended it
    span: Span | None = None
    is_ending: bool = False  # the handler is done, and its end is being written: nobody may interrupt that

    def introduce(self, attempt: Attempt) -> None:
        """It runs in a process of its own; what was learned about it meanwhile is passed on."""
        self.context = attempt
        if self.stop_reason is not None:
            attempt.ask_to_stop(self.stop_reason)
        if self.is_lost:
            attempt.lose()


class Wanted(NamedTuple):
    """What to claim next."""

    limit: int
    takes: Takes
    any_kind: bool = True  # not only short ones, to be held ahead


class Lanes:
    """The jobs that are claimed and not yet ended: some run, some wait for a lane."""

    def __init__(
        self,
        kinds: Mapping[str, Job[..., Any]],
        transport: ForHandlers,
        ends: Ends,
        lease: Lease,
        *,
        count: int,
        name: str,
        takes: Callable[[], Takes],
        hungry: Callable[[], None],
        client: Callable[[], Client],
        looks: int = LOOKS,
        isolated: Isolated | None = None,
        logbook: Logbook | None = None,
        most: int | None = None,
    ) -> None:
        self.count, self.pace, self._name = count, Pace(), name
        self._look_lanes, self._looking, self._looked = looks, 0, 0
        self.taken, self._most = 0, most
        self.is_quiet = False  # somebody wants that nothing more is taken for now
        self.expected = 0  # that may be claimed any moment: lanes are kept for them
        self.expected_ahead = 0  # the same for short ones that are to be held ahead
        self._kinds, self._transport, self._ends, self._lease = kinds, transport, ends, lease
        self._takes, self._hungry, self._isolated, self._logbook = takes, hungry, isolated, logbook
        self._client = client
        self._said: Container[AttemptId] = () if logbook is None else logbook.tails
        self._jobs, self._looks = Waiting(), Waiting()
        self._running: dict[AttemptId, _Running] = {}  # by attempt: a worker may get back a job that it lost and is still at
        self._renounced: set[AttemptId] = set()
        self._closing = False
        self._any_kind_at = 0.0  # when jobs of any kind are to be claimed next, though no lane is free

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Jobs that wait for a lane. Looks do not: no more of them are taken than there are lanes."""
        return len(self._jobs.ready)

    @property
    def ended(self) -> int:
        """How many attempts have ended, looks among them."""
        return self.pace.ended + self._looked

    def begun(self) -> list[Claim]:
        """What runs."""
        return [one.claim for one in self._running.values()]

    def held(self) -> list[Claim]:
        """What runs and what waits for a lane. Called from the heartbeat's thread, so it copies."""
        return [*(one.claim for one in list(self._running.values())), *list(self._jobs.ready), *list(self._looks.ready)]

    def all(self) -> list[Coroutine[Any, Any, None]]:
        """The lanes themselves, to be run as tasks."""
        return [*(self._lane() for _ in range(self.count)), *(self._look_lane() for _ in range(self._look_lanes))]

    def running_for(self) -> list[Running]:
        """The attempts whose handlers run, each with its seconds. Called from the heartbeat's thread, so it copies."""
        now = time.perf_counter()
        return [(one.claim.id, one.claim.attempt_id, now - one.started) for one in list(self._running.values())]

    def wanted(self) -> Wanted:
        """What to claim next: a job of any kind for each free lane, and short ones beyond that (see `pace.py`)."""
        takes, free = self._takes(), self._free()
        short = {kind: version for kind, version in takes.versions.items() if self.pace.is_short(kind)}
        turning = self._turning() if short else 0
        ahead = free + self.pace.ahead(turning) if turning > 0 else free
        if ahead <= max(0, free):
            return Wanted(self.may_take(free), takes)
        if len(short) == len(takes.versions):
            return Wanted(self.may_take(ahead), takes)
        now = time.perf_counter()
        if free > 0 or now >= self._any_kind_at:
            self._any_kind_at = now + ANY_KIND_EVERY
            return Wanted(self.may_take(max(free, turning)), takes)
        return Wanted(self.may_take(ahead), Takes(short, takes.queues), any_kind=False)

    def _free(self) -> int:
        """Lanes without a job; negative where jobs wait for one."""
        return self.count - (self.running - self._looking) - self.waiting - self.expected - self.expected_ahead

    def _turning(self) -> int:
        """Lanes that are free, or will be in a moment: they run short jobs, and only short ones wait for them."""
        since, is_short = time.perf_counter() - AHEAD, self.pace.is_short
        long = sum(not one.is_look and (one.started < since or not is_short(one.claim.kind)) for one in self._running.values())
        return self.count - self.expected - long - sum(not is_short(claim.kind) for claim in self._jobs.ready)

    def note_pace(self) -> None:
        """What runs for long counts before it has ended: jobs of its kind are not held ahead any more."""
        now = time.perf_counter()
        for one in self._running.values():
            if not one.is_look:
                self.pace.runs(one.claim.kind, now - one.started)

    def room_to_look(self) -> int:
        """How many looks to ask for."""
        heavy = sum(claim.is_poll for claim in self._jobs.ready)
        return self._look_lanes - self._looking - len(self._looks.ready) - heavy

    @property
    def is_limited(self) -> bool:
        """Whether it is said how many may be taken in all."""
        return self._most is not None

    def may_take(self, wanted: int) -> int:
        """So many of the wanted ones, if it is said how many may be taken in all; none once it was told to end or be quiet."""
        if self._lease.stopping or self.is_quiet:
            return 0
        return wanted if self._most is None else min(wanted, self._most - self.taken - self.expected - self.expected_ahead)

    def renounce(self, attempts: Iterable[AttemptId]) -> list[AttemptId]:
        """Those of them that nobody here is at; nobody begins with one from now on, should its claim be answered after all."""
        held = {claim.attempt_id for claim in self.held()}
        nobodys = [attempt for attempt in attempts if attempt not in held]
        self._renounced.update(nobodys)
        return nobodys

    def hand_out(self, claims: list[Claim], queue: Waiting | None = None) -> None:
        claims = [claim for claim in claims if claim.attempt_id not in self._renounced]
        self.taken += len(claims)
        for claim in claims:
            if claim.attempt_no == 1 and claim.waited is not None:
                waited.observe((claim.kind,), claim.waited)
        (queue or self._jobs).add(claims)

    def hand_out_looks(self, claims: list[Claim]) -> None:
        """To lanes of their own; but a look that needs a process of its own is as heavy as a job."""
        light: list[Claim] = []
        heavy: list[Claim] = []
        for claim in claims:
            (heavy if claim.alone or self._kinds[claim.kind].policy.run_in == "process" else light).append(claim)
        self.hand_out(light, self._looks)
        self.hand_out(heavy)

    def take_back(self, longer_than: float | None = None) -> list[Claim]:
        """What waits for a lane, and now does not any more; or only what has waited for more than so many seconds."""
        return [*self._jobs.take_back(longer_than), *self._looks.take_back(longer_than)]

    def close(self) -> None:
        """No lane begins another chain or another job once it is done with what it has."""
        self._closing = True

    def lose(self, attempt_id: AttemptId) -> None:
        """Somebody else has this job now: its handler learns it at its next checkpoint."""
        running = self._running.get(attempt_id)
        if running is None or running.is_ending or running.is_lost:
            return
        running.is_lost = True
        refused(ClaimLost(running.claim.id, attempt_id, "heartbeat"))
        if running.context is not None:
            running.context.lose()

    def stop(self, attempt_id: AttemptId, reason: str) -> None:
        """Somebody wants this job to stop: an asynchronous handler is interrupted, any other is told."""
        running = self._running.get(attempt_id)
        if running is None or running.is_ending or running.stop_reason is not None:
            return
        running.stop_reason = reason
        if running.context is not None:
            running.context.ask_to_stop(reason)
        is_here = not isinstance(running.context, Attempt)
        if running.lane is not None and self._kinds[running.claim.kind].is_async and is_here:
            running.lane.cancel()

    def keep(self, attempt: fields.Attempt, line: kept.Line) -> None:
        """A line of something that runs here: while its handler does, and unless a process of its own keeps it. Any thread."""
        running = self._running.get(attempt.attempt_id)
        if running is not None and not running.is_ending and not isinstance(running.context, Attempt):
            assert self._logbook is not None
            self._logbook.keep(running.claim, line)

    # ------------------------------------------------------------------------------------------------- one lane

    def _prepare(self) -> asyncio.Task[Any] | None:
        """Once for a lane, and not for every job: what its handlers find around them."""
        fields.of_worker(self._name)
        kept.into(None if self._logbook is None else self)
        make_current(self._client)
        return asyncio.current_task()

    async def _lane(self) -> None:
        me = self._prepare()
        while True:
            while self._jobs.ready and not self._closing:
                following: Claim | None = self._jobs.ready.popleft()
                while following is not None:  # the next step of a chain stays in this lane
                    following = await self._work(following, me)
            if self._closing:
                return  # what a claim that was on its way still brings is given back
            self._hungry()
            await self._jobs.wait()

    async def _look_lane(self) -> None:
        me = self._prepare()
        while True:
            while self._looks.ready and not self._closing:
                self._looking += 1
                following = await self._work(self._looks.ready.popleft(), me, is_look=True)
                self._looking -= 1
                if following is not None:  # what the end of it led to is a job like any other
                    self._jobs.add([following])
            if self._closing:
                return
            await self._looks.wait()

    async def _work(self, claim: Claim, lane: asyncio.Task[Any] | None, *, is_look: bool = False) -> Claim | None:
        """One attempt; the claim of its next step if it could be taken along."""
        started, end = time.perf_counter(), None
        self._running[claim.attempt_id] = running = _Running(claim, lane, started, is_look)
        fields.of_attempt(claim)
        self._lease.begin(claim.id)
        try:
            end = await self._attempt(running)
            running.is_ending = True
            ran.observe((claim.kind, _outcome(running, end)), time.perf_counter() - started)
            if self._said and claim.attempt_id in self._said:  # a job that says nothing pays for one look at an empty dict
                await self._finish_logs(claim)
            following = None if end is None else await self._end(claim, end)
            self._lease.end(claim.id)  # not if anything is raised: what ends this process by itself must be seen as begun
            return following
        finally:
            if running.span is not None:
                running.span.end(_outcome(running, end), None if end is None else end.error)
            del self._running[claim.attempt_id]
            if is_look:
                self._looked += 1
            else:
                self.pace.took(claim.kind, time.perf_counter() - started)

    async def _finish_logs(self, claim: Claim) -> None:
        assert self._logbook is not None
        await self._logbook.finish(claim)

    async def _attempt(self, running: _Running) -> End | None:
        """Run the handler; None when somebody else has the job by now, or a process of its own has written its end."""
        claim = running.claim
        try:
            kind = self._kinds.get(claim.kind)
            if kind is None:
                raise UnknownKind(claim.kind, list(self._kinds))
            if claim.confirm_start or claim.alone:
                await self._confirm_start(claim)
            if self._isolated is not None and self._isolated.takes(kind, claim):
                end, running.wrote = await self._isolated.run(kind, claim, running.introduce)
                return end
            running.span = begin(claim)
            return await execute(kind, claim, self._make_context)
        except ClaimLost as lost:
            running.is_ending = True  # first: what we say about it is no line of the handler
            refused(lost)
            return None
        except UnknownKind as unknown:
            log.error("job_unknown_kind", job_id=claim.id, error=str(unknown))
            return given_back(claim, str(unknown))
        except asyncio.CancelledError as cancelled:
            if running.lane is None or (running.stop_reason is None and running.lane.cancelling()):
                raise
            if running.stop_reason is None:  # it waited for something that was cancelled: nobody meant the lane
                return decide(claim, cancelled, self._kinds[claim.kind].policy.retry)
            running.lane.uncancel()  # the handler was stopped, not its lane
            return End(Move.CANCEL, State.CANCELLED, error=running.stop_reason, cause="cancelled")

    async def _confirm_start(self, claim: Claim) -> None:
        """Written before the handler runs: if the whole process dies, its crash counts. However often it has to be asked."""
        async for _ in attempts():
            try:
                await self._transport.begin(claim)
            except UNREACHABLE as error:
                log.warning("worker_database_lost", error=str(error), job_id=claim.id)
            else:
                return

    def _make_context(self, claim: Claim) -> Context:
        ends_at_shutdown = self._kinds[claim.kind].policy.on_shutdown == "fail"
        context = Context(claim, self._transport, self._lease, ends_at_shutdown=ends_at_shutdown)
        self._running[claim.attempt_id].context = context
        return context

    async def _end(self, claim: Claim, end: End) -> Claim | None:
        try:
            result = as_text(end.result)
        except PayloadInvalid as invalid:
            end = decide(claim, invalid, self._kinds[claim.kind].policy.retry)
            result = None
        if end.is_only_a_completion and claim.ties == 0:
            self._ends.gather(claim, result)
            return None
        if self._can_take_along(claim, end):
            following = await self._ends.write_and_take_along(claim, end, result)
            self.taken += following is not None
            return following if following is None or following.attempt_id not in self._renounced else None
        await self._ends.write(claim, end)
        return None

    def _can_take_along(self, claim: Claim, end: End) -> bool:
        """A plain job with one plain child that this worker may run: one commit ends the one and claims the other."""
        if end.move is not Move.COMPLETE or end.publish or end.join or len(end.then) != 1 or claim.ties or self._closing:
            return False
        child, takes = end.then[0], self._takes()
        known = takes.knows(child.kind, child.kind_version) and child.queue in takes.queues
        return known and child.is_plain and child.run_after is None and self.may_take(1) > 0


def _outcome(running: _Running, end: End | None) -> str:
    """How the attempt ended, for those who count."""
    if end is not None:
        return end.move._value_  # a plain string: the hash of an enum member is computed in Python
    return running.wrote or ("lost" if running.is_ending else "interrupted")


def given_back(claim: Claim, reason: str) -> End:
    """Back to where it came from, without prejudice."""
    return released_poll(claim, reason) if claim.is_poll else released(reason)
