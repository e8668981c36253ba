"""ASGI middleware for an application that runs ingestion beside its routes: how long its requests take.

    app.add_middleware(WebLatency)

The rule of document 004 for a separate worker is a rise of the p95 during ingestion. This is the metric that shows it:
`histogram_quantile(0.95, rate(ingestion_web_request_duration_seconds_bucket[5m]))`.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from holdfast.services.ingestion import measures

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class WebLatency:
    """Measures every HTTP request, by the template of its route and its status."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun, status = time.monotonic(), 500  # of a route that raises

        async def observed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, observed)
        finally:
            route = getattr(scope.get("route"), "path", "none")  # never the path: ids must not become time series
            measures.web_seconds.labels(route, str(status)).observe(time.monotonic() - begun)
