"""The context of a handler: its job, progress and logs, effects, and the checks whether it should stop. Made by:
`attempt.py`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar, overload

import psycopg
import pydantic

from holdfast.crashpoints import crashpoint
from holdfast.errors import CancelRequested, ClaimLost, PayloadInvalid, ShutdownRequested
from holdfast.jobs.effects import Effect
from holdfast.jobs.model import Claim, Json, NewJob
from holdfast.jobs.outcome import refuse_no_jobs
from holdfast.jobs.parents import Parent
from holdfast.jobs.states import State
from holdfast.telemetry.kept import job_log
from holdfast.worker.transports.interface import ForHandlers

T = TypeVar("T")


class Lease:
    """Until when this worker may have side effects, by its monotonic clock."""

    stopping = False  # the worker is shutting down
    lapses = 0  # how often it expired before it was renewed: answers from before may be out of date

    def __init__(self, seconds: float) -> None:
        self.until = time.monotonic() + seconds

    def extend(self, until: float) -> None:
        """It was renewed until then. There may be more than one that renews it."""
        if self.is_over:
            self.lapses += 1  # first: a thread that sees the lease valid again must see this, too
        self.until = max(self.until, until)

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.until

    def begin(self, fence_token: int) -> None:
        """The handler of this attempt is about to be called. An executor notes it for its keeper."""

    def end(self, fence_token: int) -> None:
        """The attempt has ended."""


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
        self.allowed_at, self.allowed_until = 0.0, lease.until  # the last check that allowed side effects, and until when

    @property
    def attempt_id(self) -> str:
        """The fence of this attempt: put it into every path, tag and label that the handler makes outside."""
        return self.job.attempt_id

    @property
    def fence_token(self) -> int:
        """Rises with every claim: for external systems that can refuse an older one."""
        return self.job.fence_token

    @property
    def stopping(self) -> bool:
        """Whether the worker is shutting down: a handler that runs beyond the grace period is cut off. A long handler checks
        this between two steps and returns early, for example with `Snooze`."""
        return self._lease.stopping

    @property
    def log(self) -> Any:
        """A structlog logger, `ctx.log.info("rows loaded", rows=5)`: its lines are kept, for `holdfast job logs`."""
        return job_log

    async def progress(self, done: float | None = None, message: str | None = None) -> None:
        """Report progress, from 0 to 1. Raises like a checkpoint."""
        crashpoint("run.mid")
        self._raise_if_known()
        lapses = self._lease.lapses
        await self._transport.progress(self.job, done, message)
        await self._raise_if_stale(lapses)

    async def checkpoint(self) -> None:
        """Before a side effect: raises `ClaimLost` when the attempt was replaced, `CancelRequested` when asked to stop.

        For a kind with `on_shutdown="fail"` also `ShutdownRequested` once the worker is shutting down. Any other kind may use
        the grace period to finish; `stopping` says so.
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
        """Make something in an external system: it is recorded first, and cleaned up if this attempt does not succeed.

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
        """A connection of the worker, in autocommit, inside a block: `async with ctx.connection() as conn`.

        For a write that must commit together with the end of the job, use `Done(publish=…)`. A remote worker has no connection.
        """
        return self._transport.connection()

    async def left_behind(self) -> list[Effect]:
        """The effects that earlier attempts of this job may have made: look up each by its tag before making it again."""
        return await self._transport.left_behind(self.job)

    async def adopt(self, effect: Effect, handle: Json = None) -> Effect:
        """Take over an effect of an earlier attempt."""
        return await self._transport.adopt(self.job, effect, handle)

    @overload
    async def parents(self) -> list[Parent[Any]]: ...
    @overload
    async def parents(self, of: type[T]) -> list[Parent[T | None]]: ...
    async def parents(self, of: Any = None) -> list[Parent[Any]]:
        """The jobs that this one waited for, in the order of `after` or `then`, with their results; without such, its parent.

        `of` is the type of the results: each is validated, as arguments are. At most 8 MiB of results are read.
        """
        found = await self._transport.parents(self.job)
        if of is None:
            return found
        checker = pydantic.TypeAdapter(of)
        try:
            return [one._replace(result=checker.validate_python(one.result)) if one.state == State.COMPLETED else one
                    for one in found]  # fmt: skip
        except pydantic.ValidationError as error:
            raise PayloadInvalid(f"the result of a parent of job {self.job.id} is not a {of}: {error}") from None

    def chain(self, *jobs: NewJob, join: NewJob | None = None) -> None:
        """Jobs that follow when this one completes, in the same transaction; `join` waits for all of them."""
        refuse_no_jobs(jobs, join)
        self.children += jobs
        self.join = join or self.join

    def lose(self) -> None:
        """Another worker has this job now."""
        self._lost = True

    def ask_to_stop(self, reason: str) -> None:
        """The job was asked to stop."""
        self._asked_to_stop = reason

    async def _raise_if_stale(self, lapses: int) -> None:
        """Check again if the lease expired since the request: a process that was frozen may read an old answer. Its lease may
        look valid, because the heartbeat thread renewed it first, while another worker has rescued the job in between."""
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
    """An effect that is about to be made in an external system."""

    def __init__(self, effect: Effect) -> None:
        self.tag = effect.tag
        self.handle: Json = None

    def made(self, handle: Json) -> None:
        """It exists now; `handle` is its id in the external system."""
        self.handle = handle


class SyncContext:
    """The context of a handler that is a plain function and runs in a thread: every call blocks until it is answered."""

    def __init__(self, context: Context, loop: asyncio.AbstractEventLoop) -> None:
        self._context, self._loop = context, loop
        self.job = context.job
        self.attempt_id = context.attempt_id
        self.fence_token = context.fence_token

    @property
    def stopping(self) -> bool:
        """Whether the worker is shutting down: a long handler checks this between two steps and returns early."""
        return self._context.stopping

    @property
    def log(self) -> Any:
        """A structlog logger whose lines are kept with the job."""
        return self._context.log

    def progress(self, done: float | None = None, message: str | None = None) -> None:
        """Report progress, from 0 to 1. Raises like a checkpoint."""
        self._wait(self._context.progress(done, message))

    def checkpoint(self) -> None:
        """Before a side effect: raises when the attempt was replaced or asked to stop."""
        self._wait(self._context.checkpoint())

    @overload
    def parents(self) -> list[Parent[Any]]: ...
    @overload
    def parents(self, of: type[T]) -> list[Parent[T | None]]: ...
    def parents(self, of: Any = None) -> list[Parent[Any]]:
        """The jobs that this one waited for, with their results."""
        return self._wait(self._context.parents(of))

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
