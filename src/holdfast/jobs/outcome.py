"""What a handler may end with, and what that means for its job. Pure: no database, no clock, no chance of its own.

A handler ends by value for every expected end, and by exception for surprises. `decide` turns either into an `End`,
which `finish.py` writes.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from holdfast.errors import CancelRequested, ShutdownRequested, UsageError
from holdfast.jobs.given import LONGEST, a_count
from holdfast.jobs.model import Claim, Json, NewJob, holds_and_waits
from holdfast.jobs.states import Move, State

Publish = Callable[[Any], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Done:
    """The work is done. `publish(conn)` and the children commit together with the end of the job, or not at all.

    `then` are the children (one: a chain, many: a fan-out); `join` runs when all of them have completed (a fan-in).
    """

    result: Json = None
    publish: Publish | None = None
    then: Sequence[NewJob] = ()
    join: NewJob | None = None

    def __post_init__(self) -> None:
        if self.publish is not None and not callable(self.publish):
            raise UsageError(f"publish is an async function that takes a connection, not {_said(self.publish)}")
        refuse_no_jobs(self.then, self.join)


@dataclass(frozen=True, slots=True)
class Submitted:
    """An external engine has the work now (or still); ask it again under `handle`."""

    handle: Json
    poll_after: timedelta | None = None

    def __post_init__(self) -> None:
        if self.handle is None:  # a job without a handle is one that no engine has
            raise UsageError(
                "Submitted takes what to ask the engine for, as in Submitted(query_id), not None; Snooze only waits"
            )
        if self.poll_after is not None:
            _refuse_no_delay(self.poll_after, "Submitted(poll_after=…)")


@dataclass(frozen=True, slots=True)
class Snooze:
    """Not now: come back later. Costs nothing of the budget."""

    delay: timedelta
    reason: str | None = None

    def __post_init__(self) -> None:
        _refuse_no_delay(self.delay, "Snooze(…)")
        if self.reason is not None:
            _refuse_no_reason(self.reason, "Snooze")


@dataclass(frozen=True, slots=True)
class Retry:
    """It did not work and may work later. Counts as an error; without a delay the usual backoff applies."""

    reason: str
    delay: timedelta | None = None

    def __post_init__(self) -> None:
        _refuse_no_reason(self.reason, "Retry")
        if self.delay is not None:
            _refuse_no_delay(self.delay, "Retry(delay=…)")


@dataclass(frozen=True, slots=True)
class Fail:
    """It will never work: no retry."""

    reason: str

    def __post_init__(self) -> None:
        _refuse_no_reason(self.reason, "Fail")


@dataclass(frozen=True, slots=True)
class Cancel:
    """There is no need for it any more."""

    reason: str

    def __post_init__(self) -> None:
        _refuse_no_reason(self.reason, "Cancel")


# A handler that says something which cannot be is told so where it says it: the error then ends its attempt like any other.


def refuse_no_jobs(then: object, join: object = None) -> None:
    """What is to follow must be jobs, made and not only named."""
    if isinstance(then, str) or not isinstance(then, Sequence):
        raise UsageError(f"what follows is a list of jobs, as in then=[render.new(invoice_id=7)], not {_said(then)}")
    for job in (*then, *(() if join is None else (join,))):
        if not isinstance(job, NewJob):
            raise UsageError(f"what follows are jobs, as render.new(invoice_id=7) makes them, not {_said(job)}")
    if isinstance(join, NewJob) and join.rejects:
        raise holds_and_waits(join, "children to wait for")


def _refuse_no_delay(delay: object, where: str) -> None:
    if not isinstance(delay, timedelta):
        raise UsageError(f"{where} takes a timedelta, as in timedelta(seconds=30), not {_said(delay)}")
    if delay > LONGEST:
        raise UsageError(f"{where} takes a delay of at most {LONGEST.days} days, not {delay.days}")


def _refuse_no_reason(reason: object, where: str) -> None:
    if not isinstance(reason, str):
        raise UsageError(f"{where} takes its reason as text, as in {where}(str(error)), not {_said(reason)}")


def _said(something: object) -> str:
    return f"{type(something).__name__} ({something!r:.80})"


Outcome = Done | Submitted | Snooze | Retry | Fail | Cancel


class Permanent(Exception):
    """Raise this, or a subclass, from a handler to fail at once, whatever budget is left."""


@dataclass(frozen=True, slots=True)
class End:
    """How an attempt ends: the move, the state it leads to, and what is written down."""

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
    detail: Json = None

    @property
    def is_only_a_completion(self) -> bool:
        """Nothing else has to commit with it: it may go in a batch."""
        return self.move is Move.COMPLETE and self.publish is None and not self.then and self.join is None

    @property
    def waits_for(self) -> list[int]:
        """Jobs, other than its own children, that one of its children waits for."""
        return [parent for child in (*self.then, *filter(None, (self.join,))) for parent in child.after]


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays that double from `first` to `longest`, each shortened by up to `spread` of it so that retries spread out."""

    first: timedelta = timedelta(seconds=1)
    longest: timedelta = timedelta(minutes=10)
    spread: float = 0.5

    def __post_init__(self) -> None:
        _refuse_no_delay(self.first, "Backoff(first=…)")
        _refuse_no_delay(self.longest, "Backoff(longest=…)")
        if not isinstance(self.spread, (int, float)) or not 0 <= self.spread <= 1:
            raise UsageError(f"Backoff(spread=…) takes a part between 0 and 1, not {_said(self.spread)}")

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
    """Which exceptions are worth another try, and when. With `only`, no others are.

    Looks at an external engine have a budget of their own: `poll_errors` in a row that came to nothing are the end.
    """

    backoff: Backoff = Backoff()
    permanent: tuple[type[BaseException], ...] = (Permanent, UsageError)
    only: tuple[type[BaseException], ...] = (BaseException,)
    poll_errors: int = 20

    def __post_init__(self) -> None:
        if not isinstance(self.backoff, Backoff):
            raise UsageError(f"RetryPolicy(backoff=…) takes a Backoff, as in Backoff.fixed(delay), not {_said(self.backoff)}")
        for name in ("permanent", "only"):
            try:
                isinstance(None, getattr(self, name))  # whatever this can answer, `decide` can ask
            except TypeError:
                given = _said(getattr(self, name))
                raise UsageError(
                    f"RetryPolicy({name}=…) takes a tuple of exceptions, as in (ValueError,), not {given}"
                ) from None
        a_count("poll_errors", self.poll_errors)


# An engine that was asleep answers too late once or twice: three attempts, five seconds apart, and only for that.
COLD_START: Final = RetryPolicy(Backoff.fixed(timedelta(seconds=5)), only=(TimeoutError,))


POLL_SECONDS: Final = (2, 3, 5, 8, 13, 21, 34, 55, 89, 90)


def poll_delay(count: int) -> timedelta:
    """How long to wait before the `count`-th look at an external engine, counted from 1."""
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
    """What the value or exception that a handler ended with means for its job. Never raises, or it would end the worker."""
    try:
        return _decide(claim, ended_with, policy, chance)
    except Exception as error:  # a policy of somebody's own making, asked what it cannot answer
        what = _what(ended_with) if isinstance(ended_with, BaseException) else type(ended_with).__name__
        said = f"{what}; and its retry policy could not say what follows: {_what(error)}"
        return End(Move.FAIL, State.FAILED, error=said, cause="permanent", errors=1)


def _decide(claim: Claim, ended_with: object, policy: RetryPolicy, chance: Callable[[], float]) -> End:
    match ended_with:
        case None:
            return COMPLETED
        case Done(result, publish, then, join):
            return End(Move.COMPLETE, State.COMPLETED, result=result, publish=publish, then=then, join=join)
        case Submitted(handle, poll_after):
            return _submitted(claim, handle, poll_after)
        case Snooze(delay, reason) if claim.is_poll:  # the engine still has the work: ask it later, and never submit it again
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
            return _surprised(claim, ended_with, policy, chance)
        case _:
            return End(Move.COMPLETE, State.COMPLETED, result=ended_with)


def released(reason: str) -> End:
    """Give the job back without prejudice, as on shutdown."""
    return End(Move.RELEASE, State.PENDING, error=reason, cause="released")


def cut_off() -> End:
    """The worker ends before the job did, and its kind says that it must not come back by itself."""
    return End(Move.FAIL, State.FAILED, error=CUT_OFF, cause="shutdown", errors=1)


def released_poll(claim: Claim, reason: str) -> End:
    """The engine could not be asked: its work and the count of polls stay as they are."""
    kept = {"handle": claim.handle, "poll_count": claim.poll_count, "poll_errors": claim.poll_errors}
    return End(Move.RELEASE, State.SUBMITTED, delay=poll_delay(claim.poll_count), error=reason, **kept)


def impossible(error: BaseException) -> End:
    """How the attempt should end could not be written, for a reason that is there every time: it has failed, and plainly."""
    return End(Move.FAIL, State.FAILED, error=f"its end could not be written: {_what(error)}", cause="permanent", errors=1)


def overdue(error: str = "its engine had it for longer than max_runtime") -> End:
    """The engine has had the work for longer than the job may take; what it still does is cleaned up as an effect."""
    return End(Move.FAIL, State.FAILED, error=error, cause="max_runtime", errors=1)


def _submitted(claim: Claim, handle: Json, poll_after: timedelta | None) -> End:
    count = claim.poll_count + 1
    delay = poll_delay(count) if poll_after is None else poll_after
    return End(Move.SUBMIT, State.SUBMITTED, delay=delay, handle=handle, poll_count=count)


def _surprised(claim: Claim, error: BaseException, policy: RetryPolicy, chance: Callable[[], float]) -> End:
    what = _what(error)
    trace = "".join(traceback.format_exception(error))[-8000:]
    worth_a_retry = claim.is_poll or isinstance(error, policy.only)
    if isinstance(error, policy.permanent) or not worth_a_retry:
        return End(Move.FAIL, State.FAILED, error=what, cause="permanent", errors=1, detail={"traceback": trace})
    # By its type and never by a word in its message: a permission error may well mention a timeout.
    cause = "timeout" if isinstance(error, TimeoutError) else "oom" if isinstance(error, MemoryError) else "error"
    if claim.is_poll:
        return _asked_in_vain(claim, what, policy, {"traceback": trace})
    return _retry(claim, what, cause, policy.backoff.delay(claim.errors, chance()), {"traceback": trace})


def _asked_in_vain(claim: Claim, reason: str, policy: RetryPolicy, detail: Json) -> End:
    """Nothing is known about the work, so it is left alone and asked for again, later each time; but not for ever."""
    poll_errors = claim.poll_errors + 1
    if poll_errors >= policy.poll_errors:
        said = f"its engine could not be asked {poll_errors} times in a row: {reason}"
        return End(Move.FAIL, State.FAILED, error=said, cause="poll", errors=1, poll_errors=poll_errors, detail=detail)
    delay = poll_delay(claim.poll_count + claim.poll_errors)
    kept = {"handle": claim.handle, "poll_count": claim.poll_count}
    return End(Move.RELEASE, State.SUBMITTED, delay=delay, error=reason, poll_errors=poll_errors, detail=detail, **kept)


def _retry(claim: Claim, reason: str, cause: str, delay: timedelta, detail: Json = None) -> End:
    if claim.errors + 1 >= claim.max_attempts:
        return End(Move.FAIL, State.FAILED, error=reason, cause=cause, errors=1, detail=detail)
    return End(Move.RETRY, State.PENDING, delay=delay, error=reason, cause=cause, errors=1, detail=detail)


def _what(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(error)).strip()
