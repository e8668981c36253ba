"""The clock of a process: APScheduler wakes each loop when its row said that it would be due. Called by: the scheduler.

Only a clock. Whether a tick is to be run, which one, and by whom, the loop's row says; a clock that wakes too often, or one in
every process, changes nothing. APScheduler counts in this process's wall clock, but only ever a wait from now on, and the
scheduler's watch says that wait again and again: a clock that is set back costs seconds.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from apscheduler.events import EVENT_JOB_ERROR
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.base import BaseTrigger

from holdfast.schedule.due import MISFIRE_GRACE
from holdfast.schedule.registry import Loop
from holdfast.telemetry.log import log

SETTINGS = {"coalesce": True, "max_instances": 1, "misfire_grace_time": int(MISFIRE_GRACE.total_seconds())}
LONGEST_JITTER = timedelta(seconds=1)
FALLBACK = timedelta(minutes=1)  # between two wakings that nobody asked for


class After(BaseTrigger):  # type: ignore[misc]  # APScheduler has no types
    """Fires a while from now, a little later in each process, and then now and then until somebody says when."""

    def __init__(self, wait: timedelta, jitter: timedelta) -> None:
        self._wait = wait + random.random() * jitter  # noqa: S311 - spreads the processes

    def get_next_fire_time(self, previous: datetime | None, now: datetime) -> datetime:
        """APScheduler's question."""
        return now + (self._wait if previous is None else FALLBACK)


class Clock:
    """Wakes loops."""

    def __init__(self, fire: Callable[[Loop], Awaitable[None]]) -> None:
        self._fire = fire
        self._loops: dict[str, Loop] = {}
        self._scheduler: Any = AsyncIOScheduler(timezone=UTC, job_defaults=SETTINGS)
        self._scheduler.add_listener(self._on_error, EVENT_JOB_ERROR)

    def register(self, loop: Loop) -> None:
        """Know this loop, instead of an earlier one of its name."""
        self._loops[loop.name] = loop
        trigger = After(loop.every or FALLBACK, timedelta(0))
        self._scheduler.add_job(self._fire, trigger, args=[loop], id=loop.name, name=loop.name, replace_existing=True)

    def start(self) -> None:
        """Begin to wake. Inside a running event loop; there is no thread."""
        self._scheduler.start()

    def wake(self, name: str, wait: timedelta) -> None:
        """Wake this loop after so long, and not when it was said before."""
        jitter = (
            min(self._loops[name].every or LONGEST_JITTER, 10 * LONGEST_JITTER) / 10 if wait > timedelta(0) else timedelta(0)
        )
        self._scheduler.reschedule_job(name, trigger=After(wait, jitter))

    def stop(self) -> None:
        """Wake nobody any more."""
        if self._scheduler.running:
            self._scheduler.shutdown(wait=False)

    @staticmethod
    def _on_error(event: Any) -> None:
        log.critical("scheduler_failed", job=event.job_id, error=str(event.exception))
