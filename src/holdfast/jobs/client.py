"""A way to the database for code that only enqueues and looks. Called by: web routes, scripts, the command line.

`async with holdfast.connect(url):` opens a small pool and makes it the one that `render.enqueue(...)` uses when it is not
given a transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

from psycopg_pool import AsyncConnectionPool

from holdfast.database.pool import pool
from holdfast.errors import UsageError
from holdfast.jobs import cancel, control, explain, given, history, logs, pipelines, read
from holdfast.jobs.enqueue import NOTIFY, enqueue, enqueue_many, enqueue_payloads
from holdfast.jobs.kinds import job_by_name
from holdfast.jobs.model import Enqueued, JobId, NewJob, refuse_no_job
from holdfast.jobs.prune import prune
from holdfast.jobs.recover import recover
from holdfast.jobs.rerun import rerun
from holdfast.jobs.states import State

_current: ContextVar[Callable[[], Client] | None] = ContextVar("holdfast_client", default=None)
_default: Client | None = None  # requests of a web application are tasks that inherit nothing from the one that started it

HINT_EVERY = 0.01  # seconds


class Client:
    """The everyday calls on a pool of connections; every one is its own transaction.

    Telling idle workers costs more than the insert: commits that notify wait for each other. So the first enqueue tells
    at once, and those that follow within a moment share one hint at its end.
    """

    def __init__(self, connections: AsyncConnectionPool[Any]) -> None:
        self.pool = connections
        self._quiet_until = 0.0
        self._owed: set[str] = set()  # queues that are still to be told
        self._telling: asyncio.Task[None] | None = None
        self.on_change: Callable[[], None] | None = None  # a worker in this process: told after the commit, without a hint

    async def new(
        self, kind: str, arguments: Mapping[str, Any] | None = None, *, allow_unknown: bool = False, **options: Any
    ) -> NewJob:
        """The job of a kind whose function is not here, made as its workers have published it: for pipelines and bulk.

        Options are the fields of `NewJob`. A kind that no worker has published is refused, unless `allow_unknown`.
        """
        async with self.pool.connection() as conn:
            return await job_by_name(conn, kind, arguments, allow_unknown=allow_unknown, **options)

    async def enqueue(
        self, job: NewJob | str, arguments: Mapping[str, Any] | None = None, *, allow_unknown: bool = False, **options: Any
    ) -> Enqueued:
        """Make one job: of `kind.new(...)`, or by the name of a kind, as in `enqueue("invoice.render", {"invoice_id": 7})`."""
        if isinstance(job, str):
            job = await self.new(job, arguments, allow_unknown=allow_unknown, **options)
        elif arguments is not None or options:
            raise UsageError("arguments and options go with the name of a kind; a NewJob has its own, see dataclasses.replace")
        refuse_no_job(job)
        tell_now = self._may_tell(job)
        async with self.pool.connection() as conn:
            made = await enqueue(conn, job, hint=tell_now)
        if not tell_now:
            self._owe(job.queue)
        self._changed()
        return made

    def _changed(self) -> None:
        if self.on_change is not None:
            self.on_change()

    def _may_tell(self, job: NewJob) -> bool:
        if job.run_after is not None:
            return True
        now = asyncio.get_running_loop().time()
        if now < self._quiet_until:
            return False
        self._quiet_until = now + HINT_EVERY
        return True

    def _owe(self, queue: str) -> None:
        self._owed.add(queue)
        if self._telling is None or self._telling.done():
            self._telling = asyncio.create_task(self._tell_later())

    async def _tell_later(self) -> None:
        while self._owed:  # more may be owed while the last are told
            await asyncio.sleep(HINT_EVERY)
            queues, self._owed = self._owed, set()
            async with self.pool.connection() as conn:
                await conn.execute(NOTIFY, {"queues": sorted(queues)})

    async def settle(self) -> None:
        """Wait until every worker that was to be told has been."""
        if self._telling is not None:
            await self._telling

    async def enqueue_many(self, jobs: Sequence[NewJob]) -> Sequence[Enqueued]:
        """Make many jobs in one transaction, by COPY where that can be."""
        async with self.pool.connection() as conn:
            made = await enqueue_many(conn, jobs)
        self._changed()
        return made

    async def enqueue_payloads(self, like: NewJob, payloads: Iterable[str], count: int) -> Sequence[Enqueued]:
        """Make many jobs that differ in nothing but their payload; `kind.enqueue_many` is the way to call it."""
        async with self.pool.connection() as conn:
            made = await enqueue_payloads(conn, like, payloads, count)
        self._changed()
        return made

    async def get(self, job_id: JobId) -> read.JobView:
        """One job as it is now."""
        async with self.pool.connection() as conn:
            return await read.get_job(conn, _known(job_id))

    async def list(self, *, limit: int = 50, **filters: Any) -> read.Page:
        """A page of jobs, newest first; filters as in `jobs/read.py`."""
        async with self.pool.connection() as conn:
            return await read.list_jobs(conn, limit=limit, **filters)

    async def counts(self) -> dict[State, read.Count]:
        """How many jobs are in each state, exact up to a cap."""
        async with self.pool.connection() as conn:
            return await read.count_states(conn)

    async def explain(self, job_id: JobId) -> str:
        """Why it is where it is, in one sentence."""
        async with self.pool.connection() as conn:
            return await explain.explain(conn, _known(job_id))

    async def history(self, job_id: JobId) -> Sequence[history.Entry]:
        """Every move of a job, oldest first."""
        async with self.pool.connection() as conn:
            return await history.history(conn, _known(job_id))

    async def logs(self, job_id: JobId, **which: Any) -> Sequence[logs.LogLine]:
        """What its handler has logged, oldest line first; which lines as in `jobs/logs.py`."""
        async with self.pool.connection() as conn:
            return await logs.read_lines(conn, _known(job_id), **which)

    async def pipeline(self, pipeline_id: str) -> pipelines.PipelineView:
        """What the jobs of a pipeline say about it."""
        async with self.pool.connection() as conn:
            return await pipelines.read_pipeline(conn, pipeline_id)

    async def cancel(self, job_id: JobId, *, actor: str, reason: str | None = None, force: bool = False) -> State:
        """Stop a job; a running one is asked, unless `force`."""
        async with self.pool.connection() as conn:
            return await cancel.cancel(conn, _known(job_id), actor=actor, reason=reason, force=force)

    async def abort(self, pipeline_id: str, *, actor: str, reason: str | None = None) -> int:
        """Stop everything of a pipeline that is still alive."""
        async with self.pool.connection() as conn:
            return await cancel.abort(conn, pipeline_id, actor=actor, reason=reason)

    async def recover(self, job_id: JobId, *, actor: str, reason: str | None = None, grant: int = 1) -> None:
        """Take a job from a holder that went silent; `NotStale` if it did not."""
        async with self.pool.connection() as conn:
            await recover(conn, _known(job_id), actor=actor, reason=reason, grant=grant)
        self._changed()

    async def rerun(self, job_id: JobId, *, actor: str, reason: str | None = None, grant: int = 1) -> None:
        """Run a failed or cancelled job once more."""
        async with self.pool.connection() as conn:
            await rerun(conn, _known(job_id), actor=actor, reason=reason, grant=grant)
        self._changed()

    async def pause(self, kind: str = control.EVERYTHING, *, actor: str, reason: str | None = None) -> None:
        """Claim no more jobs of this kind until it is resumed."""
        async with self.pool.connection() as conn:
            await control.pause(conn, kind, actor=actor, reason=reason)

    async def drain(self, kind: str = control.EVERYTHING, *, actor: str, reason: str | None = None) -> None:
        """Take no new jobs of this kind until it is resumed."""
        async with self.pool.connection() as conn:
            await control.drain(conn, kind, actor=actor, reason=reason)

    async def resume(self, kind: str = control.EVERYTHING) -> bool:
        """Undo `pause` and `drain`."""
        async with self.pool.connection() as conn:
            resumed = await control.resume(conn, kind)
        self._changed()
        return resumed

    async def prune(self, *, older_than: timedelta) -> int:
        """Remove jobs that ended more than this long ago."""
        async with self.pool.connection() as conn:
            return await prune(conn, older_than=older_than)


def _known(job_id: object) -> JobId:
    return JobId(given.an_id("job_id", job_id))


@asynccontextmanager
async def connect(url: str, *, most: int = 4) -> AsyncIterator[Client]:
    """Open a client; inside the block `kind.enqueue(...)` uses it."""
    async with pool(url, most=most) as connections:
        client = Client(connections)
        try:
            with made_current(lambda: client):
                yield client
        finally:
            await client.settle()


def make_current(client: Callable[[], Client]) -> None:
    """From here on this gives the client of `kind.enqueue(...)` in this task, and in the tasks and threads that it starts.

    A function and no client: where there is none, it says when it is asked what to do instead.
    """
    _current.set(client)


@contextmanager
def made_current(client: Callable[[], Client]) -> Iterator[None]:
    """The same for the length of a block."""
    token = _current.set(client)
    try:
        yield
    finally:
        _current.reset(token)


def make_default(client: Client | None) -> Client | None:
    """Make it the client of code that no `holdfast.connect()` surrounds, in the whole process; the one that was it before."""
    global _default
    before, _default = _default, client
    return before


def current_client() -> Client:
    """The client of the surrounding `holdfast.connect()` or worker, or else the one of this process."""
    give = _current.get()
    client = _default if give is None else give()
    if client is None:
        raise UsageError(
            "no database to enqueue into; pass tx=<connection or session>, or wrap the code in holdfast.connect(url)"
        )
    return client
