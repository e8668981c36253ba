"""Renew the lease and poll: a thread with its own event loop and its own connection. Started by: the worker.

A handler that blocks the worker's event loop for minutes must not cost the worker its jobs, so the heartbeat shares nothing
with that loop except this object. Each result is passed to the worker's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any

from holdfast.jobs.model import Claim
from holdfast.jobs.renew import Beat, WorkerInfo
from holdfast.telemetry.error_text import error_line
from holdfast.telemetry.log import log
from holdfast.telemetry.metrics import renewals
from holdfast.worker.context import Lease
from holdfast.worker.poller import PollClock
from holdfast.worker.transports.interface import Pulse, Running, Takes

SAFE_SHARE = 0.8  # of the lease: side effects stop before it can end at the database


class Heartbeat:
    """Renews a worker's lease until it is stopped."""

    def __init__(
        self,
        pulse: Callable[[], Pulse],
        worker: WorkerInfo,
        held: Callable[[], list[Claim]],
        takes: Callable[[], Takes],
        on_beat: Callable[[Beat], None],
        *,
        clock: PollClock,
        running: Callable[[], list[Running]] = list,
        lease: Lease | None = None,
        beside: Sequence[Callable[[], Coroutine[Any, Any, None]]] = (),
    ) -> None:
        self.lease = lease or Lease(clock.lease * SAFE_SHARE)
        self._pulse, self._worker, self._held, self._takes, self._on_beat = pulse, worker, held, takes, on_beat
        self._clock, self._beside, self._running = clock, beside, running
        self._loop: asyncio.AbstractEventLoop | None = None
        self._now: asyncio.Event | None = None
        self._stopping = False
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="holdfast-heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def beat_now(self) -> None:
        """Send the next heartbeat now. From any thread."""
        if self._loop is not None and self._now is not None:
            with contextlib.suppress(RuntimeError):  # its loop is closed, because it is stopping
                self._loop.call_soon_threadsafe(self._now.set)

    async def stop(self) -> None:
        self._stopping = True
        self.beat_now()
        await asyncio.to_thread(self._thread.join, 10)

    async def _run(self) -> None:
        self._loop, self._now = asyncio.get_running_loop(), asyncio.Event()
        beside = [asyncio.create_task(duty()) for duty in self._beside]
        pulse = self._pulse()
        while not self._stopping:
            beat = await self._beat(pulse)
            await self._wait(beat)
        for duty in beside:
            duty.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        await pulse.close()

    async def _beat(self, pulse: Pulse) -> Beat | None:
        """Renew the lease and poll, in one statement. None if it failed."""
        asked_at = time.monotonic()  # before the query: a slow answer must not extend the lease
        length = timedelta(seconds=self._clock.lease)
        try:
            async with asyncio.timeout(self._clock.beat + 2):
                beat = await pulse.beat(self._worker, self._held(), self._takes(), lease=length, running=self._running())
                if not beat.known and not self._stopping:  # a stopping worker has resigned
                    log.warning("worker_unknown", worker_id=self._worker.id)
                    await pulse.register(self._worker, lease=length)
        except Exception as error:  # any error: without further heartbeats this worker would lose its jobs
            log.warning("heartbeat_failed", error=error_line(error), worker_id=self._worker.id)
            renewals.labels("failed").inc()
            return None
        renewals.labels("late" if self.lease.is_over else "renewed").inc()
        self.lease.extend(asked_at + self._clock.lease * SAFE_SHARE)
        self._on_beat(beat)
        return beat

    async def _wait(self, last: Beat | None) -> None:
        """Wait for the next heartbeat: soon while jobs are held or after a failure, otherwise until the next poll."""
        poll_in = self._clock.next_poll(random.random(), last.next_expiry) if last is not None else 0.0  # noqa: S311
        poll_at = time.monotonic() + poll_in
        while True:
            tick = self._clock.next_beat(random.random())  # noqa: S311 - spreads the heartbeats of a fleet
            left = poll_at - time.monotonic()
            if await self._is_woken(min(tick, left) if last is not None else tick):
                return
            if last is None or self._held() or time.monotonic() >= poll_at:
                return

    async def _is_woken(self, seconds: float) -> bool:
        """Wait so long; True if `beat_now` was called meanwhile."""
        assert self._now is not None
        try:
            await asyncio.wait_for(self._now.wait(), max(0.0, seconds))
        except TimeoutError:
            return False
        self._now.clear()
        return True
