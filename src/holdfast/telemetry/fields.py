"""Which job a line is about: fields that every line carries which is written inside an attempt. Set by: the lanes.

One variable is set for an attempt, and its fields are looked up when a line is written: a short job that writes none pays a
quarter of a microsecond. A host with a structlog configuration of its own puts `add_job` among its processors.
"""

from __future__ import annotations

import json
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
    @property
    def trace(self) -> str | None: ...


_attempt: ContextVar[Attempt | None] = ContextVar("holdfast_attempt", default=None)
_worker: ContextVar[str | None] = ContextVar("holdfast_worker", default=None)

of_attempt = _attempt.set  # in this task until the next one; tasks and threads that a handler starts inherit it
of_worker = _worker.set
current = _attempt.get


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
        "request_id": carried_by(attempt).get("request_id"),
    }
    return {name: value for name, value in found.items() if value is not None}


def add_job(_logger: WrappedLogger, _name: str, event: EventDict) -> EventDict:
    """A structlog processor: what the line says itself counts more."""
    return {**job_fields(), **event}


def request_id() -> str | None:
    """The request that this code runs for: the job's around it, or one that our API or a web application has bound."""
    attempt = _attempt.get()
    found = None if attempt is None else carried_by(attempt).get("request_id")
    if found is None:
        found = structlog.contextvars.get_contextvars().get("request_id")
    return found if isinstance(found, str) else None


def traceparent() -> str | None:
    """The span in which somebody asked our API for this, as the W3C's header has it."""
    found = structlog.contextvars.get_contextvars().get("traceparent")
    return found if isinstance(found, str) else None


def carried_by(attempt: Attempt) -> dict[str, Any]:
    """What the job remembers of the code that enqueued it (`trace.py`)."""
    carried = json.loads(attempt.trace) if attempt.trace else {}
    return carried if isinstance(carried, dict) else {}
