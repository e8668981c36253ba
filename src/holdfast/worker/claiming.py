"""The worker's claims: the next batch whenever there is room. Started by: the loop.

Plain jobs are claimed in one statement that waits for nobody. Jobs that need a lock or a slot are only named by it, and
claimed beside it in a call of their own: somebody may be deciding about the same key, and no plain job waits for that.

Where jobs are short and many, a second batch is asked for while the first is still being read and run: the database then always
has something to do for us.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import psycopg

from holdfast.crashpoints import crashpoint
from holdfast.errors import HoldfastError
from holdfast.jobs.model import Claim, JobId, WorkerId
from holdfast.telemetry.log import log
from holdfast.worker.ends import attempts
from holdfast.worker.lanes import Lanes
from holdfast.worker.transport import UNREACHABLE, Takes, Transport

AGAIN = 0.05  # seconds after a look that was told of something and found nothing


class Claiming:
    """What one worker takes."""

    def __init__(
        self,
        transport: Transport,
        worker_id: WorkerId,
        lanes: Lanes,
        takes: Callable[[], Takes],
        largest_batch: int,
        stopping: asyncio.Event,
    ) -> None:
        self.taking = asyncio.Lock()  # whoever counts how many may be taken holds it until they are
        self.wake, self.saw_empty = asyncio.Event(), asyncio.Event()
        self._transport, self._worker_id, self._lanes, self._takes = transport, worker_id, lanes, takes
        self._largest, self._stopping = min(largest_batch, transport.largest_batch), stopping
        self._is_claiming, self._may_be_more, self._was_told = False, True, False
        self._tied: dict[asyncio.Task[None], Sequence[JobId]] = {}
        self._second: asyncio.Task[None] | None = None

    @property
    def is_quiet(self) -> bool:
        """Nothing is being claimed."""
        return not self._is_claiming and not self._tied and self._second is None

    def tell(self) -> None:
        """There is something to claim."""
        self._was_told = True
        self.wake.set()

    def on_free_lane(self) -> None:
        """Nothing was left when last looked: what has come since comes with a hint, and with the beat if that is lost."""
        if self._may_be_more:
            self.wake.set()

    async def run(self) -> None:
        """Claim batch after batch until the worker is told to end; what is just being claimed then is still handed out."""
        while not self._stopping.is_set():
            room, found = min(self._lanes.room(), self._largest), 0
            if room > 0:
                self._is_claiming = True
                async with self.taking:
                    room = min(room, self._lanes.may_take(room))
                    found = await self._claim(room) if room > 0 else 0
                self._is_claiming = False
            if found == room == self._largest:
                self._claim_a_second()
            self._may_be_more = found >= room  # there is less than no room where more was taken than it now seems wise to
            if found < room or self._lanes.may_take(1) <= 0:
                self.saw_empty.set()
            if self._was_told and found < room:
                self._was_told = False
                if not found:  # whoever claims just now holds more than it takes, and nobody tells us when it lets go
                    asyncio.get_running_loop().call_later(AGAIN, self.wake.set)
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

    async def _claim(self, limit: int) -> int:
        """Have up to so many claimed; how many were found."""
        async for _ in attempts():
            crashpoint("claim.before")
            try:
                claims, tied = await self._transport.claim(self._worker_id, self._takes(), limit)
                if claims:
                    crashpoint("claim.after_commit")
                self._lanes.hand_out(claims)
                return len(claims) + self._claim_aside(tied)
            except UNREACHABLE as error:  # a deadlock is one of them
                log.warning("worker_database_lost", error=str(error), worker_id=self._worker_id)
            if self._stopping.is_set():
                break
        return 0

    # ------------------------------------------------------------------------------------------------- a second batch

    def _claim_a_second(self) -> None:
        """Unless lanes must be counted one by one: then batches come after each other."""
        if self._second is None and not self._lanes.is_limited and self._lanes.room() >= 2 * self._largest:
            self._lanes.expected += self._largest
            self._second = asyncio.create_task(self._claim_beside())

    async def _claim_beside(self) -> None:
        try:
            await self._claim(self._largest)
        finally:
            self._lanes.expected -= self._largest
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
