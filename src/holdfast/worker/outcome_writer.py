"""Write the outcomes of attempts. Called by: `attempt.py`, and by the worker for jobs that it releases.

Every outcome here is one transaction with all that follows from it. A connection that breaks on the way leaves the result of
the commit unknown: it is looked up under the attempt id before anything is written again. Plain completions go in batches
instead (`CompletionBatches` in `attempt.py`); their counts and log lines are made here as well.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from holdfast.crashpoints import crashpoint
from holdfast.database.pool import is_permanent
from holdfast.errors import ClaimLost, HoldfastError, PublishFailed, Unreachable
from holdfast.jobs.model import Claim
from holdfast.jobs.outcome import COMPLETED, SHUTDOWN, End, RetryPolicy, decide, impossible
from holdfast.jobs.states import Move, State
from holdfast.telemetry.log import log
from holdfast.telemetry.metrics import attempts as attempts_ended
from holdfast.telemetry.metrics import stale_writebacks
from holdfast.worker.job_counts import JobCounts
from holdfast.worker.retries import retry_forever
from holdfast.worker.transports.interface import UNREACHABLE, Transport

EVENT_OF = {Move.COMPLETE: "job_completed", Move.FAIL: "job_failed", Move.RETRY: "job_retried", Move.CANCEL: "job_cancelled"}
LEVEL_OF = {Move.FAIL: logging.ERROR, Move.RETRY: logging.WARNING}
MOST_LINES = 10  # completions of one batch that get a line each; a larger batch gets one for each kind
_logger = logging.getLogger("holdfast")


class OutcomeWriter:
    """Writes the outcomes of one worker's attempts, and counts them."""

    def __init__(self, transport: Transport, policy_of: Callable[[str], RetryPolicy], on_end: Callable[[End], None]) -> None:
        self._transport, self._policy_of, self._on_end = transport, policy_of, on_end
        self._completed = self._failed = self._given_back = self._cut_off = 0
        self._completions: dict[str, Any] = {}  # the counter of each kind: finding it costs more than counting

    @property
    def completed(self) -> int:
        return self._completed

    def counts(self, taken: int) -> JobCounts:
        """How the jobs that were taken have ended."""
        return JobCounts(taken, self._completed, self._failed, self._given_back, self._cut_off)

    # ------------------------------------------------------------------------------------------------- writing

    async def write(self, claim: Claim, end: End, *, unsure: bool = False, is_fallback: bool = False) -> None:
        """Write this end in its own transaction, with all that follows from it; `unsure`: it may have been committed already.

        An end that cannot be written is written as a failure instead (`is_fallback`): what a handler returns must not end the
        worker.
        """
        async for _ in retry_forever():
            try:
                if not unsure or not await self._transport.was_written(claim):
                    await self._transport.finish(claim, end)
                break
            except ClaimLost as lost:
                report_stale_write(lost)
                return
            except UNREACHABLE as error:
                if is_permanent(error):  # nothing was committed, and it fails every time
                    await self._write_failure(claim, end, error, unsure=unsure, is_fallback=is_fallback)
                    return
                log.warning("worker_database_lost", error=str(error))
                unsure = True
                if isinstance(error, Unreachable) and error.is_fault and end.move in (Move.COMPLETE, Move.SUBMIT):
                    end = decide(claim, error, self._policy_of(claim.kind))  # the same would fail again and again
            except Exception as error:  # an invalid publish, child or result: nothing was committed, so it has failed
                await self._write_failure(claim, end, error, unsure=unsure, is_fallback=is_fallback)
                return
        crashpoint("complete.after_commit_before_ack")
        self._record(claim, end)

    async def complete_and_chain(self, claim: Claim, end: End, result: str | None) -> Claim | None:
        """Complete a job and claim its only child in the same commit; if that fails, write the end without the claim.

        If the answer is lost, nothing here knows of the child's claim: a later heartbeat finds it and releases it.
        """
        following, unsure = None, False
        try:
            following = await self._transport.complete_and_chain(claim, result, end.then[0])
        except HoldfastError:  # `write` says what is wrong with it
            pass
        except UNREACHABLE as error:
            if not is_permanent(error):
                log.warning("worker_database_lost", error=str(error))
                unsure = True
        if following is None:
            await self.write(claim, end, unsure=unsure)
            return None
        crashpoint("complete.after_commit_before_ack")
        self.record_completions([claim])
        return following

    async def give_back(self, claim: Claim, end: End) -> None:
        """Write the end of an attempt that is cut off or was never begun. Once: on the way out there is no time to retry."""
        try:
            await self._transport.finish(claim, end)
        except ClaimLost as lost:
            report_stale_write(lost)
            return
        self._given_back += end.move is Move.RELEASE
        self._cut_off += end.cause == SHUTDOWN

    async def _write_failure(self, claim: Claim, end: End, error: Exception, *, unsure: bool, is_fallback: bool) -> None:
        if is_fallback:
            raise error
        failure = self._failure(claim, end, error)
        await self.write(claim, failure, unsure=unsure, is_fallback=failure.move is Move.FAIL)

    def _failure(self, claim: Claim, end: End, error: Exception) -> End:
        """As if the handler had raised this error; a plain failure if the attempt had failed already."""
        if end.move not in (Move.COMPLETE, Move.SUBMIT):
            return impossible(error)
        raised = error.__cause__ if isinstance(error, PublishFailed) and error.__cause__ is not None else error
        return decide(claim, raised, self._policy_of(claim.kind))

    # ------------------------------------------------------------------------------------------------- counts and log lines

    def record_completions(self, claims: Sequence[Claim]) -> None:
        """These jobs were completed."""
        self._completed += len(claims)
        counts = {claims[0].kind: 1} if len(claims) == 1 else Counter(claim.kind for claim in claims)
        for kind, count in counts.items():
            if (counter := self._completions.get(kind)) is None:
                counter = self._completions[kind] = attempts_ended.labels(kind, "complete")
            counter.inc(count)
        if not _logger.isEnabledFor(logging.INFO):
            return
        if len(claims) <= MOST_LINES:
            for claim in claims:
                log.info("job_completed", **_fields(claim))
            return
        for kind in dict.fromkeys(claim.kind for claim in claims):
            ids = [claim.id for claim in claims if claim.kind == kind]
            log.info("jobs_completed", kind=kind, count=len(ids), jobs=ids)

    def record_written(self, claim: Claim, move: str | None, *, back: tuple[State, timedelta] | None) -> None:
        """A child process has written this end and logged it; None: it was refused."""
        self._completed += move == Move.COMPLETE
        if move is not None:
            attempts_ended.labels(claim.kind, move).inc()
        self._on_end(COMPLETED if back is None else End(Move.RELEASE, back[0], delay=back[1]))

    def _record(self, claim: Claim, end: End) -> None:
        if end.move is Move.COMPLETE:
            self.record_completions([claim])
        else:
            attempts_ended.labels(claim.kind, str(end.move)).inc()
            log.log(LEVEL_OF.get(end.move, logging.INFO), EVENT_OF.get(end.move, "job_ended"), **_fields(claim), **_why(end))
        self._failed += end.move in (Move.FAIL, Move.RETRY)
        self._cut_off += end.cause == SHUTDOWN
        self._on_end(end)


def _fields(claim: Claim) -> dict[str, Any]:
    return {"job_id": claim.id, "kind": claim.kind, "attempt": claim.attempt_no, "attempt_id": claim.attempt_id}


def _why(end: End) -> dict[str, Any]:
    """The error, and the traceback of a handler that has raised."""
    why: dict[str, Any] = {"move": str(end.move), "error": end.error}
    if isinstance(end.detail, dict) and "traceback" in end.detail:
        why["exception"] = end.detail["traceback"]
    return why


def report_stale_write(lost: ClaimLost) -> None:
    """A replaced attempt tried to write, and the fence refused it."""
    stale_writebacks.labels(lost.operation).inc()
    log.warning("writeback_stale_attempt", job_id=lost.job_id, attempt_id=lost.attempt_id, operation=lost.operation)
