"""One attempt, top to bottom: claim, context, handler, outcome, write. Called by: the worker (`loop.py`), which starts the
lanes.

    run_lane      takes one claim after another from a queue
    run           one attempt: everything below, in this order
    _run_handler  in this process or in a child process; a lost claim and a cancelled job end here
    run_handler   makes the context and the arguments, calls the function, and decides the outcome (`jobs/outcome.py`)
    Outcomes      writes the outcome: a plain completion with the next batch, everything else in its own transaction, which
                  may claim the next step of a chain (`outcome_writer.py`)

`ClaimLost` at any step means that another worker has the job: nothing is written then.
"""

from __future__ import annotations

import asyncio
import functools
import json
import time
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.crashpoints import crashpoint
from holdfast.database.pool import is_permanent
from holdfast.errors import ClaimLost, PayloadInvalid, UnknownKind
from holdfast.jobs.client import Client
from holdfast.jobs.current import make_current
from holdfast.jobs.model import AttemptId, Claim, JobId
from holdfast.jobs.outcome import Done, End, decide, given_back
from holdfast.jobs.payload import to_json
from holdfast.jobs.states import Move, State
from holdfast.telemetry import fields, kept
from holdfast.telemetry.durations import ran
from holdfast.telemetry.log import log
from holdfast.telemetry.trace import begin
from holdfast.threads import forks, in_thread, leave_if_forked
from holdfast.worker.context import Context, Lease, SyncContext
from holdfast.worker.isolated.parent import Isolated, IsolatedAttempt
from holdfast.worker.kinds import Job
from holdfast.worker.lanes import Lanes, RunningAttempt
from holdfast.worker.log_buffer import LogBuffer
from holdfast.worker.outcome_writer import OutcomeWriter, report_stale_write
from holdfast.worker.prefetch import Prefetch
from holdfast.worker.retries import retry_forever
from holdfast.worker.transports.interface import UNREACHABLE, Transport

MakeContext = Callable[[Claim], Context]


@dataclass(frozen=True, slots=True)
class Environment:
    """What the attempts of one worker share."""

    worker: str  # its name, for logs
    kinds: Mapping[str, Job[..., Any]]
    transport: Transport
    lease: Lease
    client: Callable[[], Client]  # for handlers that enqueue
    isolated: Isolated | None = None  # child processes, where there is a database
    log_buffer: LogBuffer | None = None  # None: log lines of handlers are not stored


class Attempts:
    """Runs the attempts of one worker."""

    def __init__(self, environment: Environment, lanes: Lanes, prefetch: Prefetch, writer: OutcomeWriter) -> None:
        self._environment, self._lanes, self._prefetch = environment, lanes, prefetch
        self._kinds, self._lease = environment.kinds, environment.lease
        self._outcomes = Outcomes(environment, lanes, prefetch, writer)
        self.completions = self._outcomes.completions
        self._logged: Container[AttemptId] = () if environment.log_buffer is None else environment.log_buffer.attempts

    async def run_lane(self) -> None:
        """A lane for jobs: run one claim after another until the worker stops."""
        lane, queue = self._prepare_lane(), self._lanes.jobs
        while (claim := await queue.take()) is not None:
            following: Claim | None = claim
            while following is not None:  # the next step of a chain stays in this lane
                following = await self.run(following, lane)

    async def run_poll_lane(self) -> None:
        """A lane for polls of external engines."""
        lane, queue = self._prepare_lane(), self._lanes.polls
        while (claim := await queue.take()) is not None:
            following = await self.run(claim, lane, in_poll_lane=True)
            if following is not None:  # the next step of a chain is a job like any other
                self._lanes.jobs.add([following])

    def _prepare_lane(self) -> asyncio.Task[Any] | None:
        """Set the context variables that all handlers of a lane inherit: once for the lane, not for every job."""
        fields.of_worker(self._environment.worker)
        kept.into(None if self._environment.log_buffer is None else self)
        make_current(self._environment.client)
        return asyncio.current_task()

    # ------------------------------------------------------------------------------------------------- one attempt

    async def run(self, claim: Claim, lane: asyncio.Task[Any] | None, *, in_poll_lane: bool = False) -> Claim | None:
        """Run one attempt. Returns the claim of the next step if it was claimed together with the end."""
        kind, started, end, seconds = self._kinds.get(claim.kind), time.perf_counter(), None, None
        running = RunningAttempt(claim, lane, started, kind is not None and kind.is_async, in_poll_lane)
        self._lanes.begin(running)
        fields.of_attempt(claim)
        self._lease.begin(claim.fence_token)
        try:
            end = await self._run_handler(kind, running)
            running.is_ending = True  # from here on nothing may interrupt the write
            seconds = time.perf_counter() - started
            ran.observe((claim.kind, _label(running, end)), seconds)
            if self._logged and claim.attempt_id in self._logged:  # a job that logs nothing costs one lookup
                assert self._environment.log_buffer is not None
                await self._environment.log_buffer.finish(claim)  # before the end: after it the fence would refuse the lines
            following = None
            if end is not None and not self._outcomes.collect(claim, end):
                following, seconds = await self._outcomes.write(claim, end), None
            self._lease.end(claim.fence_token)  # not after an exception: a job that ends this process must count as begun
            return following
        finally:
            if running.span is not None:
                running.span.end(_label(running, end), None if end is None else end.error)
            self._lanes.end(running)
            if not in_poll_lane:  # a lane is busy while it writes an outcome, too
                self._prefetch.note_ended(claim.kind, time.perf_counter() - started if seconds is None else seconds)

    async def _run_handler(self, kind: Job[..., Any] | None, running: RunningAttempt) -> End | None:
        """The outcome. None if there is nothing to write: the claim is lost, or a child process has written the end."""
        claim, isolated = running.claim, self._environment.isolated
        try:
            if kind is None:
                raise UnknownKind(claim.kind, list(self._kinds))
            if (claim.confirm_start or claim.alone) and (refused := await self._confirm_start(claim)) is not None:
                return decide(claim, refused, kind.policy.retry)
            if isolated is not None and isolated.takes(kind, claim):
                end, running.written_move = await isolated.run(kind, claim, running.use_process)
                return end
            running.span = begin(claim)
            return await run_handler(kind, claim, functools.partial(self._make_context, kind, running))
        except ClaimLost as lost:
            running.is_ending = True  # first: the warning is not a log line of the handler
            report_stale_write(lost)
            return None
        except UnknownKind as unknown:
            log.error("job_unknown_kind", job_id=claim.id, error=str(unknown))
            return given_back(claim, str(unknown))
        except asyncio.CancelledError as cancelled:
            if running.lane is None or (running.stop_reason is None and running.lane.cancelling()):
                raise
            if running.stop_reason is None:  # the handler awaited something that was cancelled; the lane continues
                return decide(claim, cancelled, self._kinds[claim.kind].policy.retry)
            running.lane.uncancel()  # the handler was stopped, not its lane
            return End(Move.CANCEL, State.CANCELLED, error=running.stop_reason, cause="cancelled")

    async def _confirm_start(self, claim: Claim) -> BaseException | None:
        """Write that the attempt begins, before its handler runs: if the process dies, the crash counts for this job. An error
        that a retry would meet again is returned: it fails the attempt."""
        async for _ in retry_forever():
            try:
                await self._environment.transport.begin(claim)
            except UNREACHABLE as error:
                if is_permanent(error):
                    return error
                log.warning("worker_database_lost", error=str(error), job_id=claim.id)
            else:
                break
        return None

    def _make_context(self, kind: Job[..., Any], running: RunningAttempt, claim: Claim) -> Context:
        fails_at_shutdown = kind.policy.on_shutdown == "fail"
        context = Context(claim, self._environment.transport, self._lease, ends_at_shutdown=fails_at_shutdown)
        running.context = context
        return context

    def keep(self, attempt: fields.Attempt, line: kept.Line) -> None:
        """Buffer a log line of a handler, unless its child process does. Called by the logger, from any thread."""
        running = self._lanes.find(attempt.attempt_id)
        if running is not None and not running.is_ending and not isinstance(running.context, IsolatedAttempt):
            assert self._environment.log_buffer is not None
            self._environment.log_buffer.keep(running.claim, line)


def _label(running: RunningAttempt, end: End | None) -> str:
    """How the attempt ended, for metrics and spans."""
    if end is not None:
        return end.move._value_  # a plain string: the hash of an enum member is computed in Python
    return running.written_move or ("lost" if running.is_ending else "interrupted")


# ---------------------------------------------------------------------------------------------------------------------
# The handler
# ---------------------------------------------------------------------------------------------------------------------


async def run_handler(kind: Job[..., Any], claim: Claim, make_context: MakeContext) -> End:
    """Call the handler of a claimed job and decide the outcome. `ClaimLost` passes through: there is nothing to write."""
    context = make_context(claim) if kind.context_name is not None or not kind.is_async else None
    before = forks()
    crashpoint("run.before_start")
    try:
        ended_with = await _call_function(kind, claim, context)
    except ClaimLost:
        raise
    except (Exception, SystemExit) as error:  # the user's code: any exception is an outcome
        ended_with = error
    finally:
        leave_if_forked(before)
    crashpoint("run.after")
    if claim.is_poll:
        crashpoint("poll.after_reply_before_persist")
    if context is not None and (context.children or context.join is not None):
        ended_with = _with_children(ended_with, context)
    return decide(claim, ended_with, kind.policy.retry)


async def _call_function(kind: Job[..., Any], claim: Claim, context: Context | None) -> object:
    """An async function runs in this event loop, any other in a thread; both within `max_runtime`."""
    arguments = kind.arguments(claim.payload)
    if kind.is_async:
        if kind.context_name is not None:
            arguments[kind.context_name] = context
        if claim.max_runtime is None:
            return await kind.function(**arguments)
        async with asyncio.timeout(claim.max_runtime.total_seconds()):
            return await kind.function(**arguments)
    assert context is not None
    loop = asyncio.get_running_loop()
    if kind.context_name is not None:
        arguments[kind.context_name] = SyncContext(context, loop)
    running = in_thread(functools.partial(kind.function, **arguments))
    # A thread cannot be stopped from outside: its next checkpoint raises, or its end is refused.
    timeout = claim.max_runtime.total_seconds() if claim.max_runtime else None
    return await asyncio.wait_for(running, timeout)


def _with_children(ended_with: object, context: Context) -> object:
    """The outcome with the children from `ctx.chain`. Only a completion has children."""
    match ended_with:
        case Done(then=then, join=join):
            return replace(ended_with, then=(*then, *context.children), join=join or context.join)
        case BaseException():
            return ended_with
        case None:
            return Done(then=tuple(context.children), join=context.join)
        case _ if not hasattr(ended_with, "__dataclass_fields__"):
            return Done(ended_with, then=tuple(context.children), join=context.join)
        case _:
            return ended_with


# ---------------------------------------------------------------------------------------------------------------------
# The write
# ---------------------------------------------------------------------------------------------------------------------


class Outcomes:
    """Writes the outcomes of one worker's attempts."""

    def __init__(self, environment: Environment, lanes: Lanes, prefetch: Prefetch, writer: OutcomeWriter) -> None:
        self._kinds, self._lanes, self._prefetch, self._writer = environment.kinds, lanes, prefetch, writer
        self.completions = CompletionBatches(environment.transport, writer)

    def collect(self, claim: Claim, end: End) -> bool:
        """Add a plain completion to the next batch. False: this outcome needs its own transaction."""
        if claim.ties or not end.is_only_a_completion:
            return False
        try:
            result = None if end.result is None else to_json(end.result, what="result")
        except PayloadInvalid:
            return False
        self.completions.add(claim, result)
        return True

    async def write(self, claim: Claim, end: End) -> Claim | None:
        """Write the outcome. Returns the claim of the next step if it was claimed together with the end."""
        try:
            result = None if end.result is None else to_json(end.result, what="result")
        except PayloadInvalid as invalid:
            end = decide(claim, invalid, self._kinds[claim.kind].policy.retry)
            result = None
        if self._can_chain(claim, end):
            following = await self._writer.complete_and_chain(claim, end, result)
            return following if following is not None and self._lanes.accept_next_step(following) else None
        await self._writer.write(claim, end)
        return None

    def _can_chain(self, claim: Claim, end: End) -> bool:
        """A plain job with one plain child that this worker may run: one commit completes the job and claims the child."""
        if end.move is not Move.COMPLETE or end.writes_rows or end.join or len(end.then) != 1 or claim.ties:
            return False
        child = end.then[0]
        return child.is_plain and child.run_after is None and self._prefetch.may_chain(child)


@dataclass(slots=True)
class _Batch:
    claims: list[Claim] = field(default_factory=list)
    results: list[str | None] = field(default_factory=list)


class CompletionBatches:
    """Collects plain completions while the previous batch is written: batches are large under load, and of one job when
    idle."""

    def __init__(self, transport: Transport, writer: OutcomeWriter) -> None:
        self._transport, self._writer = transport, writer
        self._collecting, self._writing = _Batch(), _Batch()
        self._added = asyncio.Event()

    @property
    def unwritten(self) -> list[Claim]:
        """Claims whose end is not in the database yet: they are still held."""
        return [*self._collecting.claims, *self._writing.claims]

    def add(self, claim: Claim, result: str | None) -> None:
        """Add a completion to the next batch."""
        self._collecting.claims.append(claim)
        self._collecting.results.append(result)
        self._added.set()

    async def write_batches(self) -> None:
        """Write one batch after another. Runs until cancelled."""
        while True:
            await self._added.wait()
            self._added.clear()
            await self.flush()

    async def flush(self) -> None:
        """Write the collected completions."""
        self._writing, self._collecting = self._collecting, _Batch()
        if self._writing.claims:
            await self._write(self._writing)
            self._writing = _Batch()

    async def _write(self, batch: _Batch) -> None:
        unsure, written = False, set[JobId]()
        async for _ in retry_forever():
            try:
                written = await self._transport.complete(batch.claims, batch.results)
                break
            except UNREACHABLE as error:
                if is_permanent(error):  # one of them may be the cause: write each by itself
                    break
                log.warning("worker_database_lost", error=str(error))
                unsure = True
        crashpoint("complete.after_commit_before_ack")
        self._writer.record_completions([claim for claim in batch.claims if claim.id in written])
        for claim, result in zip(batch.claims, batch.results, strict=True):
            if claim.id not in written:  # something is tied to the job, an earlier try was committed, or the claim is lost
                end = End(Move.COMPLETE, State.COMPLETED, result=None if result is None else json.loads(result))
                await self._writer.write(claim, end, unsure=unsure)
