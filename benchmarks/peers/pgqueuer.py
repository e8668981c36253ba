"""pgqueuer, tuned: the asyncpg pool, batches of 100, its own bulk enqueue, and its default (durable) tables."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg
from pgqueuer import AsyncpgPoolDriver, Job, PgQueuer, Queries

from benchmarks.board import Board

BATCH = 100
POOL = {"min_size": 2, "max_size": 10}


class PgqueuerClient:
    """Enqueues by `Queries.enqueue`, with scalars for one and with lists for many."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries

    async def enqueue_one(self, number: int) -> None:
        await self._queries.enqueue("noop", payload(number))

    async def enqueue_step(self, number: int) -> None:
        await self._queries.enqueue("step", payload(number))

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        count = len(numbers)
        await self._queries.enqueue(["noop"] * count, [payload(number) for number in numbers], [0] * count)


class MarkedQueries(Queries):
    """`Queries` that notes when the first claim begins; nothing else is changed."""

    board: Board

    async def dequeue(self, *args: Any, **kwargs: Any) -> Any:
        self.board.claiming()
        return await super().dequeue(*args, **kwargs)


class PgqueuerWorker:
    """`PgQueuer.run`, as its command line runs it."""

    def __init__(self, pool: asyncpg.Pool, board: Board) -> None:
        driver = AsyncpgPoolDriver(pool)
        queries = MarkedQueries(driver)
        queries.board = board
        client = PgqueuerClient(queries)
        self._application = PgQueuer(connection=driver, queries=queries)

        @self._application.entrypoint("noop")
        async def noop(job: Job) -> None:
            board.started(number_of(job))

        @self._application.entrypoint("step")
        async def step(job: Job) -> None:
            number = number_of(job)
            board.started(number)
            if number + 1 < board.steps:
                await client.enqueue_step(number + 1)

    async def run(self) -> None:
        await self._application.run(
            batch_size=BATCH, dequeue_timeout=timedelta(seconds=30), heartbeat_timeout=timedelta(seconds=30)
        )

    def stop(self) -> None:
        self._application.shutdown.set()


def payload(number: int) -> bytes:
    """The same small payload for every peer."""
    return b'{"number": %d}' % number


def number_of(job: Job) -> int:
    """The payload read back."""
    assert job.payload is not None
    number: int = json.loads(job.payload)["number"]
    return number


class Pgqueuer:
    """See `benchmarks.peers.Peer`."""

    name = "pgqueuer"
    packages = ("pgqueuer", "asyncpg")
    settings = f"AsyncpgPoolDriver (pool 2 to 10), batch_size={BATCH}, unlimited tasks, default durability"
    slow = False
    unfinished = "SELECT EXISTS (SELECT FROM pgqueuer)"
    heartbeat = None  # it beats for running jobs only
    can_copy = False
    can_block = False

    async def prepare(self, url: str) -> None:
        connection = await asyncpg.connect(url)
        await Queries.from_asyncpg_connection(connection).install()
        await connection.close()

    @asynccontextmanager
    async def client(self, url: str) -> AsyncIterator[PgqueuerClient]:
        async with asyncpg.create_pool(url, **POOL) as pool:
            yield PgqueuerClient(Queries.from_asyncpg_pool(pool))

    @asynccontextmanager
    async def worker(self, url: str, board: Board) -> AsyncIterator[PgqueuerWorker]:
        async with asyncpg.create_pool(url, **POOL) as pool:
            yield PgqueuerWorker(pool, board)


PEER = Pgqueuer()
