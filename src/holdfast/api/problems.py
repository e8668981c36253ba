"""Error responses: RFC 9457 problem details with a stable `code` and a fix. Without a web framework: the command line uses them
too. `problem_responses.py` answers requests with them.

The types are in `problem_types.py`; `/problems/<slug>` serves each of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import psycopg

from holdfast import errors
from holdfast.api.problem_types import PROBLEMS
from holdfast.database.pool import is_permanent


class Problem(Exception):
    """An error that is answered with a problem response."""

    def __init__(self, slug: str, detail: str, *, headers: Mapping[str, str] | None = None, **members: Any) -> None:
        super().__init__(detail)
        self.slug, self.detail, self.headers, self.members = slug, detail, dict(headers or {}), members

    @property
    def status(self) -> int:
        return PROBLEMS[self.slug].status


def code_of(slug: str) -> str:
    """The stable code for programs."""
    return slug.upper().replace("-", "_")


def advice_for(problem: Problem) -> str:
    """How to fix it; a request that is invalid as a whole has no list of errors. Pure."""
    if problem.slug == "invalid-request" and "errors" not in problem.members:
        return "Fix what `detail` names, and send it again."
    return PROBLEMS[problem.slug].advice


def body_of(problem: Problem, path: str, request_id: str) -> dict[str, Any]:
    """The members of the problem response to a request. Pure."""
    kind = PROBLEMS[problem.slug]
    return {
        "type": f"/problems/{problem.slug}",
        "title": kind.title,
        "status": kind.status,
        "detail": problem.detail,
        "code": code_of(problem.slug),
        "what_to_do": advice_for(problem),
        "instance": path,
        "request_id": request_id,
        **problem.members,
    }


# ---------------------------------------------------------------------------------------------------------------------
# Errors of other layers
# ---------------------------------------------------------------------------------------------------------------------

SOON = {"Retry-After": "1"}
LATER = {"Retry-After": "30"}

# The first match counts, so subclasses are listed before their base classes.
OF_OUR_ERRORS: Final[Sequence[tuple[type[errors.HoldfastError], str]]] = (
    (errors.NotFound, "not-found"),
    (errors.UnknownKind, "unknown-kind"),
    (errors.PayloadInvalid, "invalid-payload"),
    (errors.UsageError, "invalid-request"),
    (errors.LockBusy, "lock-busy"),
    (errors.IdempotencyConflict, "idempotency-mismatch"),
    (errors.NotStale, "not-stale"),
    (errors.IllegalMove, "wrong-state"),
    (errors.Draining, "draining"),
    (errors.TriggeredTooOften, "rate-limited"),
    (errors.Refused, "refused"),
    (errors.ClaimLost, "stale-attempt"),
    (errors.CancelRequested, "cancel-requested"),
    (errors.TermLost, "refused"),
    (errors.DatabaseProblem, "database-unavailable"),
)


def of_ours(error: errors.HoldfastError) -> Problem:
    """An error of Holdfast as a problem; its `members()` become extension members."""
    slug = error.slug or next((slug for kind, slug in OF_OUR_ERRORS if isinstance(error, kind)), "internal")
    if isinstance(error, errors.LockBusy):
        return Problem(slug, str(error), lock_key=error.key, holder_job_id=error.holder)
    if isinstance(error, errors.Draining):
        return Problem(slug, str(error), headers=LATER, kind=error.kind, reason=error.reason)
    if isinstance(error, errors.CancelRequested):
        return Problem(slug, str(error), reason=error.reason)
    if isinstance(error, errors.TriggeredTooOften):
        seconds = error.retry_after
        return Problem(slug, str(error), headers={"Retry-After": str(seconds)}, retry_after=seconds, job_name=error.loop)
    if isinstance(error, errors.DatabaseProblem):
        return Problem(slug, "the database cannot be used at the moment", headers=LATER)
    return Problem(slug, str(error), **error.members())


def of_the_database(error: Exception) -> Problem:
    """An error of Postgres or of the connection. Its message is only logged, because it may contain stored data."""
    if isinstance(error, psycopg.errors.LockNotAvailable | psycopg.errors.DeadlockDetected):
        return Problem("busy", "another request is changing the same object", headers=SOON)
    if isinstance(error, psycopg.errors.QueryCanceled):
        return Problem("too-slow", "the database did not answer in time", headers=SOON)
    if isinstance(error, psycopg.DataError | psycopg.errors.IntegrityError) or _exceeds_a_limit(error):
        return Problem("invalid-request", "the database cannot store this value")
    if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
        return Problem("database-unavailable", "the database takes no writes at the moment", headers=SOON)
    if is_permanent(error):
        return Problem("internal", "the database refuses this, and would refuse it again; the log has the reason")
    return Problem("database-unavailable", "the database cannot be reached", headers=SOON)


def _exceeds_a_limit(error: Exception) -> bool:
    return isinstance(error, psycopg.Error) and (error.sqlstate or "").startswith("54")
