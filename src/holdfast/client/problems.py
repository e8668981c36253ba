"""What the API can answer instead of what was asked for: one exception per thing that a caller would do differently."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.errors import HoldfastError


class ApiProblem(HoldfastError):
    """The API said no. `code` is stable; `errors` are the single mistakes, where it found several."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        self.status, self.problem = status, dict(problem)
        self.code = str(problem.get("code", ""))
        self.errors: list[dict[str, Any]] = list(problem.get("errors") or ())
        said = str(problem.get("detail") or problem.get("title") or f"the API answered {status}")
        single = [f"{_place(error)}: {_what(error)}" for error in self.errors]
        super().__init__("\n  ".join([said, *(line for line in single if line not in said)]))


def _place(error: Mapping[str, Any]) -> str:
    return str(error.get("pointer") or error.get("path") or error.get("loc") or "?")


def _what(error: Mapping[str, Any]) -> str:
    return str(error.get("detail") or error.get("message") or error.get("msg") or error)


class Invalid(ApiProblem):
    """What was sent is wrong: every mistake is in `errors`."""


class NotAllowed(ApiProblem):
    """No token, an old one, or one whose role may not do this."""


class NotThere(ApiProblem):
    """There is no such thing."""


class Conflict(ApiProblem):
    """It cannot be done now: another state, another version, something that depends on it."""


class TooMany(ApiProblem):
    """Asked too often, also after waiting as long as was said."""


class Unavailable(ApiProblem):
    """Not now: draining, restarting, or without its database."""


BY_STATUS: dict[int, type[ApiProblem]] = {
    400: Invalid,
    401: NotAllowed,
    403: NotAllowed,
    404: NotThere,
    409: Conflict,
    412: Conflict,
    413: Invalid,
    422: Invalid,
    429: TooMany,
    503: Unavailable,
}


def problem_of(status: int, problem: Mapping[str, Any]) -> ApiProblem:
    """The exception for an answer. Pure."""
    return BY_STATUS.get(status, ApiProblem)(status, problem)


class JobFailed(HoldfastError):
    """A job that was waited for has failed or was cancelled; `job` is the job."""

    def __init__(self, job: Mapping[str, Any]) -> None:
        self.job = dict(job)
        super().__init__(f"job {job['id']} {job['state']}: {job.get('error') or 'no reason was given'}")


class SnapshotFailed(HoldfastError):
    """A snapshot that was waited for has failed or was cancelled; `snapshot` says which of its exports."""

    def __init__(self, snapshot: Any) -> None:
        self.snapshot = snapshot
        super().__init__(f"snapshot {snapshot.id} {snapshot.status}: {snapshot.error_message or 'no reason was given'}")
