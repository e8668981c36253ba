"""What a command ends with: one code for each thing that a script may want to tell apart, and the error behind it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

from holdfast import errors


class Exit(IntEnum):
    """Exit codes; the same everywhere."""

    OK = 0  # it went well; for a wait, every job completed
    FAILED = 1  # it did not, or the job that was waited for failed
    USAGE = 2  # the call is wrong
    NOT_FOUND = 3  # there is no such thing
    DENIED = 4  # nobody known, or not allowed
    CONFLICT = 5  # locked, not stale, in the wrong state, or more than expected
    UNAVAILABLE = 6  # the server or the database cannot be reached, or takes no new jobs
    RATE_LIMITED = 7  # too many requests; the message says how long to wait
    PARTIAL = 8  # some of it went well; doctor: something needs a look
    CANCELLED = 9  # the job that was waited for was cancelled
    TIMEOUT = 124  # --timeout was reached
    INTERRUPTED = 130  # Ctrl-C


class Told(errors.HoldfastError):
    """The server said no, in its words: RFC 9457."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        detail = str(problem.get("detail") or problem.get("title") or f"the server answered {status}")
        super().__init__(detail)
        self.status, self.problem = status, problem
        self.advice: str | None = problem.get("what_to_do")

    @property
    def code(self) -> str:
        return str(self.problem.get("code", ""))

    def wants(self, field: str) -> bool:
        """Whether it is this field of the body that is missing or wrong."""
        return any(error.get("pointer") == f"/body/{field}" for error in self.problem.get("errors") or ())

    @property
    def put_off(self) -> float | None:
        """How many seconds to wait before it is worth asking again; None: it is not."""
        said = str(self.problem.get("retry_after", ""))
        return float(said) if self.status in (429, 503) and said.isdecimal() else None


class Unreachable(errors.HoldfastError):
    """Nobody answers there."""


class GaveUp(errors.HoldfastError):
    """`--timeout` was reached."""


OF_STATUS = {
    400: Exit.USAGE,
    401: Exit.DENIED,
    403: Exit.DENIED,
    404: Exit.NOT_FOUND,
    409: Exit.CONFLICT,
    412: Exit.CONFLICT,
    413: Exit.USAGE,
    422: Exit.USAGE,
    429: Exit.RATE_LIMITED,
    502: Exit.UNAVAILABLE,
    503: Exit.UNAVAILABLE,
}
# The first that fits counts: the nearer ones stand above what they are a kind of.
OF_ERROR: tuple[tuple[type[Exception], Exit], ...] = (
    (Unreachable, Exit.UNAVAILABLE),
    (GaveUp, Exit.TIMEOUT),
    (errors.NotFound, Exit.NOT_FOUND),
    (errors.UsageError, Exit.USAGE),
    (errors.Draining, Exit.UNAVAILABLE),
    (errors.Refused, Exit.CONFLICT),
    (errors.ClaimLost, Exit.CONFLICT),
    (errors.DatabaseProblem, Exit.UNAVAILABLE),
)
OF_STATE = {"completed": Exit.OK, "failed": Exit.FAILED, "cancelled": Exit.CANCELLED}


def exit_of(error: BaseException) -> Exit:
    """The code that an error ends the program with. Pure."""
    if isinstance(error, Told):
        return OF_STATUS.get(error.status, Exit.FAILED)
    if type(error).__module__.startswith("psycopg"):  # not imported for its name: it is slow to load, and often not needed
        return Exit.UNAVAILABLE
    return next((code for kind, code in OF_ERROR if isinstance(error, kind)), Exit.FAILED)


def exit_of_states(states: list[str]) -> Exit:
    """The code for what became of several jobs: the worst of it; a failure is worse than a cancel. Pure."""
    codes = {OF_STATE[state] for state in states}
    return next((code for code in (Exit.FAILED, Exit.CANCELLED) if code in codes), Exit.OK)
