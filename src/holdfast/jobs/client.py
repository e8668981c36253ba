"""A way to the database for code that only enqueues and looks. Called by: web routes, scripts, the command line.

`async with holdfast.connect(url):` opens a small pool and makes it the one that `render.enqueue(...)` uses when it is not
given a transaction.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

from psycopg_pool import AsyncConnectionPool

from holdfast.database.pool import pool
from holdfast.errors import UsageError
from holdfast.jobs import cancel, explain, history, read
from holdfast.jobs.enqueue import enqueue, enqueue_many
from holdfast.jobs.model import Enqueued, JobId, NewJob
from holdfast.jobs.states import State

_current: ContextVar[Client | None] = ContextVar("holdfast_client", default=None)


class Client:
    """The everyday calls on a pool of connections; every one is its own transaction."""

    def __init__(self, connections: AsyncConnectionPool[Any]) -> None:
        self.pool = connections

    async def enqueue(self, job: NewJob) -> Enqueued:
        async with self.pool.connection() as conn:
            return await enqueue(conn, job)

    async def enqueue_many(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        async with self.pool.connection() as conn:
            return await enqueue_many(conn, jobs)

    async def get(self, job_id: JobId) -> read.JobView:
        async with self.pool.connection() as conn:
            return await read.get_job(conn, job_id)

    async def explain(self, job_id: JobId) -> str:
        async with self.pool.connection() as conn:
            return await explain.explain(conn, job_id)

    async def history(self, job_id: JobId) -> list[history.Entry]:
        async with self.pool.connection() as conn:
            return await history.history(conn, job_id)

    async def cancel(self, job_id: JobId, *, actor: str, reason: str | None = None, force: bool = False) -> State:
        async with self.pool.connection() as conn:
            return await cancel.cancel(conn, job_id, actor=actor, reason=reason, force=force)


@asynccontextmanager
async def connect(url: str, *, most: int = 4) -> AsyncIterator[Client]:
    """Open a client; inside the block `kind.enqueue(...)` uses it."""
    async with pool(url, most=most) as connections:
        client = Client(connections)
        token = _current.set(client)
        try:
            yield client
        finally:
            _current.reset(token)


def current_client() -> Client:
    """The client of the surrounding `holdfast.connect()`."""
    client = _current.get()
    if client is None:
        raise UsageError(
            "no database to enqueue into; pass tx=<connection or session>, or wrap the code in holdfast.connect(url)"
        )
    return client
