"""The control plane as a program: the API, the periodic loops, a small worker for its own jobs. Called by: `holdfast serve`.

Closed by default: who can be known must be said before it starts. Only on this machine, for a first look, it prints a link that
makes the first user who opens it an admin until the process ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from importlib import import_module
from typing import Any

import psycopg
import uvicorn
from fastapi import FastAPI
from psycopg.conninfo import make_conninfo
from psycopg_pool import AsyncConnectionPool

from holdfast import catalog
from holdfast.addresses import is_loopback
from holdfast.api.app import make_app
from holdfast.api.auth import OFFERED_BY, offer_first_look, revoke_token, withdraw_left_looks
from holdfast.api.live_tokens import has_live_tokens
from holdfast.api.login import HOME, OneTimeLogin
from holdfast.api.oidc import Oidc, OidcOptions
from holdfast.api.plane import ApiOptions
from holdfast.api.policy import Role
from holdfast.apps.control_jobs import act_in_bulk
from holdfast.apps.loops import ScheduledLoops
from holdfast.apps.scheduler import scheduler_for
from holdfast.database.pool import connect, parts_of, pool
from holdfast.database.revision import require_current, wanted
from holdfast.errors import UsageError
from holdfast.extras import missing_modules
from holdfast.jobs.bulk import QUEUE
from holdfast.settings import Settings
from holdfast.telemetry import redact
from holdfast.worker.loop import Worker
from holdfast.worker.options import WorkerOptions

BOUNDED = "-c statement_timeout=15000 -c lock_timeout=5000 -c idle_in_transaction_session_timeout=30000"
PATIENCE = 5.0  # seconds: as many as `tcp_user_timeout` and `connect_timeout`
FIRST_LOOK = timedelta(hours=12)
STREAMS_END_WITHIN = 3  # seconds


def serve(url: str, settings: Settings, version: str, say: Any, *, loops: bool = True) -> None:
    """Serve until told to stop, and run the periodic loops beside it. `say` prints a line for people."""
    require_current(url)
    if settings.gateway_secret is not None:
        redact.hide(settings.gateway_secret.get_secret_value())
    asyncio.run(_serve(url, settings, version, say, loops))


async def _serve(url: str, settings: Settings, version: str, say: Any, loops: bool) -> None:
    services = catalog.resources(settings)
    app = app_on(url, settings, version, services)
    async with AsyncExitStack() as beside:
        for service in services.values():
            service.share()
            beside.push_async_callback(service.close)  # after the loops have ended
        app.state.login = await beside.enter_async_context(first_look(url, settings))
        await beside.enter_async_context(own_jobs(url, settings))
        if loops:
            await beside.enter_async_context(scheduler_for(url, settings))
        server = Server(
            uvicorn.Config(
                app,
                host=settings.http_host,
                port=settings.http_port,
                log_config=None,
                log_level="warning",  # that it starts and where it listens, we say ourselves
                access_log=False,
                server_header=False,
                proxy_headers=settings.proxies is not None,
                forwarded_allow_ips=_proxies(settings),
                timeout_graceful_shutdown=STREAMS_END_WITHIN,
            ),
            app,
            say,
        )
        await server.serve()


def app_on(url: str, settings: Settings, version: str, services: Mapping[str, Any]) -> FastAPI:
    """The app as these settings want it, with what the services keep open."""
    return make_app(
        bounded_pool(url, settings.http_connections),
        options_of(settings, version),
        hints_from=url,
        oidc=oidc_of(settings),
        loops=ScheduledLoops(),
        wanted_revision=wanted(),
        nouns=catalog.nouns(),
        services=services,
        topics=catalog.topics(),
        console=console_of(settings),
    )


def console_of(settings: Settings) -> Any:
    """The web console at `/console`; None without the extra `console`."""
    if missing_modules("console"):
        return None
    served = import_module("holdfast.console.served")
    return served.ServedConsole(catalog.console_parts(), settings.console_links)


def bounded_pool(url: str, most: int) -> AsyncConnectionPool[Any]:
    """A pool whose statements end by themselves: a request must not hold a connection for ever, and must not wait for one
    longer than it would take to notice that the database is out of reach."""
    given = parts_of(url).get("options") or ""
    return pool(make_conninfo(url, options=f"{given} {BOUNDED}".strip()), most=most, patience=PATIENCE)


def options_of(settings: Settings, version: str) -> ApiOptions:
    """The settings as options of the API."""
    return ApiOptions(
        version=version,
        per_minute=settings.requests_per_minute,
        burst=settings.request_burst,
        docs_open=settings.docs_open,
        metrics_open=settings.metrics_open,
        most_streams=settings.streams,
        streams_each=settings.streams_each,
        gateway_secret=None if settings.gateway_secret is None else settings.gateway_secret.get_secret_value(),
        gateway_roles=_roles(settings.gateway_roles, "HOLDFAST_GATEWAY_ROLES"),
    )


def oidc_of(settings: Settings) -> Oidc | None:
    """The identity provider, if there is one."""
    if settings.oidc_issuer is None:
        return None
    if settings.oidc_audience is None:
        raise UsageError("HOLDFAST_OIDC_ISSUER needs HOLDFAST_OIDC_AUDIENCE: tokens for other audiences must be refused")
    roles = _roles(settings.oidc_roles, "HOLDFAST_OIDC_ROLES")
    secret = settings.oidc_client_secret
    if secret is not None and settings.oidc_client_id is None:
        raise UsageError("HOLDFAST_OIDC_CLIENT_SECRET needs HOLDFAST_OIDC_CLIENT_ID")
    if secret is not None:
        redact.hide(secret.get_secret_value())
    options = OidcOptions(
        settings.oidc_issuer,
        settings.oidc_audience,
        roles,
        settings.oidc_groups_claim,
        settings.oidc_jwks_url,
        client_id=settings.oidc_client_id,
        client_secret=None if secret is None else secret.get_secret_value(),
        scopes=settings.oidc_scopes,
        session=timedelta(hours=settings.oidc_session_hours),
    )
    return Oidc(options)


def _roles(given: dict[str, str], name: str) -> dict[str, Role]:
    try:
        return {group: Role(role) for group, role in given.items()}
    except ValueError as error:
        raise UsageError(f"{name}: {error}; there are: {', '.join(Role)}") from None


def _proxies(settings: Settings) -> str:
    if settings.proxies == "*":
        raise UsageError("HOLDFAST_PROXIES=* would let every client choose its own address; list the addresses of the proxies")
    return settings.proxies or ""


# ---------------------------------------------------------------------------------------------------------------------
# Closed by default
# ---------------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def first_look(url: str, settings: Settings) -> AsyncIterator[OneTimeLogin | None]:
    """Refuse to start when no user could sign in; on a loopback address, offer a link to a token of this process instead."""
    conn = await connect(url)
    try:
        await withdraw_left_looks(conn)
        can_sign_in = settings.oidc_issuer or settings.gateway_secret or await has_live_tokens(conn)
        if can_sign_in:
            yield None
            return
        if not is_loopback(settings.http_host):
            raise UsageError(
                "no user could sign in: create a token with `holdfast auth token create`, or set HOLDFAST_OIDC_ISSUER or "
                "HOLDFAST_GATEWAY_SECRET; without them the control plane starts on 127.0.0.1 only"
            )
        view, token = await offer_first_look(conn, FIRST_LOOK)
        try:
            yield OneTimeLogin(token, view.name, view.role)
        finally:
            with contextlib.suppress(psycopg.Error):
                await revoke_token(conn, view.id, by=OFFERED_BY)
    finally:
        await conn.close()


# ---------------------------------------------------------------------------------------------------------------------
# Beside the API
# ---------------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def own_jobs(url: str, settings: Settings) -> AsyncIterator[None]:
    """A worker for the control plane's own jobs, for as long as the block runs."""
    options = WorkerOptions(queues=(QUEUE,), concurrency=2, name=settings.hostname, runner="in process")
    worker = Worker(url, [act_in_bulk], options)
    running = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        await running


class Server(uvicorn.Server):
    """Uvicorn that ends the streams when it is told to stop, instead of waiting for their clients."""

    def __init__(self, config: uvicorn.Config, app: FastAPI, say: Any) -> None:
        super().__init__(config)
        self._app, self._say = app, say

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        for one in self.servers:
            for socket in one.sockets:
                host, port = socket.getsockname()[:2]
                url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
                self._say(f"The control plane listens on {url}")
                if self._app.state.home != HOME:
                    self._say(f"The console is at {url}{self._app.state.home}")
                self._offer_login(url)

    def _offer_login(self, url: str) -> None:
        """Print the link if no user can sign in yet."""
        offered: OneTimeLogin | None = self._app.state.login
        if offered is not None:
            link = f"{url}/login?code={offered.code}"
            self._say("No user can sign in yet. This link makes you admin until this process ends; it works once:")
            self._say(f"  {link}")
            self._say(f"  in a browser, or for the command line: holdfast auth login '{link}'")

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT end the streams and then us; not the process, which has more to put in order."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        yield

    async def shutdown(self, sockets: Any = None) -> None:
        """A second signal cuts the connections of requests that still run; the application closes what it has opened."""
        await super().shutdown(sockets)
        if self.force_exit:
            for connection in self.server_state.connections:
                connection.transport.close()
            await self.lifespan.shutdown()

    def _stop(self) -> None:
        self.force_exit = self.should_exit  # who asks twice does not want to wait
        self.should_exit = True
        self._app.state.hub.close_streams()
