"""Keep the lease: a thread with its own event loop and its own line to the kernel. Started by: the worker's loop.

A handler that blocks the worker's event loop for minutes must not cost it its jobs, so the beat shares nothing with
it but this object. What the beat learns is handed over to the worker's loop, in its thread.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import psycopg

from holdfast.errors import HoldfastError
from holdfast.jobs.model import Claim
from holdfast.jobs.renew import Beat, WorkerInfo
from holdfast.telemetry.log import log
from holdfast.worker.context import Lease
from holdfast.worker.transport import Pulse, Takes

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
        every: timedelta,
        length: timedelta,
        lease: Lease | None = None,
    ) -> None:
        self.lease = lease or Lease(length.total_seconds() * SAFE_SHARE)
        self._pulse, self._worker, self._held, self._takes, self._on_beat = pulse, worker, held, takes, on_beat
        self._every, self._length = every, length
        self._loop: asyncio.AbstractEventLoop | None = None
        self._now: asyncio.Event | None = None
        self._stopping = False
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="holdfast-heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def beat_now(self) -> None:
        """Do not wait for the next beat. From any thread."""
        if self._loop is not None and self._now is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._now.set)

    async def stop(self) -> None:
        self._stopping = True
        self.beat_now()
        await asyncio.to_thread(self._thread.join, 10)

    async def _run(self) -> None:
        self._loop, self._now = asyncio.get_running_loop(), asyncio.Event()
        pulse = self._pulse()
        while not self._stopping:
            await self._beat(pulse)
            wait = self._every.total_seconds() * random.uniform(0.9, 1.0)  # noqa: S311 - spreads the beats of a fleet
            try:
                await asyncio.wait_for(self._now.wait(), wait)
            except TimeoutError:
                continue
            finally:
                self._now.clear()
        await pulse.close()

    async def _beat(self, pulse: Pulse) -> None:
        asked_at = time.monotonic()  # before the question: an answer that took long must not stretch the lease
        try:
            async with asyncio.timeout(self._every.total_seconds() + 2):
                beat = await pulse.beat(self._worker, self._held(), self._takes(), lease=self._length)
                if not beat.known:
                    log.warning("worker_unknown", worker_id=self._worker.id)
                    await pulse.register(self._worker, lease=self._length)
        except (psycopg.Error, HoldfastError, TimeoutError, OSError) as error:
            log.warning("heartbeat_failed", error=str(error), worker_id=self._worker.id)
            return
        self.lease.extend(asked_at + self._length.total_seconds() * SAFE_SHARE)
        self._on_beat(beat)
