"""Open connections with timeouts. Called by: everything that connects to Postgres.

By default a client hangs for ever in a network partition, even with keepalives: `tcp_user_timeout` ends that in 5 s.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from functools import partial
from types import TracebackType
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import tuple_row
from psycopg.types.json import set_json_loads
from psycopg_pool import AsyncConnectionPool, PoolTimeout
from pydantic_core import from_json

from holdfast.errors import DatabaseProblem, UsageError
from holdfast.telemetry import redact
from holdfast.telemetry.error_text import one_line

CAREFUL = {
    "connect_timeout": "5",
    "tcp_user_timeout": "5000",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "application_name": "holdfast",
}
# A process that is suspended inside a transaction would block others from the rows that it has locked.
IDLE_LIMIT = "idle_in_transaction_session_timeout"
# Settings that this code depends on, whatever the defaults of the role or database are: the formats of times and intervals, the
# encoding, full precision of numbers, and backslashes in literals. They are set by a statement after connecting and not by the
# startup parameter `options`, which PgBouncer refuses. Settings that a user may have chosen for the statements of handlers
# (search_path, TimeZone, isolation, timeouts, read-only) are not changed.
SETTINGS = {
    "client_encoding": "UTF8",
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "extra_float_digits": "1",
    "standard_conforming_strings": "on",
}
# For connections that run only the kernel's statements. They are written so that one generic plan fits all parameters. Planning
# the claim costs 1 ms, because each partial index has to be checked, and planning each execution would be most of the pick-up
# time of an idle worker. A cached plan must not be one for an empty table, so sequential scans are off: every statement can use
# an index.
FOR_OUR_STATEMENTS = {"plan_cache_mode": "force_generic_plan", "enable_seqscan": "off"}
NONE: Mapping[str, str] = {}

TIMELINE = """
    SELECT CASE WHEN NOT pg_is_in_recovery()
           THEN ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int END
"""
_newest_timeline: dict[str, int] = {}  # the newest timeline that this process has seen, by address with several hosts

# The database is not available: unreachable, overloaded, or read-only during a failover. A retry may succeed. Some errors that
# psycopg calls operational never go away with a retry: `is_permanent` finds those.
LOST = (psycopg.OperationalError, psycopg.InterfaceError, psycopg.errors.ReadOnlySqlTransaction)
# By the SQLSTATE, longest first. A retry may succeed for: connection (08), login (28: a password that is being changed),
# rollback and deadlock (40), resources (53), a lock or an object in use (55P03, 55006), operator and shutdown (57), the
# server's own files (58, F0), a standby (25006), a transaction that stood still too long (25P03, 25P04). Everything else that
# an OperationalError can be is permanent: limits of the program (54), objects in a wrong state (55), triggers and routines
# (27, 2F, 38, 39), savepoints (3B), foreign data (HV).
PASSING = ("08", "28", "40", "53", "55006", "55P03", "57", "58", "F0", "25006", "25P03", "25P04")
PERMANENT = ("40002", "58P01", "58P02", "58P03")


FIRST_CONNECT = 3.0  # seconds


class CannotConnect(DatabaseProblem, PoolTimeout):
    """The database does not answer, or refuses the login. Loops that wait for a lost database catch it as a `PoolTimeout`."""


def cannot_connect(url: str, error: BaseException | None) -> CannotConnect:
    """The error with host, port, user, database and cause; never with the password."""
    cause = one_line(str(error)) if error is not None and str(error) else f"no answer within {FIRST_CONNECT:g} s"
    return CannotConnect(
        f"cannot connect to {place_of(url)}: {cause}; check that the server runs, and the host, port, user, password and "
        "database of the address"
    )


async def require_reachable(url: str) -> None:
    """Raise `CannotConnect` within 3 s unless a connection can be opened."""
    try:
        async with asyncio.timeout(FIRST_CONNECT):
            conn = await psycopg.AsyncConnection.connect(careful(url))
    except (psycopg.OperationalError, OSError) as error:  # TimeoutError is an OSError
        raise cannot_connect(url, error) from None
    await conn.close()


def parts_of(url: str) -> dict[str, Any]:
    """The parts of an address, or `UsageError`; never the address itself, which may contain a password."""
    if found := re.match(r"postgres(?:ql)?\+\w+://", url):
        raise UsageError(
            f"the address of the database starts with {found[0]}, which only SQLAlchemy understands; start it with postgresql://"
        )
    try:
        return conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        raise UsageError(
            "the address of the database is invalid; it must look like postgresql://user:password@host:5432/name, "
            "in HOLDFAST_DATABASE_URL or on the command line"
        ) from None


def careful(url: str) -> str:
    """The address with our default timeouts. From now on its password is masked in logs."""
    given = parts_of(url)
    password = str(given.get("password") or "")
    if password not in (given.get("user"), given.get("dbname")):  # those occur in harmless lines too
        redact.hide(password)
    ours = {key: value for key, value in CAREFUL.items() if key not in given}
    return make_conninfo(url, **ours)


def our_settings(url: str, also: Mapping[str, str] = NONE) -> str:
    """The statement with the settings that this code depends on, and the idle limit unless the address sets it."""
    wanted = {**SETTINGS, **also} | ({} if IDLE_LIMIT in str(parts_of(url).get("options") or "") else {IDLE_LIMIT: "10s"})
    return "; ".join(f"SET {name} = '{value}'" for name, value in wanted.items())


def connect_sync(url: str, **how: Any) -> psycopg.Connection[Any]:
    """One connection in autocommit for code without an event loop."""
    try:
        conn = psycopg.connect(careful(url), autocommit=True, **how)
    except psycopg.OperationalError as error:
        raise cannot_connect(url, error) from None
    try:
        conn.execute(our_settings(url))
    except BaseException:
        conn.close()
        raise
    return conn


def is_permanent(error: BaseException) -> bool:
    """Whether a retry of the same statement always fails with this database error. False for other exceptions."""
    state = error.sqlstate if isinstance(error, psycopg.Error) else None
    return state is not None and (state in PERMANENT or not state.startswith(PASSING))


def place_of(url: str) -> str:
    """User, host, port and database of an address, without the password and the options."""
    parts = parts_of(url)
    user = f"{parts['user']}@" if parts.get("user") else ""
    return f"{user}{parts.get('host', 'localhost')}:{parts.get('port', 5432)}/{parts.get('dbname', '')}"


async def connect(url: str, *, also: Mapping[str, str] = NONE) -> psycopg.AsyncConnection[Any]:
    """One connection in autocommit: every statement is a transaction, except in a `conn.transaction()` block.

    `also`: further settings, which are made in the same round trip.
    """
    try:
        conn = await psycopg.AsyncConnection.connect(careful(url), autocommit=True)
    except psycopg.OperationalError as error:
        raise cannot_connect(url, error) from None
    try:
        await _configure(conn, our_settings(url, also), several_in(url))
    except BaseException:
        await conn.close()
        raise
    return conn


async def _configure(conn: psycopg.AsyncConnection[Any], settings: str, among: str | None) -> None:
    set_json_loads(from_json, conn)  # four times as fast as json.loads on the bytes that come from the wire
    await conn.execute(settings)
    if among is not None:
        await _refuse_old_timeline(conn, among)


def several_in(url: str) -> str | None:
    """The hosts of an address, if there are several: a primary and its standbys."""
    hosts = str(parts_of(url).get("host") or "")
    return hosts + str(parts_of(url).get("port") or "") if "," in hosts else None


async def _refuse_old_timeline(conn: psycopg.AsyncConnection[Any], among: str) -> None:
    """Refuse a primary that was replaced and comes back: it accepts writes, and they would be lost. Every promotion starts a
    new timeline, so a process that has seen a newer timeline refuses an older one."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(TIMELINE)
        row = await cursor.fetchone()
    timeline = row[0] if row is not None and row[0] is not None else 0
    newest = _newest_timeline.get(among, 0)
    if 0 < timeline < newest:
        raise psycopg.OperationalError(f"this server is on timeline {timeline}, and was replaced by one on {newest}")
    _newest_timeline[among] = max(newest, timeline)


class Pool(AsyncConnectionPool[Any]):
    """A pool that remembers why it could not connect, so that its timeout error has the cause."""

    def __init__(self, url: str, **options: Any) -> None:
        self._url = url
        self._connect_error: BaseException | None = None
        super().__init__(careful(url), connection_class=_recording_connection(self), **options)

    async def getconn(self, timeout: float | None = None) -> psycopg.AsyncConnection[Any]:
        try:
            conn: psycopg.AsyncConnection[Any] = await super().getconn(timeout)
        except PoolTimeout as error:
            if self._connect_error is not None:
                raise cannot_connect(self._url, self._connect_error) from None
            raise PoolTimeout(f"{error}: all {self.max_size} connections to {place_of(self._url)} are in use") from None
        return conn


def _recording_connection(owner: Pool) -> type[psycopg.AsyncConnection[Any]]:
    class Connection(psycopg.AsyncConnection[Any]):
        @classmethod
        async def connect(cls, *args: Any, **kwargs: Any) -> Any:
            try:
                made = await super().connect(*args, **kwargs)
            except (psycopg.OperationalError, OSError) as error:
                owner._connect_error = error
                raise
            owner._connect_error = None
            return made

    return Connection


def pool(url: str, *, most: int = 4, patience: float = 10.0) -> AsyncConnectionPool[Any]:
    """A pool, not yet open. `patience` is how many seconds a caller waits for a connection."""
    return Pool(
        url,
        min_size=1,
        max_size=most,
        open=False,
        timeout=patience,
        kwargs={"autocommit": True},
        configure=partial(_configure, settings=our_settings(url), among=several_in(url)),
    )


class Link:
    """One long-lived connection for one user at a time, reopened when it breaks.

    A context manager written as a class: it runs before the claim of an idle worker, where every microsecond counts.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._conn: psycopg.AsyncConnection[Any] | None = None
        self._one_at_a_time = asyncio.Lock()

    async def __aenter__(self) -> psycopg.AsyncConnection[Any]:
        """The connection for the block. If it breaks inside, it is closed, and the next use opens another."""
        await self._one_at_a_time.acquire()
        try:
            if self._conn is None or self._conn.closed:
                self._conn = await self._open()
        except BaseException:
            self._one_at_a_time.release()
            raise
        return self._conn

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if isinstance(error, (*LOST, asyncio.CancelledError)):
                await self._drop()
        finally:
            self._one_at_a_time.release()

    @property
    def is_busy(self) -> bool:
        return self._one_at_a_time.locked()

    async def close(self) -> None:
        async with self._one_at_a_time:
            await self._drop()

    async def _open(self) -> psycopg.AsyncConnection[Any]:
        return await connect(self._url, also=FOR_OUR_STATEMENTS)

    async def _drop(self) -> None:
        conn, self._conn = self._conn, None
        if conn is not None:
            await conn.close()
