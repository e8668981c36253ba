"""Wait until a job has ended. Called by: `client.wait`.

Workers notify the channel of changes while a process listens (`views/watch.py`). A notification is only a hint: every
waiter also polls. All waiters of a client share one connection that listens; opened with the first, closed with the last.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import psycopg
from psycopg.rows import tuple_row
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from holdfast.database.listen import ListeningLink
from holdfast.errors import JobFailed, NotFound, WaitTimedOut
from holdfast.jobs.model import JobId
from holdfast.jobs.states import ENDED, State
from holdfast.jobs.views import explain
from holdfast.jobs.views.read import JobView, get_job
from holdfast.jobs.views.watch import CHANGES, SAY_EVERY, SAY_WATCHED

FIRST_POLL, LONGEST_POLL = 0.05, 2.0  # seconds between two polls, without a notification

READ_STATE = "SELECT state FROM holdfast.jobs WHERE id = %(id)s"


class Waiting:
    """The waiters of one client."""

    def __init__(self, connections: AsyncConnectionPool[Any]) -> None:
        self._pool = connections
        self._waiters: set[asyncio.Event] = set()
        self._listening: asyncio.Task[None] | None = None

    async def wait(self, job_id: JobId, *, timeout: float | None, raise_on_failure: bool) -> JobView:
        """The job, when it has ended. `WaitTimedOut` says why it has not; it continues either way."""
        try:
            async with asyncio.timeout(timeout):
                await self._until_ended(job_id)
        except TimeoutError:
            async with self._pool.connection() as conn:
                raise WaitTimedOut(job_id, timeout, await explain.explain(conn, job_id)) from None
        async with self._pool.connection() as conn:
            ended = await get_job(conn, job_id)
        if raise_on_failure and ended.state != State.COMPLETED:
            raise JobFailed(ended)
        return ended

    async def close(self) -> None:
        """Stop listening."""
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
            self._listening = None

    async def _until_ended(self, job_id: JobId) -> None:
        changed, pause = asyncio.Event(), FIRST_POLL
        self._waiters.add(changed)
        try:
            while await self._state(job_id) not in ENDED:
                if self._listening is None:
                    self._listening = asyncio.create_task(self._listen())
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), pause)
                changed.clear()
                pause = min(pause * 1.5, LONGEST_POLL)
        finally:
            self._waiters.discard(changed)
            if not self._waiters:
                await self.close()

    async def _state(self, job_id: JobId) -> State:
        async with self._pool.connection() as conn, conn.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(READ_STATE, {"id": job_id})
            row = await cursor.fetchone()
        if row is None:
            raise NotFound(f"there is no job {job_id}")
        return State(row[0])

    async def _listen(self) -> None:
        """Listen, and announce it again and again: workers notify only while a process listens."""
        link = ListeningLink(str(self._pool.conninfo), CHANGES)
        listening = asyncio.create_task(link.listen(lambda _: self._wake()))
        try:
            while True:
                with contextlib.suppress(psycopg.Error, PoolTimeout, OSError):  # polling continues
                    async with self._pool.connection() as conn:
                        await conn.execute(SAY_WATCHED)
                await asyncio.sleep(SAY_EVERY)
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
            await link.close()

    def _wake(self) -> None:
        for waiter in self._waiters:
            waiter.set()
