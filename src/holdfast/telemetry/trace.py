"""Where a job came from: the request and the span of its submitter travel with it. OpenTelemetry is an extra.

`enable()` turns spans on; without it the only cost is one look at a variable. A job's span is a trace of its own, linked to the
submitter's span: it may begin days later, and run more than once.
"""

from __future__ import annotations

import importlib
import json
from importlib.metadata import entry_points
from typing import Any

from holdfast.errors import UsageError
from holdfast.telemetry import fields, redact

LONGEST = 200  # characters of a request's id; what is longer is somebody's mistake, and not worth a refused enqueue
_FAILED = frozenset({"fail", "retry"})

_tracing: Tracing | None = None
_configuration: str | None = None


def carrier() -> str | None:
    """What a job remembers of the code that enqueues it; None: nothing is known."""
    request = fields.request_id()
    found = {"request_id": request[:LONGEST]} if request else {}
    if (asked_in := fields.traceparent()) is not None:
        found["traceparent"] = asked_in
    if _tracing is not None:
        _tracing.inject(found)  # the span around this code is nearer than the one of the caller
    return json.dumps(found) if found else None


def begin(attempt: fields.Attempt) -> Span | None:
    """The span of an attempt, current in this task until its end; None while tracing is off."""
    return None if _tracing is None else _tracing.begin(attempt)


def enable(provider: Any = None) -> None:
    """Make spans of jobs with this tracer provider, or with the one that the process has set for all."""
    global _tracing
    _tracing = Tracing(provider)


def disable() -> None:
    """Make no more spans."""
    global _tracing, _configuration
    _tracing = _configuration = None


def export_to(exporter: str | None) -> None:
    """Turn tracing on in one of our own programs: `host` uses what was set up around it, any other name is an exporter's.

    Exporters are found by the names under which their packages register them: `console` comes with the SDK, `otlp` with
    `opentelemetry-exporter-otlp`. They read the OTEL_* variables themselves.
    """
    global _configuration
    if exporter is None:
        return
    enable(None if exporter == "host" else _provider(exporter))
    _configuration = exporter


def configuration() -> str | None:
    """What `export_to` was called with, for a process that is to do the same."""
    return _configuration


def flush() -> None:
    """Send what has gathered: for a process that may be ended without notice. Blocks."""
    if _tracing is not None:
        _tracing.flush()


class Tracing:
    """OpenTelemetry, as far as we use it."""

    def __init__(self, provider: Any) -> None:
        self.api = _import("opentelemetry.trace")
        self.context = _import("opentelemetry.context")
        self._carry = _import("opentelemetry.trace.propagation.tracecontext").TraceContextTextMapPropagator()
        self._provider = provider or self.api.get_tracer_provider()
        self._tracer = self._provider.get_tracer("holdfast")

    def inject(self, carried: dict[str, str]) -> None:
        self._carry.inject(carried)

    def begin(self, attempt: fields.Attempt) -> Span:
        submitter = self.api.get_current_span(self._carry.extract(fields.carried_by(attempt))).get_span_context()
        span = self._tracer.start_span(
            f"job {attempt.kind}",
            context=self.context.Context(),  # a trace of its own
            kind=self.api.SpanKind.CONSUMER,
            links=[self.api.Link(submitter)] if submitter.is_valid else [],
            attributes={
                "holdfast.job_id": attempt.id,
                "holdfast.attempt": attempt.attempt_no,
                "holdfast.attempt_id": attempt.attempt_id,
                "holdfast.kind": attempt.kind,
            },
        )
        return Span(self, span)

    def flush(self) -> None:
        flush = getattr(self._provider, "force_flush", None)
        if flush is not None:
            flush()


class Span:
    """The span of one attempt, current in the task that began it."""

    def __init__(self, tracing: Tracing, span: Any) -> None:
        self._tracing, self._span = tracing, span
        self._token = tracing.context.attach(tracing.api.set_span_in_context(span))

    def end(self, outcome: str, error: str | None) -> None:
        """With how it ended. In the same task."""
        self._span.set_attribute("holdfast.outcome", outcome)
        if outcome in _FAILED:
            status = self._tracing.api.Status(self._tracing.api.StatusCode.ERROR, redact.text(error or outcome))
            self._span.set_status(status)
        self._tracing.context.detach(self._token)
        self._span.end()


def _provider(exporter: str) -> Any:
    sdk, export = _import("opentelemetry.sdk.trace"), _import("opentelemetry.sdk.trace.export")
    resources = _import("opentelemetry.sdk.resources")
    found = next(iter(entry_points(group="opentelemetry_traces_exporter", name=exporter)), None)
    if found is None:
        known = sorted({one.name for one in entry_points(group="opentelemetry_traces_exporter")} | {"host"})
        raise UsageError(
            f"HOLDFAST_TRACES={exporter}: no exporter of that name is installed; there are: {', '.join(known)}. "
            "For `otlp` install opentelemetry-exporter-otlp-proto-http"
        )
    provider = sdk.TracerProvider(resource=resources.Resource.create({"service.name": "holdfast"}))
    provider.add_span_processor(export.BatchSpanProcessor(found.load()()))
    return provider


def _import(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise UsageError(f"traces need OpenTelemetry: pip install 'holdfast[otel]' ({error})") from None
