"""Errors that the API answers with (RFC 9457): one exception for each case that a caller handles differently."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.errors import HoldfastError


class ApiError(HoldfastError):
    """The API refused a request. `code` is stable; `errors` lists the invalid fields; `advice` says what to do."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        self.status, self.problem = status, dict(problem)
        self.code = str(problem.get("code", ""))
        self.errors: list[dict[str, Any]] = list(problem.get("errors") or ())
        self.advice: str | None = problem.get("what_to_do")
        self.detail = str(problem.get("detail") or problem.get("title") or f"the API answered {status}")
        fields = [f"{_place(error)}: {_what(error)}" for error in self.errors]
        super().__init__("\n  ".join([self.detail, *(line for line in fields if line not in self.detail)]))

    def names_field(self, field: str) -> bool:
        """Whether this field of the request body is missing or invalid."""
        return any(error.get("pointer") == f"/body/{field}" for error in self.errors)

    @property
    def retry_after(self) -> float | None:
        """How many seconds to wait before trying again; None: trying again does not help."""
        seconds = str(self.problem.get("retry_after", ""))
        return float(seconds) if self.status in (429, 503) and seconds.isdecimal() else None


def _place(error: Mapping[str, Any]) -> str:
    return str(error.get("pointer") or error.get("path") or error.get("loc") or "?")


def _what(error: Mapping[str, Any]) -> str:
    return str(error.get("detail") or error.get("message") or error.get("msg") or error)


class Invalid(ApiError):
    """The request is not valid; `errors` lists every invalid field."""


class NotAuthenticated(ApiError):
    """No token, or one that is unknown, expired or revoked."""


class Forbidden(ApiError):
    """The role of the token does not permit this."""


class NotFound(ApiError):
    """The object does not exist."""


class Conflict(ApiError):
    """The current state does not permit this: wrong state, changed version, or other objects depend on it."""


class RateLimited(ApiError):
    """Too many requests, even after waiting as long as the API asked for."""


class Unavailable(ApiError):
    """The API cannot do this now: it drains, restarts, or has lost its database."""


BY_STATUS: dict[int, type[ApiError]] = {
    400: Invalid,
    401: NotAuthenticated,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    412: Conflict,
    413: Invalid,
    422: Invalid,
    429: RateLimited,
    503: Unavailable,
}


def problem_of(status: int, problem: Mapping[str, Any], retry_after: str | None = None) -> ApiError:
    """The exception for an answer, with its header `Retry-After`. Pure."""
    found = problem if retry_after is None else {"retry_after": retry_after, **problem}
    return BY_STATUS.get(status, ApiError)(status, found)


class JobFailed(HoldfastError):
    """The job failed or was cancelled while `wait` waited for it; `job` is the job."""

    def __init__(self, job: Any) -> None:
        self.job = job
        super().__init__(f"job {job.id} {job.state}: {job.error or 'no error was recorded'}")
