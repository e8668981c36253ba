"""What a worker does beside its own jobs when a heartbeat asks for it: promote, poll, rescue, wake, clean.

Called by: the worker (`loop.py`). Every worker does all of it; each is a guarded write, so it does not matter which is first.
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
from holdfast.telemetry.error_text import error_line
from holdfast.telemetry.log import log
from holdfast.worker.claiming import Claimer
from holdfast.worker.kinds import cleaners
from holdfast.worker.lanes import Lanes
from holdfast.worker.prefetch import Prefetch
from holdfast.worker.transports.interface import Takes, Transport

AHEAD = timedelta(seconds=100)  # that polls are planned: a little more than the longest delay between two
A_LITTLE = timedelta(milliseconds=5)  # later: the database must find it due
AGAIN = timedelta(milliseconds=50)  # after which there may be free lanes for the polls that are due
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
        takes: Takes,
        *,
        lanes: Lanes,
        prefetch: Prefetch,
        claiming: Claimer,
        until_next: timedelta,
    ) -> None:
        self._transport, self._worker, self._takes, self._until_next = transport, worker, takes, until_next
        self._lanes, self._prefetch, self._claiming = lanes, prefetch, claiming
        self._tasks: set[asyncio.Task[None]] = set()  # a task without a reference may be garbage-collected
        self._planned: dict[Work, Planned] = defaultdict(Planned)
        self._beginning: set[Work] = set()
        self._closed = False

    @property
    def is_idle(self) -> bool:
        """Nothing is under way that could still make a job ready."""
        return not self._tasks

    def act_on(self, beat: Beat) -> None:
        """Start what the beat asks for."""
        if beat.known and beat.quiet != self._prefetch.is_quiet:
            self._be_quiet(beat.quiet)
        if beat.strays:
            self.start(self._sweep(lambda: self._release_strays(beat.strays)))
        if beat.can_rescue:
            self.start(self._sweep(self._rescue))
        if beat.can_wake:
            self.start(self._sweep(self._transport.wake_forgotten))
        if beat.can_clean and cleaners():
            self.start(self._sweep(self._clean))
        self._when(beat.next_due, self._promote)
        self._when(beat.next_poll, self._poll)

    def _be_quiet(self, quiet: bool) -> None:
        """Claim nothing more from now on, or claim again; what is held runs to its end."""
        self._prefetch.be_quiet(quiet)
        log.info("worker_quiet", worker_id=self._worker.id, quiet=quiet)
        self._claiming.wake()

    async def run_now(self) -> None:
        """Promote, rescue and poll now, and not with the next heartbeat: there may be jobs that only have to be made ready."""
        for work in (self._promote, self._rescue, self._poll):
            await self._sweep(work)

    def follow(self, end: End) -> None:
        """A job of this worker is due, or is to be polled, perhaps before the next heartbeat."""
        if end.delay is None:
            return
        if end.state is State.PENDING:
            self._when(end.delay + A_LITTLE, self._promote)
        elif end.state is State.SUBMITTED:
            self._when(end.delay + A_LITTLE, self._poll, ahead=AHEAD)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run it as a task, beside everything else."""
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
        """Run it at its time, if that is soon; otherwise a later heartbeat names it again."""
        if wait is not None and wait < (ahead or self._until_next) and not self._closed:
            at = asyncio.get_running_loop().time() + max(0.0, wait.total_seconds())
            self._planned[work].at(at, lambda: self._begin(work))

    def _begin(self, work: Work) -> None:
        """Start it, unless one is about to start: that one finds the same."""
        if work not in self._beginning:
            self._beginning.add(work)
            self.start(self._sweep(work))

    async def _sweep(self, work: Work) -> None:
        """Run one; if it fails, the next heartbeat tries again, and the worker goes on."""
        try:
            await work()
        except Exception as error:
            log.warning("sweep_failed", error=error_line(error), worker_id=self._worker.id)

    async def _promote(self) -> None:
        self._beginning.discard(self._promote)
        promoted = await self._transport.promote()
        if promoted.jobs:
            self._claiming.wake()
        if promoted.next_due is not None:  # where another promoter has locked all that is due, not again at once
            self._when(max(promoted.next_due + A_LITTLE, timedelta(0) if promoted.jobs else AGAIN), self._promote)

    async def _poll(self) -> None:
        """Claim polls that are due, as far as there are lanes; and again in a moment if there may be more."""
        async with self._claiming.limits:
            self._beginning.discard(self._poll)
            room = self._lanes.free_poll_lanes
            limit = self._prefetch.may_take(room)
            if self._closed or limit < min(room, 1):
                return
            claims = await self._transport.claim_to_poll(self._worker.id, self._takes, limit) if limit else []
            self._lanes.hand_out_polls(claims)
        if len(claims) == limit:
            self._when(AGAIN, self._poll)

    async def _rescue(self) -> None:
        rescued = await self._transport.rescue(self._worker)
        if rescued:
            log.warning("jobs_rescued", jobs=rescued, worker_id=self._worker.id)
            self._claiming.wake()

    async def _release_strays(self, strays: Sequence[AttemptId]) -> None:
        """The answer to a claim was lost with its connection: these jobs run nowhere, and this worker's lease protects them."""
        unknown = self._lanes.renounce(strays)
        released = await self._transport.release_strays(self._worker, unknown) if unknown else []
        if not released:
            return
        log.warning("jobs_rescued", jobs=released, worker_id=self._worker.id)
        self._claiming.wake()

    async def _clean(self) -> None:
        gone = await self._transport.clean(cleaners())
        if gone:
            log.info("effects_cleaned", count=gone, worker_id=self._worker.id)
