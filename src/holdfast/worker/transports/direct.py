"""The transport with a database: the kernel's functions on separate connections. Made by: `Worker`.

Claims, batches of completions and chains have one connection each, which is kept: they follow each other without a pause,
and a pool in between would cost more than some of their statements. Everything else comes from a pool.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any

import psycopg
from psycopg_pool import AsyncConnectionPool

from holdfast.database.listen import ListeningLink
from holdfast.database.pool import Link, pool
from holdfast.errors import UsageError
from holdfast.jobs import begin, effects, kinds, logs, progress, promote
from holdfast.jobs.claim import Found, claim_by_id, claim_plain, claim_tied
from holdfast.jobs.client import Client
from holdfast.jobs.effects import Cleaner, Effect
from holdfast.jobs.finish import complete_plain, finish, resolve_unknown
from holdfast.jobs.model import AttemptId, Claim, JobId, Json, NewJob, WorkerId
from holdfast.jobs.outcome import End
from holdfast.jobs.parents import Parent, read_parents
from holdfast.jobs.pipelines import complete_and_chain
from holdfast.jobs.poll import claim_to_poll, fail_overdue
from holdfast.jobs.renew import Beat, WorkerInfo, register, renew, resign
from holdfast.jobs.rescue import rescue, rescue_worker
from holdfast.jobs.views.watch import ChangeNotifier
from holdfast.telemetry.log import log
from holdfast.worker.options import LARGEST_BATCH
from holdfast.worker.transports.interface import UNREACHABLE, Running, Takes

Borrow = Callable[[], AbstractAsyncContextManager[psycopg.AsyncConnection[Any]]]


class OnConnections:
    """What handlers ask for, on borrowed connections."""

    def __init__(self, borrow: Borrow) -> None:
        self._borrow = borrow

    def connection(self) -> AbstractAsyncContextManager[psycopg.AsyncConnection[Any]]:
        return self._borrow()

    async def begin(self, claim: Claim) -> None:
        async with self._borrow() as conn:
            await begin.begin(conn, claim)

    async def progress(self, claim: Claim, done: float | None, message: str | None) -> None:
        async with self._borrow() as conn:
            await progress.report(conn, claim, progress=done, message=message)

    async def checkpoint(self, claim: Claim) -> None:
        async with self._borrow() as conn:
            await progress.checkpoint(conn, claim)

    async def plan(
        self,
        claim: Claim,
        kind: str,
        *,
        tag: str | None,
        detail: Mapping[str, Any] | None,
        temporary: bool,
        adoptable: bool,
    ) -> Effect:
        async with self._borrow() as conn:
            return await effects.plan(conn, claim, kind, tag=tag, detail=detail, temporary=temporary, adoptable=adoptable)

    async def confirm(self, claim: Claim, effect: Effect, handle: Json) -> Effect:
        async with self._borrow() as conn:
            return await effects.confirm(conn, claim, effect, handle)

    async def left_behind(self, claim: Claim) -> list[Effect]:
        async with self._borrow() as conn:
            return await effects.left_behind(conn, claim)

    async def adopt(self, claim: Claim, effect: Effect, handle: Json) -> Effect:
        async with self._borrow() as conn:
            return await effects.adopt(conn, claim, effect, handle)

    async def parents(self, claim: Claim) -> list[Parent[Any]]:
        async with self._borrow() as conn:
            return await read_parents(conn, claim)


class Direct(OnConnections):
    """A worker that talks to Postgres itself."""

    def __init__(self, url: str, *, most: int = 8) -> None:
        self.largest_batch = LARGEST_BATCH
        self._url = url
        self._claims, self._batches, self._chains = ListeningLink(url), Link(url), Link(url)
        self._second_claims = Link(url)
        self._pool: AsyncConnectionPool[Any] = pool(url, most=max(2, most))
        super().__init__(self._pool.connection)
        self._watchers = ChangeNotifier(self._pool.connection)
        self._client = Client(self._pool)
        self._loop: asyncio.AbstractEventLoop | None = None

    # ------------------------------------------------------------------------------------------------- coming and going

    async def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self._pool.open()

    async def close(self) -> None:
        await self._watchers.close()
        with contextlib.suppress(*UNREACHABLE):  # other workers look by themselves as well
            await self._client.settle()
        for link in (self._claims, self._second_claims, self._batches, self._chains):
            await link.close()
        await self._pool.close()

    async def publish(self, worker: WorkerInfo, declared: Sequence[Mapping[str, Json]]) -> None:
        async with self._claims as conn:
            await kinds.publish(conn, declared, worker=worker.name)

    async def register(self, worker: WorkerInfo, *, lease: timedelta) -> None:
        async with self._claims as conn:
            await register(conn, worker, lease=lease)

    async def resign(self, worker_id: WorkerId) -> None:
        async with self._pool.connection() as conn:
            await resign(conn, worker_id)

    def connections(self) -> dict[str, int]:
        """How many connections of the pool are open, used and waited for."""
        stats = self._pool.get_stats()
        opened = stats.get("pool_size", 0)
        used = opened - stats.get("pool_available", 0)
        return {"open": opened, "used": used, "waited_for": stats.get("requests_waiting", 0)}

    def client(self) -> Client:
        """The everyday calls on our connections, for handlers that enqueue."""
        if asyncio.get_running_loop() is not self._loop:
            raise UsageError(
                "the connections of a worker belong to its event loop, and this runs in another: in a plain function say "
                "ctx.wait(kind.enqueue(...)), or ctx.chain(kind.new(...))"
            )
        return self._client

    def pulse(self) -> DirectPulse:
        return DirectPulse(self._url)

    async def listen(self, wake: Callable[[str], None]) -> None:
        await self._claims.listen(lambda hint: None if self._watchers.receive(hint) else wake(hint))

    def changed(self) -> None:
        """Notify event streams that a job has changed."""
        self._watchers.changed()

    # ------------------------------------------------------------------------------------------------- claiming

    async def claim(self, worker_id: WorkerId, takes: Takes, limit: int) -> Found:
        async with self._second_claims if self._claims.is_busy else self._claims as conn:
            found = await claim_plain(conn, worker_id, kinds=takes.versions, queues=takes.queues, limit=limit, begins=False)
        if found.claims:
            self.changed()
        return found

    async def claim_tied(self, worker_id: WorkerId, ids: list[JobId]) -> list[Claim]:
        async with self._pool.connection() as conn:
            claims = await claim_tied(conn, worker_id, ids, begins=False)
        self.changed()
        return claims

    async def claim_by_id(self, worker_id: WorkerId, takes: Takes, job_id: JobId) -> Claim | None:
        async with self._claims as conn:
            return await claim_by_id(conn, worker_id, job_id, kinds=takes.versions, begins=False)

    async def claim_to_poll(self, worker_id: WorkerId, takes: Takes, limit: int) -> list[Claim]:
        async with self._claims as conn:  # not from the pool: other claims wait for this one, and the pool may be waited for
            overdue = await fail_overdue(conn, worker_id)
            if overdue:
                log.warning("jobs_overdue", jobs=overdue, worker_id=worker_id)
            return await claim_to_poll(conn, worker_id, kinds=takes.versions, queues=takes.queues, limit=limit, begins=False)

    # ------------------------------------------------------------------------------------------------- ending

    async def complete(self, claims: Sequence[Claim], results: Sequence[str | None]) -> set[JobId]:
        async with self._batches as conn:
            completed = await complete_plain(conn, claims, results)
        self.changed()
        return completed

    async def complete_and_chain(self, claim: Claim, result: str | None, child: NewJob) -> Claim | None:
        async with self._for_a_chain() as conn:
            following = await complete_and_chain(conn, claim, result, child, begins=False)
        self.changed()
        return following

    def _for_a_chain(self) -> AbstractAsyncContextManager[psycopg.AsyncConnection[Any]]:
        """A connection that is kept for it, without the cost of a pool; when several chains run at once, the pool as well."""
        return self._pool.connection() if self._chains.is_busy else self._chains

    async def finish(self, claim: Claim, end: End) -> None:
        async with self._pool.connection() as conn:
            await finish(conn, claim, end)
        self.changed()

    async def progress(self, claim: Claim, done: float | None, message: str | None) -> None:
        await super().progress(claim, done, message)
        self.changed()

    async def was_written(self, claim: Claim) -> bool:
        async with self._pool.connection() as conn:
            return await resolve_unknown(conn, claim)

    async def write_logs(self, lines: Sequence[logs.Numbered]) -> set[AttemptId]:
        async with self._pool.connection() as conn:
            return await logs.write(conn, lines)

    # ------------------------------------------------------------------------------------------------- sweeping

    async def promote(self) -> promote.Promoted:
        async with self._pool.connection() as conn:
            return await promote.promote_all_due(conn)

    async def wake_forgotten(self) -> None:
        async with self._pool.connection() as conn:
            await promote.wake_forgotten(conn)

    async def rescue(self, worker: WorkerInfo) -> list[JobId]:
        async with self._pool.connection() as conn:
            return await rescue(conn, actor=worker.name)

    async def rescue_attempt(self, worker: WorkerInfo, claim: Claim, *, cause: str, error: str) -> bool:
        """Release the job of an attempt whose process has died; False if the attempt had ended before."""
        async with self._pool.connection() as conn:
            return bool(
                await rescue_worker(conn, worker.id, cause=cause, error=error, actor=worker.name, attempts=[claim.attempt_id])
            )

    async def release_strays(self, worker: WorkerInfo, strays: Sequence[AttemptId]) -> list[JobId]:
        error = "the answer to its claim was lost"
        async with self._pool.connection() as conn:
            return await rescue_worker(
                conn, worker.id, cause="claim_unanswered", error=error, actor=worker.name, attempts=list(strays), begun=[]
            )

    async def clean(self, cleaners: Mapping[str, Cleaner]) -> int:
        async with self._pool.connection() as conn:
            return await effects.clean(conn, cleaners)


class DirectPulse:
    """The heartbeat's own connection."""

    def __init__(self, url: str) -> None:
        self._link = Link(url)

    async def beat(
        self, worker: WorkerInfo, held: Sequence[Claim], takes: Takes, *, lease: timedelta, running: Sequence[Running] = ()
    ) -> Beat:
        async with self._link as conn:
            beat = await renew(conn, worker.id, held, lease=lease, kinds=takes.versions, queues=takes.queues)
            if running:
                await begin.note_begun(conn, worker.id, running)
            return beat

    async def register(self, worker: WorkerInfo, *, lease: timedelta) -> None:
        async with self._link as conn:
            await register(conn, worker, lease=lease)

    async def close(self) -> None:
        await self._link.close()
