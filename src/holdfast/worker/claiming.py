"""The worker's claims: the next batch whenever there is room. Started by: the loop.

Plain jobs are claimed in one statement that waits for nobody. Jobs that need a lock or a slot are only named by it, and
claimed beside it in a call of their own: somebody may be deciding about the same key, and no plain job waits for that.

Where jobs are short and many, a second batch is asked for while the first is still being read and run: the database then always
has something to do for us.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import psycopg

from holdfast.crashpoints import crashpoint
from holdfast.errors import HoldfastError
from holdfast.jobs.model import Claim, JobId, WorkerId
from holdfast.telemetry.log import log
from holdfast.worker.ends import attempts
from holdfast.worker.lanes import Lanes, Wanted
from holdfast.worker.transport import UNREACHABLE, Transport

AGAIN, LONGEST_PAUSE = 0.05, 1.0  # seconds after a claim that found nothing but what others have locked


class Claiming:
    """What one worker takes."""

    def __init__(
        self,
        transport: Transport,
        worker_id: WorkerId,
        lanes: Lanes,
        largest_batch: int,
        stopping: asyncio.Event,
    ) -> None:
        self.taking = asyncio.Lock()  # whoever counts how many may be taken holds it until they are
        self.wake, self.saw_empty = asyncio.Event(), asyncio.Event()
        self._transport, self._worker_id, self._lanes = transport, worker_id, lanes
        self._largest, self._stopping = min(largest_batch, transport.largest_batch), stopping
        self._is_claiming, self._may_be_more = False, True
        self._pause = 0.0  # until the next claim where others have jobs locked
        self._tied: dict[asyncio.Task[None], Sequence[JobId]] = {}
        self._second: asyncio.Task[None] | None = None

    @property
    def is_quiet(self) -> bool:
        """Nothing is being claimed."""
        return not self._is_claiming and not self._tied and self._second is None

    def tell(self) -> None:
        """There is something to claim."""
        self.wake.set()

    def on_free_lane(self) -> None:
        """Nothing was left when last looked: what has come since comes with a hint, and with the beat if that is lost."""
        if self._may_be_more:
            self.wake.set()

    async def run(self) -> None:
        """Claim batch after batch until the worker is told to end; what is just being claimed then is still handed out."""
        while not self._stopping.is_set():
            wanted = self._lanes.wanted()
            room, found = min(wanted.limit, self._largest), 0
            if room > 0:
                self._is_claiming = True
                async with self.taking:
                    room = min(room, self._lanes.may_take(room))
                    found = await self._claim(wanted._replace(limit=room)) if room > 0 else 0
                self._is_claiming = False
            if found == room == self._largest:
                self._claim_a_second()
            # `room` is negative where more was claimed than the lanes now finish in a moment.
            self._may_be_more = found >= room or not wanted.any_kind
            if (found < room and wanted.any_kind) or self._lanes.may_take(1) <= 0:
                self.saw_empty.set()
            if found < room or room <= 0:
                await self.wake.wait()
                self.wake.clear()
        await asyncio.gather(*self._aside())

    async def close(self) -> None:
        """What could not be claimed by now is left to others."""
        for task in self._aside():
            task.cancel()
        await asyncio.gather(*self._aside(), return_exceptions=True)

    def _aside(self) -> list[asyncio.Task[None]]:
        return [*self._tied, *([] if self._second is None else [self._second])]

    async def _claim(self, wanted: Wanted) -> int:
        """Have up to so many claimed; how many were found."""
        async for _ in attempts():
            crashpoint("claim.before")
            try:
                claims, tied, contended = await self._transport.claim(self._worker_id, wanted.takes, wanted.limit)
                self._claim_again_later(contended)
                if claims:
                    crashpoint("claim.after_commit")
                self._lanes.hand_out(claims)
                return len(claims) + self._claim_aside(tied)
            except UNREACHABLE as error:  # a deadlock is one of them
                log.warning("worker_database_lost", error=str(error), worker_id=self._worker_id)
            if self._stopping.is_set():
                break
        return 0

    def _claim_again_later(self, contended: bool) -> None:
        """A claim locks more than it takes, and sends no hint when it lets go: what it leaves must not wait for the next beat.
        Less and less often, because a claim of a job with a lock may wait for long."""
        self._pause = min(max(AGAIN, 2 * self._pause), LONGEST_PAUSE) if contended else 0.0
        if contended:
            asyncio.get_running_loop().call_later(self._pause, self.wake.set)

    # ------------------------------------------------------------------------------------------------- a second batch

    def _claim_a_second(self) -> None:
        """Unless lanes must be counted one by one: then batches come after each other."""
        if self._second is not None or self._lanes.is_limited:
            return
        wanted = self._lanes.wanted()
        if wanted.limit >= 2 * self._largest:
            self._lanes.expected_ahead += self._largest
            self._second = asyncio.create_task(self._claim_beside(wanted._replace(limit=self._largest)))

    async def _claim_beside(self, wanted: Wanted) -> None:
        try:
            await self._claim(wanted)
        finally:
            self._lanes.expected_ahead -= self._largest
            self._second = None

    # ------------------------------------------------------------------------------------------------- tied ones

    def _claim_aside(self, found: Sequence[JobId]) -> int:
        under_way = {job_id for ids in self._tied.values() for job_id in ids}
        ids = [job_id for job_id in found if job_id not in under_way]
        if ids:
            self._lanes.expected += len(ids)
            self._tied[asyncio.create_task(self._claim_tied(ids))] = ids
        return len(ids)

    async def _claim_tied(self, ids: list[JobId]) -> None:
        claims: list[Claim] = []
        try:
            claims = await self._transport.claim_tied(self._worker_id, ids)
            crashpoint("claim.after_commit")
        except (psycopg.Error, HoldfastError, *UNREACHABLE) as error:  # they are found again
            log.warning("claim_put_off", jobs=ids, error=str(error), worker_id=self._worker_id)
        else:
            if len(claims) < len(ids):  # the others are blocked: there may be something else for their lanes
                self.wake.set()
        finally:
            self._lanes.expected -= len(ids)
            self._tied = {task: others for task, others in self._tied.items() if others is not ids}
            self._lanes.hand_out(claims)
