"""What a handler gets: its job, a voice, and the places where it learns that it should stop. Made by: `execute.py`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar

import psycopg

from holdfast.crashpoints import crashpoint
from holdfast.errors import CancelRequested, ClaimLost, ShutdownRequested
from holdfast.jobs.effects import Effect
from holdfast.jobs.model import Claim, Json, NewJob
from holdfast.jobs.outcome import refuse_no_jobs
from holdfast.telemetry.kept import job_log
from holdfast.worker.transport import ForHandlers

T = TypeVar("T")


class Lease:
    """When this worker must stop its side effects, by its own monotonic clock, and why a claim is no longer good."""

    stopping = False  # the worker was told to end
    lapses = 0  # how often it was over before it was renewed: what was answered before that may have changed since

    def __init__(self, seconds: float) -> None:
        self.until = time.monotonic() + seconds

    def extend(self, until: float) -> None:
        """It is good until then at least: whoever renews it says so, and there may be more than one."""
        if self.is_over:
            self.lapses += 1  # first: whoever sees that it is good again must see this too
        self.until = max(self.until, until)

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.until

    def begin(self, job_id: int) -> None:
        """A handler is about to be called. Told to whoever keeps this worker, if anybody does."""

    def end(self, job_id: int) -> None:
        """It has come to its end."""


class Context:
    """The handler's side of one attempt."""

    def __init__(self, claim: Claim, transport: ForHandlers, lease: Lease, *, ends_at_shutdown: bool = False) -> None:
        self.job = claim
        self.children: list[NewJob] = []
        self.join: NewJob | None = None
        self._transport = transport
        self._lease = lease
        self._ends_at_shutdown = ends_at_shutdown
        self._lost = False
        self._asked_to_stop: str | None = None
        self.allowed_at, self.allowed_until = 0.0, lease.until  # when it was last told that it may, and until when

    @property
    def attempt_id(self) -> str:
        """The fence of this attempt: put it into every path, tag and label that the handler makes outside."""
        return self.job.attempt_id

    @property
    def fence_token(self) -> int:
        """Rises with every claim: for systems outside that can refuse an older one."""
        return self.job.fence_token

    @property
    def stopping(self) -> bool:
        """Whether the worker was told to end: what is not done when its grace is over is cut off. A long handler looks at
        it between two steps and comes to its end early, for example with `Snooze`."""
        return self._lease.stopping

    @property
    def log(self) -> Any:
        """A structlog logger, `ctx.log.info("rows loaded", rows=5)`: its lines are kept, for `holdfast job logs`."""
        return job_log

    async def progress(self, done: float | None = None, message: str | None = None) -> None:
        """Tell people how far it is (0 to 1). Raises like a checkpoint."""
        crashpoint("run.mid")
        self._raise_if_known()
        lapses = self._lease.lapses
        await self._transport.progress(self.job, done, message)
        await self._raise_if_stale(lapses)

    async def checkpoint(self) -> None:
        """Before a side effect: raises `ClaimLost` when the attempt was replaced, `CancelRequested` when asked to stop.

        For a kind with `on_shutdown="fail"` also `ShutdownRequested` once the worker was told to end. Any other kind may use
        its grace to come to its end, and learns of it by `stopping`.
        """
        crashpoint("run.mid")
        self._raise_if_known()
        lapses = self._lease.lapses
        await self._transport.checkpoint(self.job)
        await self._raise_if_stale(lapses)

    @asynccontextmanager
    async def effect(
        self,
        kind: str,
        *,
        tag: str | None = None,
        detail: Mapping[str, Any] | None = None,
        temporary: bool = False,
        adoptable: bool = False,
    ) -> AsyncIterator[PlannedEffect]:
        """Make something outside: it is written down first, and cleaned up if this attempt does not end well.

        async with ctx.effect("trino.query") as query:
            query.made(await engine.submit(sql, tag=query.tag))
        """
        self._raise_if_known()
        lapses = self._lease.lapses
        crashpoint("submit.before_intent")
        planned = await self._transport.plan(self.job, kind, tag=tag, detail=detail, temporary=temporary, adoptable=adoptable)
        crashpoint("submit.after_intent")
        await self._raise_if_stale(lapses)
        made = PlannedEffect(planned)
        yield made
        crashpoint("submit.after_reply_before_persist")
        if made.handle is not None:
            await self._transport.confirm(self.job, planned, made.handle)

    def connection(self) -> AbstractAsyncContextManager[psycopg.AsyncConnection[Any]]:
        """A connection of the worker, in autocommit, for the length of a block: `async with ctx.connection() as conn`.

        What must commit together with the end of the job belongs into `Done(publish=…)` instead. A remote worker has none.
        """
        return self._transport.connection()

    async def left_behind(self) -> list[Effect]:
        """What earlier attempts of this job may have made: look each up outside by its tag before making it again."""
        return await self._transport.left_behind(self.job)

    async def adopt(self, effect: Effect, handle: Json = None) -> Effect:
        """Take over what an earlier attempt made."""
        return await self._transport.adopt(self.job, effect, handle)

    def chain(self, *jobs: NewJob, join: NewJob | None = None) -> None:
        """Jobs that follow when this one completes, in the same transaction; `join` waits for all of them."""
        refuse_no_jobs(jobs, join)
        self.children += jobs
        self.join = join or self.join

    def lose(self) -> None:
        """The worker learned that somebody else has this job now."""
        self._lost = True

    def ask_to_stop(self, reason: str) -> None:
        """The worker learned that somebody wants this job to stop."""
        self._asked_to_stop = reason

    async def _raise_if_stale(self, lapses: int) -> None:
        """The answer may be old: a process that was frozen reads it when its lease is long over, and perhaps good again since
        its heartbeat thread woke up first. Whoever rescued in between has the job, so the question is asked once more."""
        self._raise_if_known()
        if self._lease.lapses != lapses:
            await self.checkpoint()

    def _raise_if_known(self) -> None:
        now, until = time.monotonic(), self._lease.until
        if self._lost or now >= until:
            raise ClaimLost(self.job.id, self.job.attempt_id, "checkpoint")
        if self._asked_to_stop is not None:
            raise CancelRequested(self.job.id, self._asked_to_stop)
        if self._ends_at_shutdown and self._lease.stopping:
            raise ShutdownRequested(self.job.id)
        self.allowed_at, self.allowed_until = now, until


class PlannedEffect:
    """Something that is about to exist outside."""

    def __init__(self, effect: Effect) -> None:
        self.tag = effect.tag
        self.handle: Json = None

    def made(self, handle: Json) -> None:
        """It exists now; this is how to reach it."""
        self.handle = handle


class SyncContext:
    """The same for a handler that is a plain function and runs in a thread: every call waits for its answer."""

    def __init__(self, context: Context, loop: asyncio.AbstractEventLoop) -> None:
        self._context, self._loop = context, loop
        self.job = context.job
        self.attempt_id = context.attempt_id
        self.fence_token = context.fence_token

    @property
    def stopping(self) -> bool:
        """Whether the worker was told to end: a long handler looks at it between two steps and comes to its end early."""
        return self._context.stopping

    @property
    def log(self) -> Any:
        """A structlog logger whose lines are kept with the job."""
        return self._context.log

    def progress(self, done: float | None = None, message: str | None = None) -> None:
        """Tell people how far it is (0 to 1). Raises like a checkpoint."""
        self._wait(self._context.progress(done, message))

    def checkpoint(self) -> None:
        """Before a side effect: raises when the attempt was replaced or asked to stop."""
        self._wait(self._context.checkpoint())

    def chain(self, *jobs: NewJob, join: NewJob | None = None) -> None:
        """Jobs that follow when this one completes."""
        self._context.chain(*jobs, join=join)

    def wait(self, work: Awaitable[T]) -> T:
        """Wait for anything else of the asynchronous context, such as `ctx.wait(ctx.context.left_behind())`."""
        return self._wait(work)

    @property
    def context(self) -> Context:
        return self._context

    def _wait(self, work: Awaitable[T]) -> T:
        async def run() -> T:
            return await work

        coroutine: Coroutine[Any, Any, T] = run()
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()
