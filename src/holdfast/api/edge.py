"""The outermost ring: every request gets an id, every answer its headers, and a fault of ours becomes a problem."""

from __future__ import annotations

import re
import time
from uuid import uuid4

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.api.problems import Problem, answer
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

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                _add_headers(MutableHeaders(scope=message), scope, request_id)
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=request_id, **_trace_of(scope)):
            try:
                await self._app(scope, receive, send_with_headers)
            except Exception:
                log.exception("http_fault", method=scope["method"], path=scope["path"])
                if status:  # too late for another answer
                    raise
                fault = answer(Request(scope), Problem("internal", "something went wrong here"))
                await fault(scope, receive, send_with_headers)
            if scope["method"] not in ("GET", "HEAD", "OPTIONS") and status < 400:
                scope["app"].state.hub.changed()
            caller = scope["state"].get("caller")
            log.info(
                "http_request",
                method=scope["method"],
                path=scope["path"],
                status=status,
                ms=round((time.monotonic() - started) * 1000, 1),
                actor=None if caller is None else caller.actor,
            )


def _request_id(scope: Scope) -> str:
    """The caller's, if it is harmless; it goes into logs and headers."""
    given = Headers(scope=scope).get("x-request-id", "")
    return given if REQUEST_ID.match(given) else uuid4().hex


def _trace_of(scope: Scope) -> dict[str, str]:
    """The caller's span, if it names one: the span of a job that it submits is linked to it."""
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
