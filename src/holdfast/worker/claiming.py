"""The worker's claims: the next batch whenever there is room. Started by: the worker (`loop.py`).

Plain jobs are claimed in one statement that waits for nothing. Jobs that need a lock or a slot are only named by it, and
claimed beside it in their own call: another transaction may be deciding about the same key, and no plain job waits for that.

Where jobs are short and many, a second batch is requested while the first is still being read and run: the database then always
has something to do for this worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import psycopg

from holdfast.crashpoints import crashpoint
from holdfast.errors import HoldfastError
from holdfast.jobs.model import Claim, JobId, WorkerId
from holdfast.telemetry.error_text import error_line
from holdfast.telemetry.log import log
from holdfast.worker.lanes import Lanes
from holdfast.worker.prefetch import Prefetch, Wanted
from holdfast.worker.retries import retry_forever
from holdfast.worker.transports.interface import UNREACHABLE, Transport

AGAIN, LONGEST_PAUSE = 0.05, 1.0  # seconds after a claim that found only jobs that other transactions have locked


class Claimer:
    """Claims jobs for the lanes of one worker, as many as `Prefetch` wants."""

    def __init__(
        self, transport: Transport, worker_id: WorkerId, lanes: Lanes, prefetch: Prefetch, *, largest_batch: int
    ) -> None:
        self.limits = asyncio.Lock()  # held from asking how many may be taken until they are
        self._wake, self._saw_empty, self._stopping = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._transport, self._worker_id, self._lanes, self._prefetch = transport, worker_id, lanes, prefetch
        self._largest = min(largest_batch, transport.largest_batch)
        self._is_claiming, self._may_be_more = False, True
        self._pause = 0.0  # until the next claim where other transactions have jobs locked
        self._tied: dict[asyncio.Task[None], Sequence[JobId]] = {}
        self._second: asyncio.Task[None] | None = None

    @property
    def is_idle(self) -> bool:
        """Nothing is being claimed."""
        return not self._is_claiming and not self._tied and self._second is None

    def wake(self) -> None:
        """Claim now: something may be ready."""
        self._wake.set()

    def on_idle_lane(self) -> None:
        """A lane is idle: claim, unless the last claim found nothing. New jobs come with a hint, or with the next heartbeat."""
        if self._may_be_more:
            self._wake.set()

    def stop(self) -> None:
        """Claim no more."""
        self._stopping.set()
        self._wake.set()

    async def until_empty(self) -> None:
        """Claim now, and return once a claim has found nothing."""
        self._saw_empty.clear()
        self._wake.set()
        await self._saw_empty.wait()

    async def run(self) -> None:
        """Claim batch after batch until `stop`; what is being claimed then is still handed to the lanes."""
        while not self._stopping.is_set():
            wanted = self._prefetch.wanted()
            room, found = min(wanted.limit, self._largest), 0
            if room > 0:
                self._is_claiming = True
                async with self.limits:
                    room = min(room, self._prefetch.may_take(room))
                    found = await self._claim(wanted._replace(limit=room)) if room > 0 else 0
                self._is_claiming = False
            if found == room == self._largest:
                self._claim_second_batch()
            # `room` can be negative after over-prefetching.
            self._may_be_more = found >= room or not wanted.any_kind
            if (found < room and wanted.any_kind) or self._prefetch.may_take(1) <= 0:
                self._saw_empty.set()
            if found < room or room <= 0:
                await self._wake.wait()
                self._wake.clear()
        await asyncio.gather(*self._tasks())

    async def close(self) -> None:
        """Cancel the claims under way; other workers find those jobs."""
        for task in self._tasks():
            task.cancel()
        await asyncio.gather(*self._tasks(), return_exceptions=True)

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [*self._tied, *([] if self._second is None else [self._second])]

    async def _claim(self, wanted: Wanted) -> int:
        """Claim up to so many; how many were found."""
        async for _ in retry_forever():
            crashpoint("claim.before")
            try:
                claims, tied, contended = await self._transport.claim(self._worker_id, wanted.takes, wanted.limit)
                self._claim_again_later(contended)
                if claims:
                    crashpoint("claim.after_commit")
                self._lanes.hand_out(claims)
                return len(claims) + self._claim_tied_later(tied)
            except UNREACHABLE as error:  # a deadlock is one of them
                log.warning("worker_database_lost", error=error_line(error), worker_id=self._worker_id)
            if self._stopping.is_set():
                break
        return 0

    def _claim_again_later(self, contended: bool) -> None:
        """A claim locks more rows than it takes, and sends no hint when it releases them: they must not wait for the next
        heartbeat. Less and less often, because the claim of a job with a lock may wait for long."""
        self._pause = min(max(AGAIN, 2 * self._pause), LONGEST_PAUSE) if contended else 0.0
        if contended:
            asyncio.get_running_loop().call_later(self._pause, self._wake.set)

    # ------------------------------------------------------------------------------------------------- a second batch

    def _claim_second_batch(self) -> None:
        """Unless there is a limit of jobs in all: then batches come after each other."""
        if self._second is not None or self._prefetch.is_limited:
            return
        wanted = self._prefetch.wanted()
        if wanted.limit >= 2 * self._largest:
            self._prefetch.reserve(self._largest, ahead=True)
            self._second = asyncio.create_task(self._claim_second(wanted._replace(limit=self._largest)))

    async def _claim_second(self, wanted: Wanted) -> None:
        try:
            await self._claim(wanted)
        finally:
            self._prefetch.release(self._largest, ahead=True)
            self._second = None

    # ------------------------------------------------------------------------------------------------- jobs with locks or slots

    def _claim_tied_later(self, found: Sequence[JobId]) -> int:
        under_way = {job_id for ids in self._tied.values() for job_id in ids}
        ids = [job_id for job_id in found if job_id not in under_way]
        if ids:
            self._prefetch.reserve(len(ids))
            self._tied[asyncio.create_task(self._claim_tied(ids))] = ids
        return len(ids)

    async def _claim_tied(self, ids: list[JobId]) -> None:
        claims: list[Claim] = []
        try:
            claims = await self._transport.claim_tied(self._worker_id, ids)
            if claims:  # none if another claim had the rows locked
                crashpoint("claim.after_commit")
        except (psycopg.Error, HoldfastError, *UNREACHABLE) as error:  # the next claim finds them again
            log.warning("claim_put_off", jobs=ids, error=error_line(error), worker_id=self._worker_id)
        else:
            if len(claims) < len(ids):  # the others are blocked: there may be other jobs for their lanes
                self._wake.set()
        finally:
            self._prefetch.release(len(ids))
            self._tied = {task: others for task, others in self._tied.items() if others is not ids}
            self._lanes.hand_out(claims)
