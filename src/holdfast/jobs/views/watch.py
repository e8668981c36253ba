"""Changes of jobs and pipelines for many clients, in one statement each. Called by: the streams of the API, once for all
clients.

A process that streams changes polls every second. To learn of changes sooner, it announces itself every few seconds, and while
it does, every process that changes jobs notifies it: at most ten times a second, in a separate transaction. While no process
has announced itself, the cost is one read of the clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, NamedTuple

import psycopg
from psycopg.rows import class_row, tuple_row
from psycopg_pool import PoolTimeout

from holdfast.jobs.model import JobId
from holdfast.jobs.pipelines import status_of
from holdfast.jobs.states import State


class Glance(NamedTuple):
    """The columns of a job that change: its state and its progress."""

    id: int
    state: str
    attempt_no: int
    progress: float | None
    message: str | None
    cancelling: bool
    last_move: int  # the newest entry of its history; 0 if there is none


GLANCE = """
    SELECT j.id, j.state, j.attempt_no, j.progress, j.message, j.cancel_requested_at IS NOT NULL AS cancelling,
           coalesce((SELECT max(h.id) FROM holdfast.history h WHERE h.job_id = j.id), 0) AS last_move
    FROM holdfast.jobs j WHERE j.id = ANY (%(jobs)s)
"""


async def glance(conn: psycopg.AsyncConnection[Any], jobs: Sequence[int]) -> dict[int, Glance]:
    """The current state of these jobs; deleted jobs are missing."""
    async with conn.cursor(row_factory=class_row(Glance)) as cursor:
        await cursor.execute(GLANCE, {"jobs": list(jobs)})
        return {found.id: found for found in await cursor.fetchall()}


# The history of a job is written while its row is locked, so the ids rise in the order in which entries become visible.
MOVES = """
    SELECT h.id, h.at, h.move, h.state, h.attempt_no, h.actor, h.reason FROM holdfast.history h
    WHERE h.job_id = %(job)s AND h.id > %(after)s ORDER BY h.id LIMIT 1000
"""


async def moves(conn: psycopg.AsyncConnection[Any], job_id: JobId, *, after: int) -> list[dict[str, Any]]:
    """The moves of a job after an entry of its history."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(MOVES, {"job": job_id, "after": after})
        names = [column.name for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in await cursor.fetchall()]


PIPELINES = """
    SELECT p.id::text, p.name, p.aborted_at IS NOT NULL, j.state, count(j.id), sum(coalesce(j.progress, 0))
    FROM holdfast.pipelines p LEFT JOIN holdfast.jobs j ON j.pipeline_id = p.id
    WHERE p.id = ANY (%(pipelines)s::uuid[]) GROUP BY p.id, j.state
"""


async def glance_at_pipelines(conn: psycopg.AsyncConnection[Any], pipelines: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The current status of these pipelines."""
    found: dict[str, dict[str, Any]] = {}
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(PIPELINES, {"pipelines": list(pipelines)})
        for pipeline_id, name, aborted, state, count, done in await cursor.fetchall():
            one = found.setdefault(
                pipeline_id, {"id": pipeline_id, "name": name, "aborted": aborted, "counts": {}, "done": 0.0}
            )
            if state is not None:
                one["counts"][state] = count
                one["done"] += count if state == State.COMPLETED else float(done)
    for one in found.values():
        jobs = sum(one["counts"].values())
        one["status"] = status_of({State(state): count for state, count in one["counts"].items()})
        one["progress"] = round(one.pop("done") / jobs, 4) if jobs else None
    return found


# The counts of a large table stop at their cap; these two numbers do not. The history has no index on its ids, which every job
# would pay for, but its sequence has the last one, perhaps a moment before the entry is visible.
NEWEST = """
    SELECT coalesce((SELECT max(id) FROM holdfast.jobs), 0), (SELECT last_value FROM holdfast.history_id_seq)
"""


async def newest(conn: psycopg.AsyncConnection[Any]) -> tuple[int, int]:
    """The ids of the newest job and of the newest history entry: they show that a job was enqueued or has moved."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(NEWEST)
        job, move = await cursor.fetchone() or (0, 0)
    return job, move


# ---------------------------------------------------------------------------------------------------------------------
# Notifying the watchers
# ---------------------------------------------------------------------------------------------------------------------

WATCHED: Final = "!"  # a hint to processes that change jobs: another process streams changes
SAY_WATCHED = "SELECT pg_notify('holdfast', '!')"
SAY_EVERY = 10.0  # seconds
BELIEVED_FOR = 30.0

CHANGES: Final = "holdfast_changes"  # a separate channel, because workers need not wake up when a job has ended
SAY_CHANGED = "SELECT pg_notify('holdfast_changes', '')"
AT_MOST_EVERY = 0.1


class ChangeNotifier:
    """Notifies watching processes of changes, if there are any."""

    def __init__(self, borrow: Callable[[], AbstractAsyncContextManager[psycopg.AsyncConnection[Any]]]) -> None:
        self._borrow = borrow
        self._believed_until = 0.0
        self._has_changed = False
        self._telling: asyncio.Task[None] | None = None

    @property
    def is_watched(self) -> bool:
        return time.monotonic() < self._believed_until

    def receive(self, hint: str) -> bool:
        """Process a hint. Returns whether it was the announcement of a watching process."""
        if hint == WATCHED:
            self._believed_until = time.monotonic() + BELIEVED_FOR
        return hint == WATCHED

    def changed(self) -> None:
        """Notify of a change, now or shortly after the last notification."""
        if self.is_watched:
            self._has_changed = True
            if self._telling is None:
                self._telling = asyncio.create_task(self._tell())

    async def close(self) -> None:
        if self._telling is not None:
            self._telling.cancel()
            await asyncio.gather(self._telling, return_exceptions=True)

    async def _tell(self) -> None:
        try:
            while self._has_changed:
                self._has_changed = False
                with contextlib.suppress(psycopg.Error, PoolTimeout, OSError):  # watchers also poll
                    async with self._borrow() as conn:
                        await conn.execute(SAY_CHANGED)
                await asyncio.sleep(AT_MOST_EVERY)
        finally:
            self._telling = None
