"""Exit codes: one for each outcome that a script may want to handle differently, and the errors that lead to them."""

from __future__ import annotations

from enum import IntEnum

from holdfast import errors
from holdfast.toolkit.client.problems import ApiError


class Exit(IntEnum):
    """Exit codes; the same for every command."""

    OK = 0  # success; for a wait, every job completed
    FAILED = 1  # an error, or the job that was waited for failed
    USAGE = 2  # wrong options or arguments
    NOT_FOUND = 3  # the object does not exist
    DENIED = 4  # not authenticated, or not permitted
    CONFLICT = 5  # locked, not stale, in the wrong state, or more matches than expected
    UNAVAILABLE = 6  # the server or the database cannot be reached, or accepts no new jobs
    RATE_LIMITED = 7  # too many requests; the message says how long to wait
    PARTIAL = 8  # partly successful; doctor: a check needs attention
    CANCELLED = 9  # the job that was waited for was cancelled
    TIMEOUT = 124  # --timeout was reached
    INTERRUPTED = 130  # Ctrl-C


class WaitTimeout(errors.HoldfastError):
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
# The first match counts: subclasses come before their base classes.
OF_ERROR: tuple[tuple[type[Exception], Exit], ...] = (
    (errors.Unreachable, Exit.UNAVAILABLE),
    (WaitTimeout, Exit.TIMEOUT),
    (errors.NotFound, Exit.NOT_FOUND),
    (errors.UsageError, Exit.USAGE),
    (errors.Draining, Exit.UNAVAILABLE),
    (errors.Refused, Exit.CONFLICT),
    (errors.ClaimLost, Exit.CONFLICT),
    (errors.DatabaseProblem, Exit.UNAVAILABLE),
)
OF_STATE = {"completed": Exit.OK, "failed": Exit.FAILED, "cancelled": Exit.CANCELLED}


def exit_of(error: BaseException) -> Exit:
    """The exit code of an error. Pure."""
    if isinstance(error, ApiError):
        return OF_STATUS.get(error.status, Exit.FAILED)
    if type(error).__module__.startswith("psycopg"):  # by name: importing psycopg takes time, and often it is not loaded
        return Exit.UNAVAILABLE
    return next((code for kind, code in OF_ERROR if isinstance(error, kind)), Exit.FAILED)


def exit_of_states(states: list[str]) -> Exit:
    """The exit code for the states of several jobs: failed counts more than cancelled. Pure."""
    codes = {OF_STATE[state] for state in states}
    return next((code for code in (Exit.FAILED, Exit.CANCELLED) if code in codes), Exit.OK)
