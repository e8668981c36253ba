"""Keep the lease and look around: a thread with its own event loop and its own line to the kernel. Started by: the worker.

A handler that blocks the worker's event loop for minutes must not cost it its jobs, so the beat shares nothing with
it but this object. What the beat learns is handed over to the worker's loop, in its thread.
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
from holdfast.telemetry.log import log
from holdfast.telemetry.metrics import renewals
from holdfast.worker.context import Lease
from holdfast.worker.poller import Clock
from holdfast.worker.transport import Pulse, Running, Takes

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
        clock: Clock,
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
        """Do not wait for the next beat. From any thread."""
        if self._loop is not None and self._now is not None:
            with contextlib.suppress(RuntimeError):  # its loop is closed, perhaps just now: it was told to stop
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
            await self._rest(beat)
        for duty in beside:
            duty.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        await pulse.close()

    async def _beat(self, pulse: Pulse) -> Beat | None:
        """Renew the lease, and look around in the same statement; None if that did not get through."""
        asked_at = time.monotonic()  # before the question: an answer that took long must not stretch the lease
        length = timedelta(seconds=self._clock.lease)
        try:
            async with asyncio.timeout(self._clock.beat + 2):
                beat = await pulse.beat(self._worker, self._held(), self._takes(), lease=length, running=self._running())
                if not beat.known and not self._stopping:  # a worker on its way out has resigned
                    log.warning("worker_unknown", worker_id=self._worker.id)
                    await pulse.register(self._worker, lease=length)
        except Exception as error:  # whatever it is: without a next beat everything that this worker holds would be lost
            log.warning("heartbeat_failed", error=str(error) or type(error).__name__, worker_id=self._worker.id)
            renewals.labels("failed").inc()
            return None
        renewals.labels("late" if self.lease.is_over else "renewed").inc()
        self.lease.extend(asked_at + self._clock.lease * SAFE_SHARE)
        self._on_beat(beat)
        return beat

    async def _rest(self, last: Beat | None) -> None:
        """Until the next beat: soon while something is held or after one that failed, at the next look if not."""
        look_in = self._clock.next_look(random.random(), last.next_expiry) if last is not None else 0.0  # noqa: S311
        look_at = time.monotonic() + look_in
        while True:
            tick = self._clock.next_beat(random.random())  # noqa: S311 - spreads the beats of a fleet
            left = look_at - time.monotonic()
            if await self._is_called(min(tick, left) if last is not None else tick):
                return
            if last is None or self._held() or time.monotonic() >= look_at:
                return

    async def _is_called(self, seconds: float) -> bool:
        """Wait; True if somebody does not want to wait for the next beat."""
        assert self._now is not None
        try:
            await asyncio.wait_for(self._now.wait(), max(0.0, seconds))
        except TimeoutError:
            return False
        self._now.clear()
        return True
