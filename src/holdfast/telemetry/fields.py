"""The job fields of log lines that are written inside an attempt. Set by: the lanes.

One context variable is set for each attempt, and its fields are read when a line is written: a short job that logs nothing pays
a quarter of a microsecond. An application with its own structlog configuration adds `add_job` to its processors.
"""

from __future__ import annotations

import json
from contextvars import ContextVar, copy_context
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


# The context variables that structlog makes when a web application or our API binds these. They are read here without
# structlog, which takes long to import and copies all of its variables.
OF_REQUEST = {f"structlog_{name}": name for name in ("request_id", "traceparent")}

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


def of_request() -> dict[str, str]:
    """The `request_id` of the current job, or the one that our API or a web application has bound, and the W3C `traceparent` of
    the API request; each only if there is one. Read by every enqueue."""
    found = {
        OF_REQUEST[var.name]: text for var, text in copy_context().items() if var.name in OF_REQUEST and isinstance(text, str)
    }
    attempt = _attempt.get()
    carried = None if attempt is None or attempt.trace is None else carried_by(attempt).get("request_id")
    return found | {"request_id": carried} if isinstance(carried, str) else found


def carried_by(attempt: Attempt) -> dict[str, Any]:
    """The trace context that was stored when the job was enqueued (`trace.py`)."""
    carried = json.loads(attempt.trace) if attempt.trace else {}
    return carried if isinstance(carried, dict) else {}
