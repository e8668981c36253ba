"""The scheduler: one in every process that may run loops, as many processes as you like. Started by: `holdfast scheduler run`,
`holdfast serve`, or your own program:

    async with Scheduler(url):
        ...

It looks at the rows of its loops every few seconds and has its clock wake those that are due soon.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Self
from uuid import uuid4

from holdfast.database.pool import Link, pool
from holdfast.schedule.clock import Clock
from holdfast.schedule.due import next_due
from holdfast.schedule.read import LoopView, list_loops
from holdfast.schedule.registry import Loop, registered
from holdfast.schedule.term import LOOK_AGAIN, ensure
from holdfast.schedule.tick import LOST_DATABASE, Place, tick
from holdfast.telemetry import metrics
from holdfast.telemetry.log import log

BREATH = timedelta(milliseconds=50)  # after a tick, for the clock to notice that it has ended


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
        self.holder = f"{self.options.name or socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"
        self._place = Place(url, self.holder, Link(url), pool(url, most=self.options.connections))
        self._clock = Clock(self._fire)
        self._ticks: dict[str, asyncio.Task[timedelta]] = {}
        self._watching: asyncio.Task[None] | None = None
        self._has_rows = False
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Run until `ask_to_stop()`."""
        async with self:
            await self._stopping.wait()

    def ask_to_stop(self) -> None:
        """Let `run` come to its end. For signal handlers."""
        self._stopping.set()

    async def start(self) -> None:
        """Register the loops and begin. A database that is away is waited for."""
        log.info("scheduler_starting", holder=self.holder, loops=sorted(self.loops))
        await self._place.pool.open()
        for loop in self.loops.values():
            self._clock.register(loop)
            log.info("job_registered", job=loop.name, every=str(loop.every) if loop.every else None, cron=loop.cron)
        self._clock.start()
        self._watching = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """Begin nothing more, wait for what runs as long as the grace, give back the rest."""
        self._stopping.set()
        log.info("scheduler_stopping", holder=self.holder, running=sorted(self._ticks))
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
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
        """The clock says that this loop may be due."""
        if loop.name in self._ticks or self._stopping.is_set():
            return
        self._ticks[loop.name] = one = asyncio.create_task(tick(loop, self._place))
        await asyncio.wait({one})
        del self._ticks[loop.name]
        wait = LOOK_AGAIN
        if not one.cancelled():
            if (error := one.exception()) is not None:
                log.critical("scheduler_failed", job=loop.name, error=str(error), exc_info=error)
            else:
                wait = one.result()
        self._wake(loop.name, max(wait, BREATH))

    def _wake(self, name: str, wait: timedelta) -> None:
        """What is due later than the look after the next will be seen then."""
        if not self._stopping.is_set() and wait < 2 * self.options.look:
            self._clock.wake(name, wait)

    # ------------------------------------------------------------------------------------------------- the watch

    async def _watch(self) -> None:
        """Look at the rows, again and again. On the loop's own timer, which no setting of a wall clock can stop."""
        while True:
            try:
                await self._look()
            except LOST_DATABASE as error:
                log.warning("scheduler_database_lost", error=str(error))
            except Exception as error:  # whatever it is, the loops must go on
                log.critical("scheduler_failed", error=str(error), exc_info=error)
            await asyncio.sleep(self.options.look.total_seconds())

    async def _look(self) -> None:
        async with self._place.rows as conn:
            if not self._has_rows:
                await ensure(conn, list(self.loops.values()))
            views = [view for view in await list_loops(conn) if view.name in self.loops]
        self._has_rows = len(views) == len(self.loops)  # one that somebody has deleted is made again
        for view in views:
            show(view)
            if view.name not in self._ticks and view.wait is not None:
                self._wake(view.name, view.wait)


def show(view: LoopView) -> None:
    """Set the gauges of a loop. From its row, so that every process shows the same, whoever runs it."""
    metrics.health.labels(view.name).set(1 if view.is_healthy else 0)
    metrics.interval.labels(view.name).set((next_due(view, view.next_due_at) - view.next_due_at).total_seconds())
    if view.last_success_at is not None:
        metrics.last_success.labels(view.name).set(view.last_success_at.timestamp())
