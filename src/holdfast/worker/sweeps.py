"""What a worker does beside its own jobs, when a beat says that there is something to do: promote, poll, rescue, wake, clean.

Called by: the worker's loop. Any worker does all of it; every act is a guarded write, so it does not matter who is first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any

import psycopg

from holdfast.errors import HoldfastError
from holdfast.jobs.model import AttemptId
from holdfast.jobs.renew import Beat, WorkerInfo
from holdfast.telemetry.log import log
from holdfast.worker.kinds import cleaners
from holdfast.worker.lanes import Lanes
from holdfast.worker.transport import UNREACHABLE, Takes, Transport

POLLS = 50  # at once
Work = Callable[[], Awaitable[None]]
SAME_MOMENT = 0.05  # seconds


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
        self._planned: dict[Work, asyncio.TimerHandle] = {}
        self._closed = False

    def act_on(self, beat: Beat) -> None:
        """Start what the beat asks for."""
        if beat.strays:
            self.aside(self._sweep(lambda: self._release_strays(beat.strays)))
        if beat.can_rescue:
            self.aside(self._sweep(self._rescue))
        if beat.can_wake:
            self.aside(self._sweep(self._transport.wake_forgotten))
        if beat.can_clean and cleaners():
            self.aside(self._sweep(self._clean))
        self._when(beat.next_due, self._promote)
        self._when(beat.next_poll, self._poll)

    async def look_around(self) -> None:
        """Now, and not with the next beat: there may be work that only somebody has to make ready."""
        for work in (self._promote, self._rescue, self._poll):
            await self._sweep(work)

    def promote_in(self, delay: timedelta) -> None:
        """A job of ours comes back sooner than the next beat."""
        self._when(delay + timedelta(milliseconds=5), self._promote)

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

    def _when(self, wait: timedelta | None, work: Work) -> None:
        """When its time has come, if that may be before the next look; otherwise the next look says it again."""
        if wait is None or wait >= self._until_next:
            return
        loop = asyncio.get_running_loop()
        at = loop.time() + max(0.0, wait.total_seconds())
        planned = self._planned.get(work)
        if planned is not None and not planned.cancelled() and loop.time() < planned.when() <= at + SAME_MOMENT:
            return  # the last look said so too
        self._planned[work] = loop.call_at(at, lambda: self.aside(self._sweep(work)))

    async def _sweep(self, work: Work) -> None:
        """One that fails is tried again with the next beat, and must not take the worker along."""
        try:
            await work()
        except (psycopg.Error, HoldfastError, *UNREACHABLE) as error:
            log.warning("sweep_failed", error=str(error), worker_id=self._worker.id)

    async def _promote(self) -> None:
        if await self._transport.promote():
            self._nudge()

    async def _poll(self) -> None:
        async with self._taking:
            limit = self._lanes.may_take(POLLS)
            if limit > 0 and not self._closed:
                self._lanes.hand_out(await self._transport.claim_to_poll(self._worker.id, self._takes(), limit))

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
