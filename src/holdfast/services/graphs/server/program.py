"""The program `holdfast graph-server`: listen, load, serve until SIGTERM.

It listens before it loads, so that /health, /ready and /status answer from the beginning. If the load fails it goes on
listening: /status says why, until the runtime ends it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn
from pydantic import ValidationError

from holdfast.addresses import api_at
from holdfast.errors import HoldfastError, InvalidSetting
from holdfast.extras import lazily
from holdfast.services.graphs.plan import LoadPlan
from holdfast.services.graphs.server import schema
from holdfast.services.graphs.server.algorithms.runs import Runs
from holdfast.services.graphs.server.app import GraphServer, make_app
from holdfast.services.graphs.server.engines.port import EngineError
from holdfast.services.graphs.server.engines.select import engine_named
from holdfast.services.graphs.server.graph import INTERRUPT_EVERY, Graph, OpenDatabase
from holdfast.services.graphs.server.loading import LoadFailed, load
from holdfast.services.graphs.server.query import Limits
from holdfast.services.graphs.server.reports import Reporter
from holdfast.services.graphs.server.settings import GraphServerSettings
from holdfast.services.graphs.server.status import ServerStatus
from holdfast.stores.opening import StoreOptions
from holdfast.telemetry.log import configure, log
from holdfast.threads import in_thread

if TYPE_CHECKING:
    import httpx2
else:
    httpx2 = lazily("httpx2")

TRIES, PAUSE = 5, 0.5  # for the plan: seconds before the second try, doubled each time
QUERY_GRACE, GRACE = 0.5, 2  # seconds at shutdown: then queries are stopped, then open connections are closed


def main() -> None:
    """Run the program of this process; ends with 1 and a message if it cannot start."""
    try:
        serve(GraphServerSettings())
    except HoldfastError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(1)


def serve(settings: GraphServerSettings) -> None:
    """Serve until SIGTERM."""
    is_for_people = settings.log_format == "console" or (settings.log_format == "auto" and sys.stderr.isatty())
    level = logging.getLevelNamesMapping()[settings.log_level]
    configure(json=not is_for_people, level=level, secrets=settings.secrets)
    secret = settings.secret
    if settings.graph_plan is None and settings.graph_plan_url is None:
        raise InvalidSetting("set HOLDFAST_GRAPH_PLAN to the file of a load plan, or HOLDFAST_GRAPH_PLAN_URL to its address")
    with _listening(settings) as listener:
        asyncio.run(_serve(settings, secret, listener))


def _listening(settings: GraphServerSettings) -> socket.socket:
    """A socket that accepts connections; its port is in the port file."""
    family = socket.AF_INET6 if ":" in settings.graph_host else socket.AF_INET
    # Named in full: asyncio sends small answers at once (TCP_NODELAY) only on sockets of this protocol number.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.graph_host, settings.graph_port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise InvalidSetting(f"cannot listen on {settings.graph_host}:{settings.graph_port}: {error.strerror}") from None
    if settings.graph_port_file is not None:
        part = settings.graph_port_file.with_name(f".{settings.graph_port_file.name}.part")
        part.write_text(str(listener.getsockname()[1]))
        part.replace(settings.graph_port_file)
    return listener


class _Web(uvicorn.Server):
    """One that leaves the signals to us: uvicorn raises a signal again when it has stopped, before the database is closed."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.stopping = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def stop(self) -> None:
        """Stop accepting requests, and return from `serve`."""
        self.should_exit = True
        self.stopping.set()


async def _serve(settings: GraphServerSettings, secret: str, listener: socket.socket) -> None:
    status = ServerStatus()
    limits = Limits(
        settings.graph_query_seconds, settings.graph_query_longest_seconds, settings.graph_rows, settings.graph_most_rows
    )
    server = GraphServer(secret, status, limits)
    config = uvicorn.Config(
        make_app(server),
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=GRACE,
        server_header=False,
    )
    web = _Web(config)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, web.stop)
    tasks = [asyncio.create_task(_load(settings, server))]
    if settings.graph_callback_url is not None:
        tasks.append(asyncio.create_task(_report(settings, secret, server, web)))
    log.info("graph_server_started", host=settings.graph_host, port=listener.getsockname()[1])
    try:
        tasks.append(asyncio.create_task(_stop_queries(web, server)))
        await web.serve(sockets=[listener])
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await _close(server)


async def _report(settings: GraphServerSettings, secret: str, server: GraphServer, web: _Web) -> None:
    assert settings.graph_callback_url is not None
    reporter = Reporter(
        settings.graph_callback_url, secret, server.status,
        every=settings.graph_report_seconds, folder=settings.graph_data_dir, plain_http=settings.plain_http, stop=web.stop,
        name=settings.graph_pod_name or f"pid {os.getpid()}",
    )  # fmt: skip
    server.note_query = reporter.note_query
    await reporter.run()


async def _stop_queries(web: _Web, server: GraphServer) -> None:
    """When the program is told to stop, let queries end for a moment, then interrupt them: each answers its client."""
    await web.stopping.wait()
    await asyncio.sleep(QUERY_GRACE)
    while server.graph is not None:
        server.graph.current.interrupt()
        await asyncio.sleep(INTERRUPT_EVERY)


async def _close(server: GraphServer) -> None:
    if server.runs is not None:
        await server.runs.close()
    if server.graph is not None:
        await in_thread(server.graph.close)


# ---------------------------------------------------------------------------------------------------------------------
# Loading
# ---------------------------------------------------------------------------------------------------------------------


async def _load(settings: GraphServerSettings, server: GraphServer) -> None:
    """Load the plan; the status has the outcome."""
    began = time.monotonic()
    try:
        plan = await _plan(settings)
        server.status.planned(plan)
        server.graph = await _open(plan, settings, server.status)
        server.runs = Runs(server.graph, settings.graph_data_dir / "runs")
    except LoadFailed as error:
        server.status.failed(error.code, str(error))
        log.error("graph_load_failed", code=error.code, error=str(error))
    except Exception as error:  # foreign code: the engine, and files of any content
        server.status.failed("STARTUP_FAILED", f"{type(error).__name__}: {error}")
        log.exception("graph_load_failed", code="STARTUP_FAILED", error=str(error))
    else:
        server.status.ready(time.monotonic() - began)


async def _open(plan: LoadPlan, settings: GraphServerSettings, status: ServerStatus) -> Graph:
    """Load the plan into a database, and open that read-only."""
    pool = settings.buffer_pool
    try:
        engine = engine_named(plan.engine)
    except HoldfastError as error:
        raise LoadFailed("STARTUP_FAILED", str(error)) from None
    folder = settings.graph_data_dir.absolute()
    file = await load(plan, engine, folder, pool_bytes=pool, stores=StoreOptions.from_settings(settings), status=status)

    def opened() -> OpenDatabase:
        database = engine.open(file, pool_bytes=pool, read_only=True)
        session = database.session()
        try:
            described = schema.described(session, plan, {table.name: table.loaded for table in status.tables})
        finally:
            session.close()
        return OpenDatabase(database, file, described)

    try:
        first = await in_thread(opened)
    except EngineError as error:
        raise LoadFailed("DATABASE_ERROR", f"cannot open the loaded database: {error}") from None
    return Graph(engine, first, pool_bytes=pool, sessions=settings.graph_sessions, waiting=settings.graph_waiting_queries)


async def _plan(settings: GraphServerSettings) -> LoadPlan:
    """The plan from its file or its address; `LoadFailed` with MAPPING_FETCH_ERROR."""
    try:
        if settings.graph_plan is not None:
            text = await in_thread(settings.graph_plan.read_bytes)
        else:
            text = await _fetched(str(settings.graph_plan_url), settings)
        return LoadPlan.from_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise LoadFailed("MAPPING_FETCH_ERROR", f"the load plan is not valid: {where}: {first['msg']}") from None
    except (OSError, HoldfastError) as error:
        raise LoadFailed("MAPPING_FETCH_ERROR", f"cannot read the load plan: {error}") from None


async def _fetched(url: str, settings: GraphServerSettings) -> bytes:
    """The plan at an address, with retries while the control plane is not there."""
    api_at(url, with_token=True, plain_http=settings.plain_http)
    headers, message = {"Authorization": f"Bearer {settings.secret}"}, ""
    async with httpx2.AsyncClient(headers=headers, timeout=30, trust_env=False) as http:
        for number in range(TRIES):
            with suppress(httpx2.TransportError):
                answer = await http.get(url)
                if answer.is_success:
                    return answer.content
                message = f": it answered {answer.status_code}"
                if answer.status_code < 500 and answer.status_code != 429:
                    break
            await asyncio.sleep(PAUSE * 2**number)
    raise LoadFailed("MAPPING_FETCH_ERROR", f"cannot read the load plan from {Path(url).name} of the control plane{message}")
