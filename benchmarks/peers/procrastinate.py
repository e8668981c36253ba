"""procrastinate with its psycopg connector, 100 jobs at a time, and its batch call for bulk enqueue."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from procrastinate import App, PsycopgConnector
from procrastinate.types import JSONDict

from benchmarks.board import Board

CONCURRENCY = 100
POOL_SIZE = 20


class ProcrastinateClient:
    """Enqueues by `defer_async`, and by `batch_defer_async` for many."""

    def __init__(self, app: App) -> None:
        self._noop, self._step = app.configure_task("noop"), app.configure_task("step")

    async def enqueue_one(self, number: int) -> None:
        await self._noop.defer_async(number=number)

    async def enqueue_step(self, number: int) -> None:
        await self._step.defer_async(number=number)

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        arguments: list[JSONDict] = [{"number": number} for number in numbers]
        await self._noop.batch_defer_async(*arguments)


class ProcrastinateWorker:
    """`App.run_worker_async` in this event loop."""

    def __init__(self, app: App, board: Board) -> None:
        self._app = app
        self._running: asyncio.Task[None] | None = None
        client = ProcrastinateClient(app)
        fetch_job = app.job_manager.fetch_job

        async def marked_fetch_job(*args: Any, **kwargs: Any) -> Any:
            board.claiming()
            return await fetch_job(*args, **kwargs)

        app.job_manager.fetch_job = marked_fetch_job  # type: ignore[method-assign]  # only notes the first claim

        @app.task(name="noop")
        async def noop(number: int) -> None:
            board.started(number)

        @app.task(name="step")
        async def step(number: int) -> None:
            board.started(number)
            if number + 1 < board.steps:
                await client.enqueue_step(number + 1)

    async def run(self) -> None:
        self._running = asyncio.create_task(
            self._app.run_worker_async(concurrency=CONCURRENCY, listen_notify=True, install_signal_handlers=False)
        )
        await asyncio.wait({self._running})
        if not self._running.cancelled():
            self._running.result()

    def stop(self) -> None:
        if self._running is not None:
            self._running.cancel()  # its documented way to stop: the worker ends its jobs first


class Procrastinate:
    """See `benchmarks.peers.Peer`."""

    name = "procrastinate"
    packages = ("procrastinate", "psycopg", "psycopg-pool")
    settings = f"PsycopgConnector (pool up to {POOL_SIZE}), concurrency={CONCURRENCY}, listen_notify, jobs kept (default)"
    slow = True
    unfinished = "SELECT EXISTS (SELECT FROM procrastinate_jobs WHERE status IN ('todo', 'doing'))"
    heartbeat = re.compile(r"procrastinate_update_heartbeat")
    can_copy = False
    can_block = False

    async def prepare(self, url: str) -> None:
        async with opened(url) as app:
            await app.schema_manager.apply_schema_async()

    @asynccontextmanager
    async def client(self, url: str) -> AsyncIterator[ProcrastinateClient]:
        async with opened(url) as app:
            yield ProcrastinateClient(app)

    @asynccontextmanager
    async def worker(self, url: str, board: Board) -> AsyncIterator[ProcrastinateWorker]:
        async with opened(url) as app:
            yield ProcrastinateWorker(app, board)


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[App]:
    """An app whose pool is open."""
    app = App(connector=PsycopgConnector(conninfo=url, max_size=POOL_SIZE))
    async with app.open_async():
        yield app


PEER = Procrastinate()
