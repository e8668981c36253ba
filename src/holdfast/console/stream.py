"""One event stream for each tab: named events without data. A live region that hears one reads its own page again.

So data comes only from pages, with their permissions. The hub of the API looks at the database once for all tabs.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from holdfast.api.plane import caller_of, plane_of
from holdfast.api.sse import Event

CHANGED = b"event: changed\ndata:\n\n"


async def follow(request: Request) -> Response:
    """Tell the tab that something has changed."""

    async def begin() -> list[Event]:
        return []

    return plane_of(request).hub.respond("console", caller_of(request), begin, encode=lambda event: CHANGED)
