"""The console inside another web application: `app.mount("/jobs", holdfast.console(url, auth=known))`.

The application authenticates: `auth` gets each request and returns the name and the role of the user, or None. What a user
may see and do is then decided as everywhere, and audited as `app:<name>`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from inspect import isawaitable
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast import catalog
from holdfast.api.app import make_app
from holdfast.api.edge import Edge
from holdfast.api.plane import Principal
from holdfast.api.policy import Role
from holdfast.apps.api import bounded_pool, options_of
from holdfast.apps.loops import ScheduledLoops
from holdfast.console.app import attach, make_console
from holdfast.database.revision import require_current
from holdfast.distribution import VERSION
from holdfast.errors import UsageError
from holdfast.extras import missing_modules
from holdfast.settings import Settings, settings_class

User = tuple[str, str]  # name and role, such as ("ada", "ops")
Auth = Callable[[Request], "Awaitable[User | None] | User | None"]
CONNECTIONS = 4


def console(url: str | None = None, *, auth: Auth, links: Mapping[str, str] | None = None) -> EmbeddedConsole:
    """A console to mount. `url`: else HOLDFAST_DATABASE_URL. `links`: external links of a job, as HOLDFAST_CONSOLE_LINKS.

    It connects at its first request, or in `running()`. Live pages poll: an event stream of a tab would delay the shutdown of
    the application.
    """
    missing = missing_modules("console")
    if missing:
        raise UsageError(f"{missing[0]} is not installed; it comes with the extra 'console'")
    settings = settings_class()()
    address = url or settings.database_url
    if not address:
        raise UsageError("holdfast.console needs the address of the database, or HOLDFAST_DATABASE_URL")
    return EmbeddedConsole(address, settings, auth, settings.console_links if links is None else links)


class EmbeddedConsole:
    """An ASGI application."""

    def __init__(self, url: str, settings: Settings, auth: Auth, links: Mapping[str, str]) -> None:
        self._url, self._settings, self._auth = url, settings, auth
        self._console = make_console(catalog.console_parts(), known_by=self._known_by, links=links)
        self._edge: ASGIApp = Edge(self._console)
        self._open = AsyncExitStack()
        self._one_at_a_time = asyncio.Lock()
        self._is_open = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.start()
        await self._edge(scope, receive, send)

    async def start(self) -> None:
        """Connect, once."""
        async with self._one_at_a_time:
            if self._is_open:
                return
            await asyncio.to_thread(require_current, self._url)
            api = make_app(
                bounded_pool(self._url, CONNECTIONS),
                options_of(self._settings, VERSION),
                loops=ScheduledLoops(),
                nouns=catalog.nouns(),
                services=catalog.resources(self._settings),
            )
            await self._open.enter_async_context(api.router.lifespan_context(api))
            attach(self._console, api.state.plane, api)
            self._is_open = True

    async def close(self) -> None:
        """Close the connections."""
        await self._open.aclose()
        self._is_open = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """For the lifespan of the application: connected inside the block, closed after it."""
        await self.start()
        try:
            yield
        finally:
            await self.close()

    async def _known_by(self, request: Request) -> Principal | None:
        found: Any = self._auth(request)
        if isawaitable(found):
            found = await found
        if found is None:
            return None
        name, role = found
        if role not in tuple(Role):
            raise UsageError(f"`auth` returned the role {role!r}; there are: {', '.join(Role)}")
        return Principal(f"app:{name}", "app", Role(role))
