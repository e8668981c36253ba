"""One database session that stands for a worker, and a look once a second at those of the others. Only where settings allow it.

Run by: the keeper for its executors, the heartbeat's thread for a worker without one. The statements are in
`jobs/sessions.py`. A session that broke is opened again at once: without a session after the grace period it is lost.
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

LOOK = 1.0  # seconds between two looks
GRACE = timedelta(seconds=2)  # from the first look that saw a session gone, to come back in
AGAIN = 0.2  # seconds until the next try after one that failed
UNREACHABLE = (psycopg.Error, OSError, TimeoutError)


class Presence:
    """The session itself, and the loop on it."""

    def __init__(self, url: str, workers: Callable[[], Sequence[WorkerId]], name: str) -> None:
        self._url, self._workers, self._name = url, workers, name

    async def run(self) -> None:
        """Until cancelled, and then the session ends with it."""
        link = Link(self._url)
        try:
            while True:
                await asyncio.sleep(LOOK if await self._look(link) else AGAIN)
        finally:
            await link.close()

    async def _look(self, link: Link) -> bool:
        """Whether it got through."""
        try:
            async with asyncio.timeout(LOOK + 2), link as conn:
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
