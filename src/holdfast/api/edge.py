"""Middleware around everything: request ids, security headers, request metrics, and faults as problems."""

from __future__ import annotations

import re
import time
from uuid import uuid4

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.api.problem_responses import answer
from holdfast.api.problems import Problem
from holdfast.telemetry import metrics
from holdfast.telemetry.log import log

TRACEPARENT = re.compile(r"^00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$")
REQUEST_ID = re.compile(r"^[A-Za-z0-9._:-]{1,128}$")
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
CLIENT_LEFT = 499  # as in nginx; only for the log and the metrics, because the client has disconnected
DOCS_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' https://cdn.jsdelivr.net; "
    "style-src 'self' 'unsafe-inline' https://cdn.jsdelivr.net; img-src 'self' data: https://fastapi.tiangolo.com"
)


class Edge:
    """ASGI middleware around everything."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)
        scope.setdefault("state", {})["request_id"] = request_id
        started, status = time.monotonic(), 0
        first_byte: float | None = None  # of a stream, whose total duration says nothing about latency

        async def send_with_headers(message: Message) -> None:
            nonlocal status, first_byte
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                _add_headers(headers, scope, request_id)
                if headers.get("content-type", "").startswith("text/event-stream"):
                    first_byte = time.monotonic()
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=request_id, **_trace_of(scope)):
            try:
                await self._app(scope, receive, send_with_headers)
            except ClientDisconnect:  # while the body was read: it is logged below, and is not an error
                status = CLIENT_LEFT
            except Exception:
                log.exception("http_fault", method=scope["method"], path=scope["path"])
                if status:  # too late for another response
                    _measure(scope, 500, time.monotonic() - started)
                    raise
                fault = answer(Request(scope), Problem("internal", "an internal error occurred"))
                await fault(scope, receive, send_with_headers)
            if scope["method"] not in ("GET", "HEAD", "OPTIONS") and status < 400:
                scope["app"].state.hub.changed()
            ended = time.monotonic()
            _measure(scope, status, (first_byte or ended) - started)
            caller = scope["state"].get("caller")
            log.info(
                "http_request",
                method=scope["method"],
                path=scope["path"],
                status=status,
                ms=round((ended - started) * 1000, 1),
                actor=None if caller is None else caller.actor,
            )


def _measure(scope: Scope, status: int, seconds: float) -> None:
    """Measure by the route's template and never by the path: ids and mistyped paths must not become time series."""
    route = getattr(scope.get("route"), "path", "none")
    method = scope["method"] if scope["method"] in METHODS else "other"
    labels = (method, route, str(status))
    metrics.http_requests.labels(*labels).inc()
    metrics.http_seconds.labels(*labels).observe(seconds)


def _request_id(scope: Scope) -> str:
    """The caller's request id if it is valid, otherwise a new one; it is used in logs and headers."""
    given = Headers(scope=scope).get("x-request-id", "")
    return given if REQUEST_ID.match(given) else uuid4().hex


def _trace_of(scope: Scope) -> dict[str, str]:
    """The caller's span, if it sends one: the spans of jobs that it submits are linked to it."""
    given = Headers(scope=scope).get("traceparent", "")
    return {"traceparent": given} if TRACEPARENT.match(given) else {}


def _add_headers(headers: MutableHeaders, scope: Scope, request_id: str) -> None:
    headers["X-Request-Id"] = request_id
    for name, value in HEADERS.items():
        headers.setdefault(name, value)
    if scope["path"] == "/docs":
        headers["Content-Security-Policy"] = DOCS_POLICY
    if scope.get("scheme") == "https":
        headers.setdefault("Strict-Transport-Security", "max-age=31536000")
