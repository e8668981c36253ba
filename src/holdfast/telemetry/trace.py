"""Tracing: the request id and the span of the submitter are stored with a job. OpenTelemetry is an extra.

`enable()` turns spans on; without it the only cost is reading a variable. A job's span starts a new trace that is linked to the
submitter's span, because the job may start days later and run more than once.
"""

from __future__ import annotations

import json
from importlib.metadata import entry_points
from typing import Any

from holdfast.errors import UsageError
from holdfast.extras import loaded
from holdfast.telemetry import fields, redact

LONGEST = 200  # characters of a request id; a longer one is cut, because a mistake there should not fail an enqueue
_FAILED = frozenset({"fail", "retry"})

_tracing: Tracing | None = None
_configuration: str | None = None


def carrier() -> str | None:
    """The trace context to store with a new job; None: there is none."""
    found = fields.of_request()
    if request := found.pop("request_id", None):
        found["request_id"] = request[:LONGEST]
    if _tracing is not None:
        _tracing.inject(found)  # the current span replaces the span of the request
    return json.dumps(found) if found else None


def begin(attempt: fields.Attempt) -> Span | None:
    """Start the span of an attempt, current in this task until its end; None while tracing is off."""
    return None if _tracing is None else _tracing.begin(attempt)


def enable(provider: Any = None) -> None:
    """Create spans for jobs with this tracer provider, or with the global one."""
    global _tracing
    _tracing = Tracing(provider)


def disable() -> None:
    """Create no more spans."""
    global _tracing, _configuration
    _tracing = _configuration = None


def export_to(exporter: str | None) -> None:
    """Turn tracing on in one of our programs: `host` uses the global provider, any other value is the name of an exporter.

    Exporters are found by the entry point of their package: `console` is part of the SDK, `otlp` of
    `opentelemetry-exporter-otlp`. They read the OTEL_* variables.
    """
    global _configuration
    if exporter is None:
        return
    enable(None if exporter == "host" else _provider(exporter))
    _configuration = exporter


def configuration() -> str | None:
    """The argument of `export_to`, for a child process."""
    return _configuration


def flush() -> None:
    """Send buffered spans: for a process that may be killed. Blocks."""
    if _tracing is not None:
        _tracing.flush()


class Tracing:
    """The parts of OpenTelemetry that are used."""

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
            context=self.context.Context(),  # a new trace
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
        """End the span with the outcome. Call it in the same task."""
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
    return loaded(module, extra="otel")
