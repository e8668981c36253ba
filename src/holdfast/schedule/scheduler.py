"""The scheduler: one in each process that may run loops, in any number of processes. Started by: `holdfast scheduler run`,
`holdfast serve`, or your program:

    async with Scheduler(url):
        ...

It polls the rows of its loops every few seconds; its clock wakes those that are due soon.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Self
from uuid import uuid4

from holdfast.database.pool import CannotConnect, Link, pool
from holdfast.database.revision import require_schema
from holdfast.schedule.clock import LoopClock
from holdfast.schedule.read import LoopView, list_loops
from holdfast.schedule.reconcile import Reconciler
from holdfast.schedule.registry import Loop, registered
from holdfast.schedule.term import POLL_AGAIN, ensure
from holdfast.schedule.tick import LOST_DATABASE, Place, tick
from holdfast.telemetry import metrics
from holdfast.telemetry.log import log
from holdfast.timetable.due_times import next_due

SHORTEST_WAIT = timedelta(milliseconds=50)  # after a tick, for the clock to notice that it has ended


@dataclass(frozen=True, slots=True)
class SchedulerOptions:
    """How a scheduler behaves."""

    look: timedelta = timedelta(seconds=2)
    grace: timedelta = timedelta(seconds=30)
    name: str | None = None
    connections: int = 8


class Scheduler:
    """Runs periodic loops, together with every other scheduler on the same database."""

    def __init__(self, url: str, loops: Iterable[Loop] | None = None, options: SchedulerOptions | None = None) -> None:
        self.options = options or SchedulerOptions()
        self.loops = {loop.name: loop for loop in (registered().values() if loops is None else loops)}
        for loop in self.loops.values():
            if isinstance(owner := getattr(loop.function, "__self__", None), Reconciler):
                owner.require_act()
        self._url = url
        self.holder = f"{self.options.name or socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"
        self._place = Place(url, self.holder, Link(url), pool(url, most=self.options.connections))
        self._clock = LoopClock(self._fire)
        self._ticks: dict[str, asyncio.Task[timedelta]] = {}
        self._polling: asyncio.Task[None] | None = None
        self._has_rows = False
        self.polled_at: float | None = None  # monotonic time of the last poll that the database answered
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Run until `ask_to_stop()`."""
        async with self:
            await self._stopping.wait()

    def ask_to_stop(self) -> None:
        """Make `run` return. For signal handlers."""
        self._stopping.set()

    async def start(self) -> None:
        """Register the loops and begin. Waits for a database that is unreachable; `NotMigrated` for one without the schema."""
        with contextlib.suppress(CannotConnect):
            await asyncio.to_thread(require_schema, self._url)
        log.info("scheduler_starting", holder=self.holder, loops=sorted(self.loops))
        await self._place.pool.open()
        for loop in self.loops.values():
            self._clock.register(loop)
            log.info("job_registered", loop=loop.name, every=str(loop.every) if loop.every else None, cron=loop.cron)
        self._clock.start()
        self._polling = asyncio.create_task(self._poll_forever())

    async def stop(self) -> None:
        """Begin no more passes, give the running ones the grace period, release the rest."""
        self._stopping.set()
        log.info("scheduler_stopping", holder=self.holder, running=sorted(self._ticks))
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.gather(self._polling, return_exceptions=True)
        running = list(self._ticks.values())
        if running:
            await asyncio.wait(running, timeout=self.options.grace.total_seconds())
        for one in running:
            one.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        self._clock.stop()
        await self._place.rows.close()
        await self._place.pool.close()
        log.info("scheduler_stopped", holder=self.holder)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # ------------------------------------------------------------------------------------------------- ticks

    async def _fire(self, loop: Loop) -> None:
        """Called by the clock: this loop may be due."""
        if loop.name in self._ticks or self._stopping.is_set():
            return
        self._ticks[loop.name] = one = asyncio.create_task(tick(loop, self._place))
        await asyncio.wait({one})
        del self._ticks[loop.name]
        wait = POLL_AGAIN
        if not one.cancelled():
            if (error := one.exception()) is not None:
                log.critical("scheduler_failed", loop=loop.name, error=str(error), exc_info=error)
            else:
                wait = one.result()
        self._wake(loop.name, max(wait, SHORTEST_WAIT))

    def _wake(self, name: str, wait: timedelta) -> None:
        """Wake the loop after `wait`. If that is later than the next two polls, a later poll does."""
        if not self._stopping.is_set() and wait < 2 * self.options.look:
            self._clock.wake(name, wait)

    # ------------------------------------------------------------------------------------------------- polls

    async def _poll_forever(self) -> None:
        """On the event loop's timer, which does not depend on the wall clock."""
        while True:
            try:
                await self._poll()
            except LOST_DATABASE as error:
                log.warning("scheduler_database_lost", error=str(error))
            except Exception as error:  # any error: the loops must continue
                log.critical("scheduler_failed", error=str(error), exc_info=error)
            await asyncio.sleep(self.options.look.total_seconds())

    async def _poll(self) -> None:
        async with self._place.rows as conn:
            if not self._has_rows:
                await ensure(conn, list(self.loops.values()))
            views = [view for view in await list_loops(conn) if view.name in self.loops]
        self._has_rows = len(views) == len(self.loops)  # a deleted row is inserted again
        self.polled_at = time.monotonic()
        for view in views:
            show(view)
            if view.name not in self._ticks and view.wait is not None:
                self._wake(view.name, view.wait)


def show(view: LoopView) -> None:
    """Set the gauges of a loop. From its row, so every process shows the same values."""
    metrics.health.labels(view.name).set(1 if view.is_healthy else 0)
    metrics.interval.labels(view.name).set((next_due(view, view.next_due_at) - view.next_due_at).total_seconds())
    if view.last_success_at is not None:
        metrics.last_success.labels(view.name).set(view.last_success_at.timestamp())
