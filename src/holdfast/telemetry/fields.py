"""Which job a line is about: fields that every line carries which is written inside an attempt. Set by: the lanes.

One variable is set for an attempt, and its fields are looked up when a line is written: a short job that writes none pays a
quarter of a microsecond. A host with a structlog configuration of its own puts `add_job` among its processors.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Protocol

import structlog
from structlog.typing import EventDict, WrappedLogger


class Attempt(Protocol):
    """What a claim says about the attempt that it is for."""

    @property
    def id(self) -> Any: ...
    @property
    def attempt_id(self) -> Any: ...
    @property
    def attempt_no(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def pipeline_id(self) -> str | None: ...


_attempt: ContextVar[Attempt | None] = ContextVar("holdfast_attempt", default=None)
_worker: ContextVar[str | None] = ContextVar("holdfast_worker", default=None)

of_attempt = _attempt.set  # in this task until the next one; tasks and threads that a handler starts inherit it
of_worker = _worker.set


def job_fields() -> dict[str, Any]:
    """The fields of the attempt around this code; none outside of one."""
    attempt = _attempt.get()
    if attempt is None:
        return {}
    found = {
        "job_id": attempt.id,
        "attempt_id": attempt.attempt_id,
        "attempt": attempt.attempt_no,
        "kind": attempt.kind,
        "worker": _worker.get(),
        "pipeline_id": attempt.pipeline_id,
    }
    return {name: value for name, value in found.items() if value is not None}


def add_job(_logger: WrappedLogger, _name: str, event: EventDict) -> EventDict:
    """A structlog processor: what the line says itself counts more."""
    return {**job_fields(), **event}


def request_id() -> str | None:
    """The request that this code runs for, if somebody has bound one: our API, a web application, or the job around it."""
    found = structlog.contextvars.get_contextvars().get("request_id")
    return found if isinstance(found, str) else None
