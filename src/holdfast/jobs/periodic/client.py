"""`client.periodic`: the calls for periodic jobs, each in a transaction of its own. Made by: `jobs/client.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from psycopg_pool import AsyncConnectionPool

from holdfast.jobs.periodic import read, steer


class Periodic:
    """List, pause, resume and run periodic jobs."""

    def __init__(self, connections: AsyncConnectionPool[Any], changed: Callable[[], None]) -> None:
        self._pool, self._changed = connections, changed

    async def list(self) -> list[read.PeriodicJob]:
        """Every periodic job, by kind."""
        async with self._pool.connection() as conn:
            return await read.list_periodic(conn)

    async def get(self, kind: str) -> read.PeriodicJob:
        """One periodic job: its schedule, `next_runs()`, and its last run."""
        async with self._pool.connection() as conn:
            return await read.get_periodic(conn, kind)

    async def runs(self, kind: str, *, limit: int = 20, before: int | None = None) -> list[read.PeriodicRun]:  # type: ignore[valid-type]
        """The jobs of its due times, newest first; `before`: the last job id of the previous page."""
        async with self._pool.connection() as conn:
            return await read.list_runs(conn, kind, limit=limit, before=before)

    async def run(self, kind: str, *, actor: str, reason: str | None = None) -> steer.Run:
        """Enqueue a run now. The schedule continues unchanged."""
        async with self._pool.connection() as conn:
            made = await steer.run_now(conn, kind, actor=actor, reason=reason)
        self._changed()
        return made

    async def pause(self, kind: str, *, actor: str, reason: str | None = None) -> None:
        """Enqueue no more due times until it is resumed."""
        async with self._pool.connection() as conn:
            await steer.pause(conn, kind, actor=actor, reason=reason)

    async def resume(self, kind: str) -> bool:
        """Continue with the first due time after now. False: it was not paused."""
        async with self._pool.connection() as conn:
            return await steer.resume(conn, kind)
