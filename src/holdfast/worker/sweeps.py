"""What a worker does beside its own jobs, when a beat says that there is something to do: promote, poll, rescue, wake, clean.

Called by: the worker's loop. Any worker does all of it; every act is a guarded write, so it does not matter who is first.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any

from holdfast.jobs.model import AttemptId
from holdfast.jobs.outcome import End
from holdfast.jobs.renew import Beat, WorkerInfo
from holdfast.jobs.states import State
from holdfast.telemetry.log import log
from holdfast.worker.kinds import cleaners
from holdfast.worker.lanes import Lanes
from holdfast.worker.transport import Takes, Transport

AHEAD = timedelta(seconds=100)  # that looks are planned: a little more than the longest delay between two
A_LITTLE = timedelta(milliseconds=5)  # later: the database must find it due
AGAIN = timedelta(milliseconds=50)  # after which there may be lanes for those that are due
Work = Callable[[], Awaitable[None]]
SAME_MOMENT = 0.05  # seconds


class Planned:
    """The moments at which something is to be done."""

    def __init__(self) -> None:
        self._moments: list[float] = []  # in order
        self._timers: set[asyncio.TimerHandle] = set()

    def at(self, moment: float, act: Callable[[], None]) -> None:
        """Then, or a very little later, if that is planned already."""
        place = bisect_left(self._moments, moment)
        if place < len(self._moments) and self._moments[place] <= moment + SAME_MOMENT:
            return
        self._moments.insert(place, moment)

        def now() -> None:
            self._moments.remove(moment)
            self._timers.discard(timer)
            act()

        timer = asyncio.get_running_loop().call_at(moment, now)
        self._timers.add(timer)

    def cancel(self) -> None:
        for timer in self._timers:
            timer.cancel()


class Sweeps:
    """The side duties of one worker."""

    def __init__(
        self,
        transport: Transport,
        worker: WorkerInfo,
        *,
        takes: Callable[[], Takes],
        until_next: timedelta,
        lanes: Lanes,
        taking: asyncio.Lock,
        nudge: Callable[[], None],
    ) -> None:
        self._transport, self._worker, self._takes, self._until_next = transport, worker, takes, until_next
        self._lanes, self._taking, self._nudge = lanes, taking, nudge
        self._tasks: set[asyncio.Task[None]] = set()  # a task that nobody refers to may vanish in the middle
        self._planned: dict[Work, Planned] = defaultdict(Planned)
        self._beginning: set[Work] = set()
        self._closed = False

    @property
    def is_quiet(self) -> bool:
        """Nothing is under way that could still make a job ready."""
        return not self._tasks

    def act_on(self, beat: Beat) -> None:
        """Start what the beat asks for."""
        if beat.known and beat.quiet != self._lanes.is_quiet:
            self._be_quiet(beat.quiet)
        if beat.strays:
            self.aside(self._sweep(lambda: self._release_strays(beat.strays)))
        if beat.can_rescue:
            self.aside(self._sweep(self._rescue))
        if beat.can_wake:
            self.aside(self._sweep(self._transport.wake_forgotten))
        if beat.can_clean and cleaners():
            self.aside(self._sweep(self._clean))
        self._when(beat.next_due, self._promote)
        self._when(beat.next_poll, self._look)

    def _be_quiet(self, quiet: bool) -> None:
        """Nothing more is taken from now on, or again; what is held comes to its end."""
        self._lanes.is_quiet = quiet
        log.info("worker_quiet", worker_id=self._worker.id, quiet=quiet)
        self._nudge()

    async def look_around(self) -> None:
        """Now, and not with the next beat: there may be work that only somebody has to make ready."""
        for work in (self._promote, self._rescue, self._look):
            await self._sweep(work)

    def follow(self, end: End) -> None:
        """A job of ours comes back, or is to be asked about, at a moment that the beat may be too late to name."""
        if end.delay is None:
            return
        if end.state is State.PENDING:
            self._when(end.delay + A_LITTLE, self._promote)
        elif end.state is State.SUBMITTED:
            self._when(end.delay + A_LITTLE, self._look, ahead=AHEAD)

    def aside(self, work: Coroutine[Any, Any, None]) -> None:
        """Do it beside everything else."""
        if self._closed:
            work.close()
            return
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        self._closed = True
        for planned in self._planned.values():
            planned.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _when(self, wait: timedelta | None, work: Work, *, ahead: timedelta | None = None) -> None:
        """When its time has come, if that is soon; otherwise a later look says it again."""
        if wait is not None and wait < (ahead or self._until_next) and not self._closed:
            at = asyncio.get_running_loop().time() + max(0.0, wait.total_seconds())
            self._planned[work].at(at, lambda: self._begin(work))

    def _begin(self, work: Work) -> None:
        """Unless it is about to begin already: it will find what this would."""
        if work not in self._beginning:
            self._beginning.add(work)
            self.aside(self._sweep(work))

    async def _sweep(self, work: Work) -> None:
        """One that fails is tried again with the next beat, and must not take the worker along."""
        try:
            await work()
        except Exception as error:
            log.warning("sweep_failed", error=str(error) or type(error).__name__, worker_id=self._worker.id)

    async def _promote(self) -> None:
        self._beginning.discard(self._promote)
        promoted = await self._transport.promote()
        if promoted.jobs:
            self._nudge()
        if promoted.next_due is not None:  # where all that is due is held by another promoter, not again at once
            self._when(max(promoted.next_due + A_LITTLE, timedelta(0) if promoted.jobs else AGAIN), self._promote)

    async def _look(self) -> None:
        """Ask about what is due, as far as there are lanes; and again in a moment if that may not have been all."""
        async with self._taking:
            self._beginning.discard(self._look)
            room = self._lanes.room_to_look()
            limit = self._lanes.may_take(room)
            if self._closed or limit < min(room, 1):
                return
            claims = await self._transport.claim_to_poll(self._worker.id, self._takes(), limit) if limit else []
            self._lanes.hand_out_looks(claims)
        if len(claims) == limit:
            self._when(AGAIN, self._look)

    async def _rescue(self) -> None:
        rescued = await self._transport.rescue(self._worker)
        if rescued:
            log.warning("jobs_rescued", jobs=rescued, worker_id=self._worker.id)
            self._nudge()

    async def _release_strays(self, strays: Sequence[AttemptId]) -> None:
        """The answer to a claim was lost with its connection: nobody runs these jobs, and our living lease protects them."""
        nobodys = self._lanes.renounce(strays)
        released = await self._transport.release_strays(self._worker, nobodys) if nobodys else []
        if not released:
            return
        log.warning("jobs_rescued", jobs=released, worker_id=self._worker.id)
        self._nudge()

    async def _clean(self) -> None:
        gone = await self._transport.clean(cleaners())
        if gone:
            log.info("effects_cleaned", count=gone, worker_id=self._worker.id)
