"""Keep one database session open for a worker, and check once a second which sessions of other workers have ended.

Run by: the keeper for its executors, the heartbeat's thread for a worker without one; only with
`HOLDFAST_RESCUE_ON_DISCONNECT`. The statements are in `jobs/sessions.py`. A broken session is opened again immediately:
without one after the grace period, other workers rescue the jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta

import psycopg

from holdfast.database.pool import Link
from holdfast.jobs.model import WorkerId
from holdfast.jobs.sessions import publish, rescue_ended_sessions
from holdfast.telemetry.error_text import error_line
from holdfast.telemetry.log import log

CHECK = 1.0  # seconds between two checks
GRACE = timedelta(seconds=2)  # to reconnect, from the first check that found the session ended
AGAIN = 0.2  # seconds until the next try after a failure
UNREACHABLE = (psycopg.Error, OSError, TimeoutError)


class Presence:
    """The session, and the loop that checks on it."""

    def __init__(self, url: str, workers: Callable[[], Sequence[WorkerId]], name: str) -> None:
        self._url, self._workers, self._name = url, workers, name

    async def run(self) -> None:
        """Check until cancelled; then the session is closed."""
        link = Link(self._url)
        try:
            while True:
                await asyncio.sleep(CHECK if await self._check(link) else AGAIN)
        finally:
            await link.close()

    async def _check(self, link: Link) -> bool:
        """Publish the session and check the others. False if the database was unreachable."""
        try:
            async with asyncio.timeout(CHECK + 2), link as conn:
                await publish(conn, self._workers())
                noted, jobs = await rescue_ended_sessions(conn, grace=GRACE, actor=self._name)
        except UNREACHABLE as error:
            log.warning("presence_lost", name=self._name, error=error_line(error))
            return False
        for worker in noted:
            log.warning("worker_disconnected", worker_id=worker)
        if jobs:
            log.warning("jobs_rescued", jobs=jobs, cause="disconnected")
        return True
