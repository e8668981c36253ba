"""The client: enqueue, read and control jobs. Called by: web routes, scripts and the command line.

`async with holdfast.connect(url):` opens a small connection pool. Inside the block, `render.enqueue(...)` uses it if it is not
given a transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import psycopg
from psycopg_pool import AsyncConnectionPool

from holdfast.database.pool import pool, require_reachable
from holdfast.database.statements import NO_SCHEMA, not_migrated
from holdfast.errors import UsageError
from holdfast.jobs import cancel, control, given, pipelines
from holdfast.jobs.current import made_current
from holdfast.jobs.enqueue import NOTIFY, enqueue, enqueue_many, enqueue_payloads
from holdfast.jobs.kinds import job_by_name
from holdfast.jobs.model import Enqueued, JobId, NewJob, refuse_no_job
from holdfast.jobs.periodic.client import Periodic
from holdfast.jobs.prune import prune
from holdfast.jobs.recover import recover
from holdfast.jobs.rerun import rerun
from holdfast.jobs.states import State
from holdfast.jobs.views import explain, history, logs, read
from holdfast.jobs.views.workers import require_known_kind
from holdfast.jobs.wait import Waiting

HINT_EVERY = 0.01  # seconds


class Client:
    """The everyday calls on a pool of connections; each is a transaction.

    A notification to idle workers costs more than the insert, because commits with NOTIFY wait for each other. So the first
    enqueue notifies at once, and those that follow within `HINT_EVERY` share one notification.
    """

    def __init__(self, connections: AsyncConnectionPool[Any]) -> None:
        self.pool = connections
        self._no_hint_until = 0.0
        self._hints: set[str] = set()  # queues whose workers are not notified yet
        self._sending_hints: asyncio.Task[None] | None = None
        self._waiting = Waiting(connections)
        self.periodic = Periodic(connections, self._changed)
        self.on_change: Callable[[], None] | None = (
            None  # set by a worker in this process: called after the commit, without a hint
        )

    async def new(
        self, kind: str, arguments: Mapping[str, Any] | None = None, *, allow_unknown: bool = False, **options: Any
    ) -> NewJob:
        """A new job of a kind whose function is not imported, built from its published declaration: for pipelines and bulk.

        Options are the fields of `NewJob`. A kind that no worker has published is refused, unless `allow_unknown`.
        """
        async with self._connection() as conn:
            return await job_by_name(conn, kind, arguments, allow_unknown=allow_unknown, **options)

    async def enqueue(
        self, job: NewJob | str, arguments: Mapping[str, Any] | None = None, *, allow_unknown: bool = False, **options: Any
    ) -> Enqueued:
        """Enqueue one job: made by `kind.new(...)`, or by name, as in `enqueue("invoice.render", {"invoice_id": 7})`."""
        if isinstance(job, str):
            job = await self.new(job, arguments, allow_unknown=allow_unknown, **options)
        elif arguments is not None or options:
            raise UsageError("arguments and options need the name of a kind; a NewJob has its own, use dataclasses.replace")
        refuse_no_job(job)
        hint_now = self._may_hint(job)
        async with self.pool.connection() as conn:
            made = await enqueue(conn, job, hint=hint_now)
        if not hint_now:
            self._hint_later(job.queue)
        self._changed()
        return made

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        """A connection of the pool; `NotMigrated` if the database has no schema. (`enqueue` raises that itself.)"""
        try:
            async with self.pool.connection() as conn:
                yield conn
        except NO_SCHEMA as error:
            raise not_migrated(error) from None

    def _changed(self) -> None:
        if self.on_change is not None:
            self.on_change()

    def _may_hint(self, job: NewJob) -> bool:
        if job.run_after is not None:
            return True
        now = asyncio.get_running_loop().time()
        if now < self._no_hint_until:
            return False
        self._no_hint_until = now + HINT_EVERY
        return True

    def _hint_later(self, queue: str) -> None:
        self._hints.add(queue)
        if self._sending_hints is None or self._sending_hints.done():
            self._sending_hints = asyncio.create_task(self._send_hints())

    async def _send_hints(self) -> None:
        while self._hints:  # more may be added meanwhile
            await asyncio.sleep(HINT_EVERY)
            queues, self._hints = self._hints, set()
            async with self._connection() as conn:
                await conn.execute(NOTIFY, {"queues": sorted(queues)})

    async def settle(self) -> None:
        """Wait until all notifications are sent."""
        if self._sending_hints is not None:
            await self._sending_hints

    async def enqueue_many(self, jobs: Sequence[NewJob]) -> Sequence[Enqueued]:
        """Enqueue many jobs in one transaction, with COPY where possible."""
        async with self._connection() as conn:
            made = await enqueue_many(conn, jobs)
        self._changed()
        return made

    async def enqueue_payloads(self, like: NewJob, payloads: Iterable[str], count: int) -> Sequence[Enqueued]:
        """Enqueue many jobs that differ only in their payload. Call it through `kind.enqueue_many`."""
        async with self._connection() as conn:
            made = await enqueue_payloads(conn, like, payloads, count)
        self._changed()
        return made

    async def enqueue_pipeline(self, pipeline: pipelines.Pipeline) -> Sequence[Enqueued]:
        """Enqueue a pipeline with all its jobs in one transaction."""
        async with self._connection() as conn:
            made = await pipeline.enqueue(conn)
        self._changed()
        return made

    async def wait(
        self, job_id: int, *, timeout: float | timedelta | None = None, raise_on_failure: bool = False
    ) -> read.JobView:
        """Wait until a job has ended; the job, whatever its state. `timeout` in seconds; None: as long as it takes.

        `WaitTimedOut` says why it has not ended, for example that no worker runs its kind. With `raise_on_failure`, a job that
        failed or was cancelled raises `JobFailed`.
        """
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        return await self._waiting.wait(_known(job_id), timeout=seconds, raise_on_failure=raise_on_failure)

    async def get(self, job_id: int) -> read.JobView:
        """The current state of a job."""
        async with self._connection() as conn:
            return await read.get_job(conn, _known(job_id))

    async def list(self, *, limit: int = 50, **filters: Any) -> read.Page:
        """A page of jobs, newest first; filters as in `jobs/views/read.py`."""
        async with self._connection() as conn:
            return await read.list_jobs(conn, limit=limit, **filters)

    async def counts(self) -> dict[State, read.Count]:
        """How many jobs are in each state, exact up to a cap."""
        async with self._connection() as conn:
            return await read.count_states(conn)

    async def explain(self, job_id: int) -> str:
        """Why the job is in its state, in one sentence."""
        async with self._connection() as conn:
            return await explain.explain(conn, _known(job_id))

    async def history(self, job_id: int) -> Sequence[history.Entry]:
        """Every move of a job, oldest first."""
        async with self._connection() as conn:
            return await history.history(conn, _known(job_id))

    async def logs(self, job_id: int, **which: Any) -> Sequence[logs.LogLine]:
        """What its handler has logged, oldest line first; which lines as in `read_lines`."""
        async with self._connection() as conn:
            return await logs.read_lines(conn, _known(job_id), **which)

    async def pipeline(self, pipeline_id: str) -> pipelines.PipelineView:
        """The status of a pipeline and its jobs."""
        async with self._connection() as conn:
            return await pipelines.read_pipeline(conn, pipeline_id)

    async def cancel(self, job_id: int, *, actor: str, reason: str | None = None, force: bool = False) -> State:
        """Cancel a job. A running one gets a cancel request, unless `force`."""
        async with self._connection() as conn:
            return await cancel.cancel(conn, _known(job_id), actor=actor, reason=reason, force=force)

    async def abort(self, pipeline_id: str, *, actor: str, reason: str | None = None) -> int:
        """Cancel all live jobs of a pipeline."""
        async with self._connection() as conn:
            return await cancel.abort(conn, pipeline_id, actor=actor, reason=reason)

    async def recover(self, job_id: int, *, actor: str, reason: str | None = None, grant: int = 1) -> None:
        """Take a job from a worker whose lease has expired; otherwise `NotStale`."""
        async with self._connection() as conn:
            await recover(conn, _known(job_id), actor=actor, reason=reason, grant=grant)
        self._changed()

    async def retry(self, job_id: int, *, actor: str, reason: str | None = None, grant: int = 1) -> None:
        """Run a failed or cancelled job again."""
        async with self._connection() as conn:
            await rerun(conn, _known(job_id), actor=actor, reason=reason, grant=grant)
        self._changed()

    async def pause(
        self, kind: str = control.EVERYTHING, *, actor: str, reason: str | None = None, allow_unknown: bool = False
    ) -> None:
        """Claim no more jobs of this kind until it is resumed. A kind that no worker has published is refused, unless
        `allow_unknown`."""
        control.check(kind, actor, reason)
        async with self._connection() as conn:
            if not allow_unknown:
                await require_known_kind(conn, kind)
            await control.pause(conn, kind, actor=actor, reason=reason)

    async def drain(
        self, kind: str = control.EVERYTHING, *, actor: str, reason: str | None = None, allow_unknown: bool = False
    ) -> None:
        """Accept no new jobs of this kind until it is resumed. A kind that no worker has published is refused, unless
        `allow_unknown`."""
        control.check(kind, actor, reason)
        async with self._connection() as conn:
            if not allow_unknown:
                await require_known_kind(conn, kind)
            await control.drain(conn, kind, actor=actor, reason=reason)

    async def resume(self, kind: str = control.EVERYTHING) -> bool:
        """Undo `pause` and `drain`."""
        async with self._connection() as conn:
            resumed = await control.resume(conn, kind)
        self._changed()
        return resumed

    async def prune(self, *, older_than: timedelta) -> int:
        """Delete jobs that ended more than `older_than` ago."""
        async with self._connection() as conn:
            return await prune(conn, older_than=older_than)


def _known(job_id: object) -> JobId:
    return JobId(given.an_id("job_id", job_id))


@asynccontextmanager
async def connect(url: str, *, most: int = 4) -> AsyncIterator[Client]:
    """Open a client; inside the block `kind.enqueue(...)` uses it. A database that does not answer is an error within 3 s."""
    await require_reachable(url)
    async with pool(url, most=most) as connections:
        client = Client(connections)
        try:
            with made_current(lambda: client):
                yield client
        finally:
            await client.settle()
