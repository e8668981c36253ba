"""The clock of a process: APScheduler wakes each loop when its row is due. Called by: the scheduler.

Only a clock. The loop's row decides whether to run a tick, which one, and in which process; extra wake-ups change nothing.
APScheduler uses this process's wall clock, but only for a wait from now on, and each poll of the scheduler sets that wait
again: a wall clock that is set back costs seconds.
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
FALLBACK = timedelta(minutes=1)  # between two wake-ups that were not requested


class After(BaseTrigger):  # type: ignore[misc]  # APScheduler has no types
    """Fires once after a wait with jitter, then every `FALLBACK` until it is replaced."""

    def __init__(self, wait: timedelta, jitter: timedelta) -> None:
        self._wait = wait + random.random() * jitter  # noqa: S311 - spreads the processes

    def get_next_fire_time(self, previous: datetime | None, now: datetime) -> datetime:
        """Called by APScheduler."""
        return now + (self._wait if previous is None else FALLBACK)


class LoopClock:
    """Wakes loops."""

    def __init__(self, fire: Callable[[Loop], Awaitable[None]]) -> None:
        self._fire = fire
        self._loops: dict[str, Loop] = {}
        self._scheduler: Any = AsyncIOScheduler(timezone=UTC, job_defaults=SETTINGS)
        self._scheduler.add_listener(self._on_error, EVENT_JOB_ERROR)

    def register(self, loop: Loop) -> None:
        """Add this loop, or replace the one with its name."""
        self._loops[loop.name] = loop
        trigger = After(loop.every or FALLBACK, timedelta(0))
        self._scheduler.add_job(self._fire, trigger, args=[loop], id=loop.name, name=loop.name, replace_existing=True)

    def start(self) -> None:
        """Start, inside a running event loop. There is no thread."""
        self._scheduler.start()

    def wake(self, name: str, wait: timedelta) -> None:
        """Wake this loop after so long. Replaces an earlier call."""
        jitter = (
            min(self._loops[name].every or LONGEST_JITTER, 10 * LONGEST_JITTER) / 10 if wait > timedelta(0) else timedelta(0)
        )
        self._scheduler.reschedule_job(name, trigger=After(wait, jitter))

    def stop(self) -> None:
        """Wake no more loops."""
        if self._scheduler.running:
            self._scheduler.shutdown(wait=False)

    @staticmethod
    def _on_error(event: Any) -> None:
        log.critical("scheduler_failed", loop=event.job_id, error=str(event.exception))
