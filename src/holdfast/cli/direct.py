"""The transport directly to the database, for when no API runs or none answers. See docs/decisions/0011 and 0027.

Reads run the kernel's queries (`reads`), common changes the handlers of the API (`writes.py`), both without the web framework,
so that they start fast. Everything else goes to the API in memory (`memory_api.py`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
from psycopg.rows import tuple_row

from holdfast.api.problems import Problem, body_of, of_ours, of_the_database
from holdfast.cli import reads
from holdfast.database.pool import LOST, connect, parts_of
from holdfast.database.pooler import require_own_session
from holdfast.database.revision import current, require_current, wanted
from holdfast.errors import DatabaseProblem, HoldfastError, UsageError
from holdfast.toolkit.cli.transport import Answer, Say
from holdfast.toolkit.client.problems import ApiError, problem_of

if TYPE_CHECKING:
    from holdfast.cli.memory_api import MemoryApi


def open_direct(dsn: str | None, settings: Any, say: Say) -> DirectTransport:
    """The transport to this database, or to the embedded one of this directory."""
    if dsn:
        return DirectTransport(nullcontext(dsn))
    if not settings.data_dir.exists():
        raise UsageError(
            "no API and no database is configured: set HOLDFAST_API_URL or HOLDFAST_DATABASE_URL, pass --url or --dsn, "
            "or run `holdfast up` in this directory"
        )
    return DirectTransport(embedded(settings, say))


class DirectTransport:
    """Requests answered from one database."""

    is_http = False

    def __init__(self, database: AbstractContextManager[str]) -> None:
        self._database = database
        self.url = database.__enter__()
        self.address = address_of(self.url)
        self._runner = asyncio.Runner()
        self._conn: psycopg.AsyncConnection[Any] | None = None
        self._api: MemoryApi | None = None
        try:
            self._conn = self._runner.run(self._connect())
        except BaseException:
            self.close()
            raise

    def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        key: str | None = None,
        role: str | None = None,
    ) -> Answer:
        try:
            return self._runner.run(self._answer(method, path, params, body, key, role))
        except (reads.NotHandled, DatabaseProblem, psycopg.Error):
            pass  # nothing was changed; the API gives the exact answer, or the exact refusal
        except (HoldfastError, Problem) as error:
            raise refusal(error if isinstance(error, Problem) else of_ours(error), path) from None
        try:
            return self._runner.run(self._started_api().request(method, path, params=params, body=body, key=key, role=role))
        except ApiError as error:
            if error.status == 500:
                require_current(self.url)  # the most likely reason for an internal error
            raise

    def upload(self, path: str, file: Path, *, params: Mapping[str, Any] | None = None) -> Answer:
        return self._runner.run(self._started_api().upload(path, file, params))

    def content(self, method: str, path: str, *, body: Mapping[str, Any] | None, accept: str, timeout: float) -> bytes:
        """As over HTTP; the graph server and the database have their own timeouts."""
        return self._runner.run(self._started_api().content(method, path, body=body, accept=accept))

    async def _answer(
        self,
        method: str,
        path: str,
        params: Mapping[str, Any] | None,
        body: Mapping[str, Any] | None,
        key: str | None,
        role: str | None,
    ) -> Answer:
        """The answer without the web framework, if there is a way; else `NotHandled`."""
        given = {name: value for name, value in (params or {}).items() if value is not None}
        conn = await self._open_connection()
        if method == "GET" and (read := reads.find(path)):
            function, parts = read
            return await function(conn, given, *parts)
        writes = import_module("holdfast.cli.writes")
        if method == "GET" or given or role or not (write := writes.find(method, path)):
            raise reads.NotHandled
        try:
            answer: Answer = await writes.run(conn, *write, path=path, body=body, key=key)
        except LOST as error:  # it may have been committed: the API must not repeat it
            raise of_the_database(error) from None
        return answer

    def _started_api(self) -> MemoryApi:
        if self._api is None:
            # Imported when it is needed: it brings the whole web framework.
            self._api = import_module("holdfast.cli.memory_api").MemoryApi(self.url)
            self._runner.run(self._api.start())
        return self._api

    def now(self) -> datetime:
        return self._runner.run(self._now())

    def schema(self) -> tuple[str | None, str | None]:
        found = current(self.url)
        require_own_session(self.url)
        return found.revision, wanted()

    def wait_for_change(self, seconds: float) -> None:
        time.sleep(seconds)

    def run_control_jobs(self) -> None:
        """No server may be running, so this process runs them; they are fenced, should a server run them as well."""
        self._runner.run(import_module("holdfast.apps.control_jobs").run_until_empty(self.url))

    def close(self) -> None:
        try:
            if self._api is not None:
                self._runner.run(self._api.close())
            if self._conn is not None:
                self._runner.run(self._conn.close())
        finally:
            self._runner.close()
            self._database.__exit__(None, None, None)

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        try:
            return await connect(self.url)
        except psycopg.OperationalError as error:
            raise DatabaseProblem(" ".join(str(error).split())) from None  # names the address, the cause and the fix

    async def _open_connection(self) -> psycopg.AsyncConnection[Any]:
        """The connection, opened again if it was lost while a command waited."""
        if self._conn is None or self._conn.closed:
            self._conn = await connect(self.url)
        return self._conn

    async def _now(self) -> datetime:
        try:
            conn = await self._open_connection()
            async with conn.cursor(row_factory=tuple_row) as cursor:
                await cursor.execute("SELECT clock_timestamp()")
                ((now,),) = await cursor.fetchall()
        except LOST as error:
            raise DatabaseProblem(f"{self.address} no longer answers: {str(error).strip()}") from None
        found: datetime = now
        return found


def refusal(problem: Problem, path: str) -> ApiError:
    """A problem as the API would answer with it."""
    return problem_of(problem.status, body_of(problem, path, uuid4().hex), problem.headers.get("Retry-After"))


def address_of(url: str) -> str:
    """The address of a database without its password."""
    known = parts_of(url)
    return f"postgresql://{known.get('host', 'localhost')}:{known.get('port', 5432)}/{known.get('dbname', '')}"


class embedded(AbstractContextManager[str]):  # noqa: N801 - used like a function
    """The embedded Postgres of this directory: the running one, or one that runs as long as the command."""

    def __init__(self, settings: Any, say: Say) -> None:
        start = import_module("holdfast.database.embedded").EmbeddedPostgres  # not needed with --dsn
        self._server = start(settings.data_dir.absolute(), port=settings.port, on_message=lambda text: say(text, "dim"))

    def __enter__(self) -> str:
        self._server.start()
        url: str = self._server.url
        return url

    def __exit__(self, *_: object) -> None:
        self._server.stop()
