"""The job fields of log lines that are written inside an attempt. Set by: the lanes.

One context variable is set for each attempt, and its fields are read when a line is written: a short job that logs nothing pays
a quarter of a microsecond. An application with its own structlog configuration adds `add_job` to its processors.
"""

from __future__ import annotations

import json
import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from structlog.typing import EventDict, WrappedLogger


class Attempt(Protocol):
    """The attributes of a claim that are logged."""

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
    @property
    def trace(self) -> str | None: ...


_attempt: ContextVar[Attempt | None] = ContextVar("holdfast_attempt", default=None)
_worker: ContextVar[str | None] = ContextVar("holdfast_worker", default=None)

of_attempt = _attempt.set  # in this task until the next one; tasks and threads that a handler starts inherit it
of_worker = _worker.set
current = _attempt.get


def job_fields() -> dict[str, Any]:
    """The fields of the current attempt; empty outside of an attempt."""
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
        "request_id": carried_by(attempt).get("request_id"),
    }
    return {name: value for name, value in found.items() if value is not None}


def add_job(_logger: WrappedLogger, _name: str, event: EventDict) -> EventDict:
    """A structlog processor that adds the job fields. Fields of the line itself have precedence."""
    return {**job_fields(), **event}


def request_id() -> str | None:
    """The request id: that of the current job, or the one that our API or a web application has bound."""
    attempt = _attempt.get()
    found = None if attempt is None else carried_by(attempt).get("request_id")
    if found is None:
        found = _bound("request_id")
    return found if isinstance(found, str) else None


def traceparent() -> str | None:
    """The W3C `traceparent` of the API request, if there is one."""
    found = _bound("traceparent")
    return found if isinstance(found, str) else None


def _bound(name: str) -> Any:
    """A context variable of structlog. Where structlog is not loaded, which takes long, nothing can be bound."""
    contextvars = sys.modules.get("structlog.contextvars")
    return None if contextvars is None else contextvars.get_contextvars().get(name)


def carried_by(attempt: Attempt) -> dict[str, Any]:
    """The trace context that was stored when the job was enqueued (`trace.py`)."""
    carried = json.loads(attempt.trace) if attempt.trace else {}
    return carried if isinstance(carried, dict) else {}
