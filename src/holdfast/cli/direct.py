"""Straight to the database: the API, served in memory to this process alone. For when no server runs, or none answers.

Whoever can open the database can do everything to it anyway, so the person at this terminal is an admin here; what they do is
audited under their name on this machine, in the transaction of the act, as if it had come over the wire.
"""

from __future__ import annotations

import asyncio
import getpass
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from datetime import datetime
from typing import Any, cast

import httpx
import psycopg
from psycopg.rows import tuple_row
from psycopg_pool import PoolTimeout

from holdfast import catalog
from holdfast.api.app import make_app
from holdfast.api.plane import ApiOptions, Principal
from holdfast.api.policy import Role
from holdfast.apps.control_jobs import act_in_bulk
from holdfast.apps.loops import ScheduledLoops
from holdfast.cli.exits import Told
from holdfast.cli.way import Answer, headers_of, opened, plain_params
from holdfast.database.embedded import EmbeddedPostgres
from holdfast.database.pool import connect, parts_of, pool
from holdfast.database.pooler import require_own_session
from holdfast.database.revision import current, require_current, wanted
from holdfast.errors import DatabaseProblem, UsageError
from holdfast.jobs.bulk import QUEUE
from holdfast.settings import Settings, settings
from holdfast.worker.loop import Worker
from holdfast.worker.options import WorkerOptions

Say = Callable[..., None]
NO_LIMIT = 1_000_000_000  # requests a minute: who has the database need not ask us


def straight(dsn: str | None, settings: Settings, say: Say) -> Straight:
    """The way to this database, or to the embedded one of this directory."""
    if dsn:
        return Straight(nullcontext(dsn))
    if not settings.data_dir.exists():
        raise UsageError(
            "no server and no database is known: set HOLDFAST_API_URL or HOLDFAST_DATABASE_URL, pass --dsn, "
            "or run `holdfast up` in this directory"
        )
    return Straight(_embedded(settings, say))


class Straight:
    """The API in memory, on one database."""

    def __init__(self, database: AbstractContextManager[str]) -> None:
        self._database = database
        self.url = database.__enter__()
        self.says = place_of(self.url)
        self._runner = asyncio.Runner()
        self._lifespan: AbstractAsyncContextManager[Any] | None = None
        try:
            self._runner.run(self._start())
        except BaseException:
            self.close()
            raise

    def ask(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        key: str | None = None,
        use_case: str | None = None,
    ) -> Answer:
        try:
            asking = self._client.request(
                method, path, params=plain_params(params), json=body, headers=headers_of(key, use_case)
            )
            return opened(self._runner.run(asking))
        except Told as told:
            if told.status == 500:
                require_current(self.url)  # the likeliest reason for a fault of ours
            raise

    def now(self) -> datetime:
        return self._runner.run(self._now())

    def schema(self) -> tuple[str | None, str | None]:
        found = current(self.url)
        require_own_session(self.url)
        return found, wanted()

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    def do_own_jobs(self) -> None:
        """Nobody else may be there, so they are done here: fenced like any, should a server be there after all."""
        worker = Worker(self.url, [act_in_bulk], WorkerOptions(queues=(QUEUE,), runner="in process"))
        self._runner.run(worker.run(until_empty=True))

    def close(self) -> None:
        try:
            if self._lifespan is not None:
                self._runner.run(self._end(self._lifespan))
        finally:
            self._runner.close()
            self._database.__exit__(None, None, None)

    async def _start(self) -> None:
        await self._require_reachable()
        ourselves = Ourselves()
        options = ApiOptions(version="command line", per_minute=NO_LIMIT, burst=NO_LIMIT)
        app = make_app(
            pool(self.url, most=2),
            options,
            loops=ScheduledLoops(),
            nouns=catalog.nouns(),
            services=catalog.resources(settings()),
        )
        lifespan = app.router.lifespan_context(app)
        try:
            await lifespan.__aenter__()
        except psycopg.errors.UndefinedTable:
            await asyncio.to_thread(require_current, self.url)
            raise
        self._lifespan, self._pool = lifespan, app.state.plane.pool
        app.state.plane.oidc = ourselves
        self._client = httpx.AsyncClient(
            transport=httpx.ASGITransport(app, raise_app_exceptions=False),
            base_url="http://in-memory",
            headers={"Authorization": f"Bearer {ourselves.credentials}"},
            timeout=None,  # noqa: S113 - nothing is sent anywhere; the database has its own
        )

    async def _require_reachable(self) -> None:
        """A pool would try for long and then say little."""
        try:
            conn = await connect(self.url)
        except psycopg.OperationalError as error:
            why = str(error).strip().splitlines()[0]
            raise DatabaseProblem(
                f"cannot connect to {self.says}: {why}; is the server up, and is the address right?"
            ) from None
        await conn.close()

    async def _end(self, lifespan: AbstractAsyncContextManager[Any]) -> None:
        await self._client.aclose()
        await lifespan.__aexit__(None, None, None)

    async def _now(self) -> datetime:
        try:
            async with self._pool.connection() as conn, conn.cursor(row_factory=tuple_row) as cursor:
                await cursor.execute("SELECT clock_timestamp()")
                ((now,),) = await cursor.fetchall()
        except PoolTimeout as error:
            raise DatabaseProblem(f"{self.says} does not answer any more: {error}") from None
        return cast("datetime", now)


class Ourselves:
    """The identity provider of an API that only this process can reach: it knows one secret, made just now, and one person."""

    def __init__(self) -> None:
        self.credentials = f"command.line.{secrets.token_urlsafe(32)}"
        self._person = Principal(f"cli:{getpass.getuser()}", "command line", Role.ADMIN)

    async def principal(self, credentials: str) -> Principal:
        assert secrets.compare_digest(credentials, self.credentials)
        return self._person

    async def close(self) -> None:
        """Nothing is open."""


def place_of(url: str) -> str:
    """Where a database is, without its password."""
    known = parts_of(url)
    return f"postgresql://{known.get('host', 'localhost')}:{known.get('port', 5432)}/{known.get('dbname', '')}"


class _embedded(AbstractContextManager[str]):  # noqa: N801 - used like a function
    """The embedded Postgres of this directory: the one that runs, or ours for as long as the command takes."""

    def __init__(self, settings: Settings, say: Say) -> None:
        self._server = EmbeddedPostgres(
            settings.data_dir.absolute(), port=settings.port, on_message=lambda text: say(text, "dim")
        )

    def __enter__(self) -> str:
        self._server.start()
        return self._server.url

    def __exit__(self, *_: object) -> None:
        self._server.stop()
