"""Hand-written SQL over asyncpg: what a team writes that wants speed and nothing else. The others are held to it.

Batch claim of 100, fenced batch delete, prepared statements on held connections, three loops in a process so that one
batch is on its way while another runs. No history, no retries, no rescue: a finished job is a deleted row.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import asyncpg

from benchmarks.board import Board

BATCH = 100
LOOPS = 3
CLIENT_CONNECTIONS = 4
POLL_SECONDS = 1.0

SCHEMA = """
    CREATE TABLE job (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        kind text NOT NULL,
        priority smallint NOT NULL DEFAULT 0,
        run_after timestamptz NOT NULL DEFAULT clock_timestamp(),
        attempt_id uuid,
        claimed_at timestamptz,
        payload jsonb NOT NULL
    );
    CREATE INDEX job_to_claim ON job (priority, id) WHERE attempt_id IS NULL;
"""

INSERT_ONE = """
    WITH inserted AS (INSERT INTO job (kind, payload) VALUES ($1, $2) RETURNING id)
    SELECT id, pg_notify('job', '') FROM inserted
"""

INSERT_MANY = "INSERT INTO job (kind, payload) SELECT $1, unnest($2::jsonb[])"

CLAIM = """
    WITH picked AS MATERIALIZED (
        SELECT id FROM job
        WHERE attempt_id IS NULL AND run_after <= clock_timestamp()
        ORDER BY priority, id
        LIMIT $1
        FOR UPDATE SKIP LOCKED
    )
    UPDATE job SET attempt_id = $2, claimed_at = clock_timestamp()
    FROM picked WHERE job.id = picked.id
    RETURNING job.id, job.kind, job.payload
"""

FINISH = """
    DELETE FROM job USING unnest($1::bigint[]) AS done (id)
    WHERE job.id = done.id AND job.attempt_id = $2
    RETURNING job.id
"""


class RawClient:
    """Held connections, each with its prepared statements; a task takes one, uses it and puts it back."""

    def __init__(self, connections: Sequence[asyncpg.Connection]) -> None:
        self._idle: asyncio.LifoQueue[asyncpg.Connection] = asyncio.LifoQueue()
        for connection in connections:
            self._idle.put_nowait(connection)

    async def enqueue_one(self, number: int) -> None:
        await self._insert("noop", number)

    async def enqueue_step(self, number: int) -> None:
        await self._insert("step", number)

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        connection = await self._idle.get()
        try:
            async with connection.transaction():
                await connection.execute(INSERT_MANY, "noop", [payload(number) for number in numbers])
                await connection.execute("NOTIFY job")
        finally:
            self._idle.put_nowait(connection)

    async def copy_many(self, numbers: Sequence[int]) -> None:
        connection = await self._idle.get()
        try:
            records = [("noop", payload(number)) for number in numbers]
            async with connection.transaction():
                await connection.copy_records_to_table("job", records=records, columns=["kind", "payload"])
                await connection.execute("NOTIFY job")
        finally:
            self._idle.put_nowait(connection)

    async def _insert(self, kind: str, number: int) -> None:
        connection = await self._idle.get()
        try:
            await connection.fetchrow(INSERT_ONE, kind, payload(number))  # asyncpg prepares it once per connection
        finally:
            self._idle.put_nowait(connection)


class RawWorker:
    """Three loops of claim, run, finish. A notification wakes the loops that found nothing."""

    def __init__(self, connections: Sequence[asyncpg.Connection], client: RawClient, board: Board) -> None:
        self._connections, self._client, self._board = connections, client, board
        self._stopping = False
        self._woken = asyncio.Event()

    def wake(self, *_: object) -> None:
        """Called by asyncpg for each notification."""
        self._woken.set()

    def stop(self) -> None:
        self._stopping = True
        self._woken.set()

    async def run(self) -> None:
        await asyncio.gather(*(self._loop(connection) for connection in self._connections))

    async def _loop(self, connection: asyncpg.Connection) -> None:
        claim, finish = await connection.prepare(CLAIM), await connection.prepare(FINISH)
        while not self._stopping:
            self._woken.clear()
            attempt_id = uuid4()
            self._board.claiming()
            jobs = await claim.fetch(BATCH, attempt_id)
            if not jobs:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._woken.wait(), POLL_SECONDS)
                continue
            for job in jobs:
                await self._handle(job)
            await self._finish(finish, jobs, attempt_id)

    async def _handle(self, job: asyncpg.Record) -> None:
        number = json.loads(job["payload"])["number"]
        if job["kind"] == "noop":
            await noop(self._board, number)
        else:
            await step(self._board, number, self._client.enqueue_step)

    async def _finish(self, finish: Any, jobs: list[asyncpg.Record], attempt_id: UUID) -> None:
        done = await finish.fetch([job["id"] for job in jobs], attempt_id)
        if len(done) != len(jobs):
            raise RuntimeError(f"{len(jobs) - len(done)} jobs of a batch were not ours any more")


async def noop(board: Board, number: int) -> None:
    """The job that costs nothing."""
    board.started(number)


async def step(board: Board, number: int, enqueue_step: Callable[[int], Awaitable[None]]) -> None:
    """The job that starts the next one."""
    board.started(number)
    if number + 1 < board.steps:
        await enqueue_step(number + 1)


def payload(number: int) -> str:
    """The same small payload for every peer."""
    return f'{{"number": {number}}}'


class Raw:
    """See `benchmarks.peers.Peer`."""

    name = "raw"
    packages = ("asyncpg",)
    settings = f"asyncpg, held connections, prepared statements, claim {BATCH} and fenced DELETE in batches, {LOOPS} loops"
    slow = False
    unfinished = "SELECT EXISTS (SELECT FROM job)"
    heartbeat = None
    can_copy = True
    can_block = False

    async def prepare(self, url: str) -> None:
        connection = await asyncpg.connect(url)
        await connection.execute(SCHEMA)
        await connection.close()

    @asynccontextmanager
    async def client(self, url: str) -> AsyncIterator[RawClient]:
        async with connected(url, CLIENT_CONNECTIONS) as connections:
            yield RawClient(connections)

    @asynccontextmanager
    async def worker(self, url: str, board: Board) -> AsyncIterator[RawWorker]:
        async with self.client(url) as client, connected(url, LOOPS + 1) as (listener, *connections):
            worker = RawWorker(connections, client, board)
            await listener.add_listener("job", worker.wake)
            yield worker


@asynccontextmanager
async def connected(url: str, count: int) -> AsyncIterator[list[asyncpg.Connection]]:
    """That many connections, closed at the end."""
    connections = [await asyncpg.connect(url) for _ in range(count)]
    try:
        yield connections
    finally:
        for connection in connections:
            await connection.close()


PEER = Raw()
