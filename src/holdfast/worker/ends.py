"""Write how attempts ended, and lose none of it. Called by: the worker's lanes.

Plain completions gather while the previous batch is being written, so batches grow by themselves under load and are of
one when it is quiet. Everything else is a transaction of its own. A connection that dies on the way leaves the outcome
unknown: it is looked up under the attempt id before anything is written again.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from holdfast.crashpoints import crashpoint
from holdfast.database.pool import is_permanent
from holdfast.errors import ClaimLost, HoldfastError, PublishFailed, Unreachable
from holdfast.jobs.model import Claim, JobId
from holdfast.jobs.outcome import COMPLETED, SHUTDOWN, End, RetryPolicy, decide, impossible
from holdfast.jobs.payload import to_json
from holdfast.jobs.states import Move, State
from holdfast.telemetry.log import log
from holdfast.telemetry.metrics import attempts as attempts_ended
from holdfast.telemetry.metrics import stale_writebacks
from holdfast.worker.transport import UNREACHABLE, Transport

EVENT_OF = {Move.COMPLETE: "job_completed", Move.FAIL: "job_failed", Move.RETRY: "job_retried", Move.CANCEL: "job_cancelled"}


@dataclass(slots=True)
class _Batch:
    """Plain completions that are written together."""

    claims: list[Claim] = field(default_factory=list)
    results: list[str | None] = field(default_factory=list)


class Ends:
    """Where a worker's attempts end."""

    def __init__(self, transport: Transport, policy_of: Callable[[str], RetryPolicy], on_end: Callable[[End], None]) -> None:
        self.completed = self.failed = self.cut_off = 0
        self._transport, self._policy_of, self._on_end = transport, policy_of, on_end
        self._gathering, self._writing = _Batch(), _Batch()
        self._something = asyncio.Event()

    @property
    def unwritten(self) -> list[Claim]:
        """Attempts whose end is not yet in the database: still held."""
        return [*self._gathering.claims, *self._writing.claims]

    def gather(self, claim: Claim, result: str | None) -> None:
        """Add a plain completion to the next batch."""
        self._gathering.claims.append(claim)
        self._gathering.results.append(result)
        self._something.set()

    async def write_batches(self) -> None:
        """Write what gathers, one batch after the other. Runs until cancelled."""
        while True:
            await self._something.wait()
            self._something.clear()
            await self.flush()

    async def flush(self) -> None:
        """Write what has gathered so far."""
        self._writing, self._gathering = self._gathering, _Batch()
        if self._writing.claims:
            await self._write(self._writing)
            self._writing = _Batch()

    def note(self, claim: Claim, move: str | None, *, back: tuple[State, timedelta] | None) -> None:
        """An end that a process of our own has written; None: it was refused."""
        self.completed += move == Move.COMPLETE
        if move is not None:
            attempts_ended.labels(claim.kind, move).inc()
        self._on_end(COMPLETED if back is None else End(Move.RELEASE, back[0], delay=back[1]))

    async def write(self, claim: Claim, end: End, *, unsure: bool = False, instead: bool = False) -> None:
        """Write any other end, in its own transaction with all that follows from it; `unsure`: it may be there already.

        One that cannot be written is written as a failure `instead`: a handler must not end the worker by what it returns.
        """
        async for _ in attempts():
            try:
                if not unsure or not await self._transport.was_written(claim):
                    await self._transport.finish(claim, end)
                break
            except ClaimLost as lost:
                refused(lost)
                return
            except UNREACHABLE as error:
                if is_permanent(error):  # nothing was committed, and nothing ever will be: it has failed
                    await self._write_failure(claim, end, error, unsure=unsure, instead=instead)
                    return
                log.warning("worker_database_lost", error=str(error))
                unsure = True
                if isinstance(error, Unreachable) and error.is_fault and end.move in (Move.COMPLETE, Move.SUBMIT):
                    end = decide(claim, error, self._policy_of(claim.kind))  # not the same again for ever
            except Exception as error:  # a publish, a child or a result that cannot be: nothing was committed, so it has failed
                await self._write_failure(claim, end, error, unsure=unsure, instead=instead)
                return
        crashpoint("complete.after_commit_before_ack")
        self._tell(claim, end)

    async def _write_failure(self, claim: Claim, end: End, error: Exception, *, unsure: bool, instead: bool) -> None:
        if instead:
            raise error
        failure = self._failure(claim, end, error)
        await self.write(claim, failure, unsure=unsure, instead=failure.move is Move.FAIL)

    async def write_and_take_along(self, claim: Claim, end: End, result: str | None) -> Claim | None:
        """Complete a job and claim its only child in the same commit; where that cannot be, it goes the long way.

        The child that a lost answer claimed is nobody's: the next beat says so, and it is given back.
        """
        following, unsure = None, False
        try:
            following = await self._transport.complete_and_chain(claim, result, end.then[0])
        except HoldfastError:  # the long way says what is wrong with it
            pass
        except UNREACHABLE as error:
            if not is_permanent(error):
                log.warning("worker_database_lost", error=str(error))
                unsure = True
        if following is None:
            await self.write(claim, end, unsure=unsure)
            return None
        crashpoint("complete.after_commit_before_ack")
        self.completed += 1
        attempts_ended.labels(claim.kind, "complete").inc()
        return following

    async def _write(self, batch: _Batch) -> None:
        unsure, written = False, set[JobId]()
        async for _ in attempts():
            try:
                written = await self._transport.complete(batch.claims, batch.results)
                break
            except UNREACHABLE as error:
                if is_permanent(error):  # one of them may be the reason: each by itself
                    break
                log.warning("worker_database_lost", error=str(error))
                unsure = True
        crashpoint("complete.after_commit_before_ack")
        self.completed += len(written)
        for kind, count in Counter(claim.kind for claim in batch.claims if claim.id in written).items():
            attempts_ended.labels(kind, "complete").inc(count)
        for claim, result in zip(batch.claims, batch.results, strict=True):
            if claim.id not in written:
                await self._write_left_over(claim, result, unsure=unsure)

    async def _write_left_over(self, claim: Claim, result: str | None, *, unsure: bool) -> None:
        """A completion that the batch did not take: something hangs on the job, an earlier try was committed, or it is lost."""
        end = End(Move.COMPLETE, State.COMPLETED, result=None if result is None else json.loads(result))
        await self.write(claim, end, unsure=unsure)

    def _failure(self, claim: Claim, end: End, error: Exception) -> End:
        """As if the handler had raised it; plainly, where it had failed already."""
        if end.move not in (Move.COMPLETE, Move.SUBMIT):
            return impossible(error)
        raised = error.__cause__ if isinstance(error, PublishFailed) and error.__cause__ is not None else error
        return decide(claim, raised, self._policy_of(claim.kind))

    def _tell(self, claim: Claim, end: End) -> None:
        self.completed += end.move is Move.COMPLETE
        attempts_ended.labels(claim.kind, str(end.move)).inc()
        self.failed += end.move in (Move.FAIL, Move.RETRY)
        self.cut_off += end.cause == SHUTDOWN
        event = EVENT_OF.get(end.move, "job_ended")
        log.info(event, job_id=claim.id, kind=claim.kind, attempt=claim.attempt_no, move=str(end.move), error=end.error)
        self._on_end(end)


def refused(lost: ClaimLost) -> None:
    """A replaced attempt tried to write. That it could not is the whole point; that it tried is worth a line."""
    stale_writebacks.labels(lost.operation).inc()
    log.warning("writeback_stale_attempt", job_id=lost.job_id, attempt_id=lost.attempt_id, operation=lost.operation)


async def attempts(first: float = 0.1, longest: float = 5.0) -> AsyncIterator[int]:
    """Count tries for ever, with a growing pause before each but the first."""
    number, pause = 0, first
    while True:
        yield number
        await asyncio.sleep(pause)
        number, pause = number + 1, min(pause * 2, longest)


def as_text(result: Any) -> str | None:
    """A result as it is stored; `PayloadInvalid` when it cannot be."""
    return None if result is None else to_json(result, what="result")
