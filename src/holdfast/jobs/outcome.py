"""What a handler may return, and what that means for its job. Pure: no database, no clock, randomness is passed in.

A handler returns a value for every expected outcome and raises an exception for unexpected ones. `decide` turns either into
an `End`, which `finish.py` writes.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

from holdfast.errors import CancelRequested, ShutdownRequested, UsageError
from holdfast.jobs.given import LONGEST, a_count
from holdfast.jobs.model import Claim, Json, NewJob, holds_and_waits
from holdfast.jobs.states import Move, State
from holdfast.telemetry.error_text import error_text

Publish = Callable[[Any], Awaitable[None] | None]


@dataclass(frozen=True, slots=True)
class Done:
    """The work is done. `publish(conn)` and the children commit together with the end of the job, or not at all. A parameter
    annotated as an SQLAlchemy `AsyncSession` or `Session` gets a session in the same transaction.

    `then` are the children (one: a chain, many: a fan-out); `join` runs when all of them have completed (a fan-in).

    `prepare(conn)` is for writes that take long. It runs in the same transaction as `publish`, but before the fence is checked
    and the job's row is locked: meanwhile it can report progress, the job can be cancelled, and nothing waits for the children.
    """

    result: Json = None
    publish: Publish | None = None
    then: Sequence[NewJob] = ()
    join: NewJob | None = None
    prepare: Publish | None = None

    def __post_init__(self) -> None:
        for name, function in (("publish", self.publish), ("prepare", self.prepare)):
            if function is not None and not callable(function):
                raise UsageError(f"{name} must be an async function that takes a connection, not {_shown(function)}")
        refuse_no_jobs(self.then, self.join)


@dataclass(frozen=True, slots=True)
class Submitted:
    """An external engine has the work; poll it with `handle`."""

    handle: Json
    poll_after: timedelta | None = None

    def __post_init__(self) -> None:
        if self.handle is None:  # a job without a handle counts as not submitted
            raise UsageError(
                "Submitted needs the handle to poll the engine with, as in Submitted(query_id), not None; use Snooze to wait"
            )
        if self.poll_after is not None:
            _check_delay(self.poll_after, "Submitted(poll_after=…)")


@dataclass(frozen=True, slots=True)
class Snooze:
    """Run again later. Does not count as an error."""

    delay: timedelta
    reason: str | None = None

    def __post_init__(self) -> None:
        _check_delay(self.delay, "Snooze(…)")
        if self.reason is not None:
            _check_reason(self.reason, "Snooze")


@dataclass(frozen=True, slots=True)
class Retry:
    """It failed and may work later. Counts as an error; without a delay the backoff of the retry policy applies."""

    reason: str
    delay: timedelta | None = None

    def __post_init__(self) -> None:
        _check_reason(self.reason, "Retry")
        if self.delay is not None:
            _check_delay(self.delay, "Retry(delay=…)")


@dataclass(frozen=True, slots=True)
class Fail:
    """It will never work: fail without a retry."""

    reason: str

    def __post_init__(self) -> None:
        _check_reason(self.reason, "Fail")


@dataclass(frozen=True, slots=True)
class Cancel:
    """The job is not needed any more: end it as cancelled."""

    reason: str

    def __post_init__(self) -> None:
        _check_reason(self.reason, "Cancel")


# Outcomes validate their arguments on construction: the error is raised in the handler and ends the attempt as any other.


def refuse_no_jobs(then: object, join: object = None) -> None:
    """Check that the children are `NewJob`s, and not kinds."""
    if isinstance(then, str) or not isinstance(then, Sequence):
        raise UsageError(f"then must be a list of jobs, as in then=[render.new(invoice_id=7)], not {_shown(then)}")
    for job in (*then, *(() if join is None else (join,))):
        if not isinstance(job, NewJob):
            raise UsageError(f"then and join take jobs made with .new(), as in render.new(invoice_id=7), not {_shown(job)}")
    if isinstance(join, NewJob) and join.rejects:
        raise holds_and_waits(join, "children to wait for")


def _check_delay(delay: object, where: str) -> None:
    if not isinstance(delay, timedelta):
        raise UsageError(f"{where} takes a timedelta, as in timedelta(seconds=30), not {_shown(delay)}")
    if delay > LONGEST:
        raise UsageError(f"{where} takes a delay of at most {LONGEST.days} days, not {delay.days}")


def _check_reason(reason: object, where: str) -> None:
    if not isinstance(reason, str):
        raise UsageError(f"{where} takes a reason as text, as in {where}(str(error)), not {_shown(reason)}")


def _shown(something: object) -> str:
    return f"{type(something).__name__} ({something!r:.80})"


Outcome = Done | Submitted | Snooze | Retry | Fail | Cancel


class Permanent(Exception):
    """Raise this, or a subclass, from a handler to fail at once, without a retry."""


@dataclass(frozen=True, slots=True)
class End:
    """How an attempt ends: the move, the state it leads to, and what is stored."""

    move: Move
    state: State
    delay: timedelta | None = None
    result: Json = None
    error: str | None = None
    cause: str | None = None
    errors: int = 0  # by how much the error count rises
    handle: Json = None
    poll_count: int = 0
    poll_errors: int = 0
    publish: Publish | None = None
    then: Sequence[NewJob] = ()
    join: NewJob | None = None
    prepare: Publish | None = None
    detail: Json = None

    @property
    def is_only_a_completion(self) -> bool:
        """Whether it can be written in a batch: a completion with which nothing else has to commit."""
        plain = self.publish is None and self.prepare is None  # not `writes_rows`: every job comes here
        return plain and self.move is Move.COMPLETE and not self.then and self.join is None

    @property
    def writes_rows(self) -> bool:
        """Whether rows of the caller commit with it."""
        return self.publish is not None or self.prepare is not None

    @property
    def waits_for(self) -> list[int]:
        """Jobs for which its children wait, apart from the children themselves."""
        return [parent for child in (*self.then, *filter(None, (self.join,))) for parent in child.after]


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays that double from `first` to `longest`, each shortened by up to `spread` of it so that retries spread out."""

    first: timedelta = timedelta(seconds=1)
    longest: timedelta = timedelta(minutes=10)
    spread: float = 0.5

    def __post_init__(self) -> None:
        _check_delay(self.first, "Backoff(first=…)")
        _check_delay(self.longest, "Backoff(longest=…)")
        if not isinstance(self.spread, (int, float)) or not 0 <= self.spread <= 1:
            raise UsageError(f"Backoff(spread=…) takes a fraction between 0 and 1, not {_shown(self.spread)}")

    @classmethod
    def fixed(cls, delay: timedelta) -> Backoff:
        """The same delay before every retry."""
        return cls(first=delay, longest=delay, spread=0)

    def delay(self, errors: int, chance: float) -> timedelta:
        try:
            whole = min(self.first * 2.0 ** min(errors, 30), self.longest)
        except OverflowError:  # days, doubled thirty times
            whole = self.longest
        return whole * (1 - self.spread * (1 - chance))


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Which exceptions are retried, and after which delay. With `only`, no other exceptions are.

    Polls of an external engine have a separate limit: the job fails after `poll_errors` failed polls in a row.
    """

    backoff: Backoff = Backoff()
    permanent: tuple[type[BaseException], ...] = (Permanent, UsageError)
    only: tuple[type[BaseException], ...] = (BaseException,)
    poll_errors: int = 20

    def __post_init__(self) -> None:
        if not isinstance(self.backoff, Backoff):
            raise UsageError(f"RetryPolicy(backoff=…) takes a Backoff, as in Backoff.fixed(delay), not {_shown(self.backoff)}")
        for name in ("permanent", "only"):
            try:
                isinstance(None, getattr(self, name))  # `decide` uses isinstance() with it
            except TypeError:
                given = _shown(getattr(self, name))
                raise UsageError(
                    f"RetryPolicy({name}=…) takes a tuple of exceptions, as in (ValueError,), not {given}"
                ) from None
        a_count("poll_errors", self.poll_errors)


# An engine that is starting up may time out once or twice: three attempts, five seconds apart, only for timeouts.
COLD_START: Final = RetryPolicy(Backoff.fixed(timedelta(seconds=5)), only=(TimeoutError,))


POLL_SECONDS: Final = (2, 3, 5, 8, 13, 21, 34, 55, 89, 90)


def poll_delay(count: int) -> timedelta:
    """The delay before the `count`-th poll of an external engine, counted from 1."""
    return timedelta(seconds=POLL_SECONDS[max(1, min(count, len(POLL_SECONDS))) - 1])


SHUTDOWN: Final = "shutdown"
CUT_OFF: Final = "Worker received SIGTERM"
COMPLETED = End(Move.COMPLETE, State.COMPLETED)
DEFAULT_POLICY = RetryPolicy()


def decide(
    claim: Claim,
    ended_with: object,
    policy: RetryPolicy = DEFAULT_POLICY,
    chance: Callable[[], float] = random.random,
) -> End:
    """The `End` for what a handler returned or raised. Never raises, because that would end the worker."""
    try:
        return _decide(claim, ended_with, policy, chance)
    except Exception as error:  # a custom policy that raised
        what = error_text(ended_with) if isinstance(ended_with, BaseException) else type(ended_with).__name__
        both = f"{what}; in addition its retry policy raised: {error_text(error)}"
        return End(Move.FAIL, State.FAILED, error=both, cause="permanent", errors=1)


def _decide(claim: Claim, ended_with: object, policy: RetryPolicy, chance: Callable[[], float]) -> End:
    match ended_with:
        case None:
            return COMPLETED
        case Done(result, publish, then, join, prepare):
            completed = End(Move.COMPLETE, State.COMPLETED, result=result, publish=publish, then=then, join=join)
            return completed if prepare is None else replace(completed, prepare=prepare)
        case Submitted(handle, poll_after):
            return _submitted(claim, handle, poll_after)
        case Snooze(delay, reason) if claim.is_poll:  # the engine still has the work: poll it later, never submit it again
            kept = {"handle": claim.handle, "poll_count": claim.poll_count}
            return End(Move.RELEASE, State.SUBMITTED, delay=delay, error=reason, **kept)
        case Snooze(delay, reason):
            return End(Move.SNOOZE, State.PENDING, delay=delay, error=reason, cause="snooze")
        case Retry(reason, delay):
            return _retry(claim, reason, "retry", policy.backoff.delay(claim.errors, chance()) if delay is None else delay)
        case Fail(reason):
            return End(Move.FAIL, State.FAILED, error=reason, cause="failed", errors=1)
        case Cancel(reason):
            return End(Move.CANCEL, State.CANCELLED, error=reason, cause="cancelled")
        case CancelRequested():
            return End(Move.CANCEL, State.CANCELLED, error=str(ended_with), cause="cancelled")
        case ShutdownRequested():
            return cut_off()
        case BaseException():
            return _from_exception(claim, ended_with, policy, chance)
        case type() if issubclass(ended_with, (Outcome, BaseException)):
            name = ended_with.__name__
            wrong = UsageError(f"the handler returned the class {name} and not an instance of it; return {name}(…)")
            return _from_exception(claim, wrong, policy, chance)
        case _:
            return End(Move.COMPLETE, State.COMPLETED, result=ended_with)


def released(reason: str) -> End:
    """Return the job to the queue without an error, as on shutdown."""
    return End(Move.RELEASE, State.PENDING, error=reason, cause="released")


def cut_off() -> End:
    """The worker stops before the job has ended, and the kind has `on_shutdown="fail"`."""
    return End(Move.FAIL, State.FAILED, error=CUT_OFF, cause="shutdown", errors=1)


def released_poll(claim: Claim, reason: str) -> End:
    """The poll did not take place: the engine's work and the number of polls do not change."""
    kept = {"handle": claim.handle, "poll_count": claim.poll_count, "poll_errors": claim.poll_errors}
    return End(Move.RELEASE, State.SUBMITTED, delay=poll_delay(claim.poll_count), error=reason, **kept)


def given_back(claim: Claim, reason: str) -> End:
    """Back to where it came from, without any cost: to the queue, or to the engine that has its work."""
    return released_poll(claim, reason) if claim.is_poll else released(reason)


def impossible(error: BaseException) -> End:
    """The end of the attempt cannot be written, for a reason that a retry does not change: the job fails."""
    return End(Move.FAIL, State.FAILED, error=f"its end could not be written: {error_text(error)}", cause="permanent", errors=1)


def overdue(error: str = "its engine had it for longer than max_runtime") -> End:
    """The engine has had the work for longer than `max_runtime`. What it still does is cleaned up as an effect."""
    return End(Move.FAIL, State.FAILED, error=error, cause="max_runtime", errors=1)


def _submitted(claim: Claim, handle: Json, poll_after: timedelta | None) -> End:
    count = claim.poll_count + 1
    delay = poll_delay(count) if poll_after is None else poll_after
    return End(Move.SUBMIT, State.SUBMITTED, delay=delay, handle=handle, poll_count=count)


def _from_exception(claim: Claim, error: BaseException, policy: RetryPolicy, chance: Callable[[], float]) -> End:
    what = error_text(error)
    trace = "".join(traceback.format_exception(error))[-8000:]
    worth_a_retry = claim.is_poll or isinstance(error, policy.only)
    if isinstance(error, policy.permanent) or not worth_a_retry:
        return End(Move.FAIL, State.FAILED, error=what, cause="permanent", errors=1, detail={"traceback": trace})
    # By type, not by message: the message of a permission error may contain the word timeout.
    cause = "timeout" if isinstance(error, TimeoutError) else "oom" if isinstance(error, MemoryError) else "error"
    if claim.is_poll:
        return _poll_failed(claim, what, policy, {"traceback": trace})
    return _retry(claim, what, cause, policy.backoff.delay(claim.errors, chance()), {"traceback": trace})


def _poll_failed(claim: Claim, reason: str, policy: RetryPolicy, detail: Json) -> End:
    """The state of the work is unknown: poll again with increasing delays, and fail after too many failed polls in a row."""
    poll_errors = claim.poll_errors + 1
    if poll_errors >= policy.poll_errors:
        what = f"{poll_errors} polls of its engine failed in a row: {reason}"
        return End(Move.FAIL, State.FAILED, error=what, cause="poll", errors=1, poll_errors=poll_errors, detail=detail)
    delay = poll_delay(claim.poll_count + claim.poll_errors)
    kept = {"handle": claim.handle, "poll_count": claim.poll_count}
    return End(Move.RELEASE, State.SUBMITTED, delay=delay, error=reason, poll_errors=poll_errors, detail=detail, **kept)


def _retry(claim: Claim, reason: str, cause: str, delay: timedelta, detail: Json = None) -> End:
    if claim.errors + 1 >= claim.max_attempts:
        return End(Move.FAIL, State.FAILED, error=reason, cause=cause, errors=1, detail=detail)
    return End(Move.RETRY, State.PENDING, delay=delay, error=reason, cause=cause, errors=1, detail=detail)
