"""Open connections that notice trouble. Called by: everything that talks to Postgres.

By default a client hangs for ever in a network partition, keep-alives or not: `tcp_user_timeout` ends that in 5 s.
"""

from __future__ import annotations

import asyncio
from functools import partial
from types import TracebackType
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import tuple_row
from psycopg.types.json import set_json_loads
from psycopg_pool import AsyncConnectionPool
from pydantic_core import from_json

from holdfast.errors import UsageError
from holdfast.telemetry import redact

CAREFUL = {
    "connect_timeout": "5",
    "tcp_user_timeout": "5000",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "application_name": "holdfast",
}
# A process that is frozen inside a transaction would keep everybody from the rows that it holds.
IDLE_LIMIT = "idle_in_transaction_session_timeout"
# What we depend on, whatever a role or a database has as its default: how times and intervals are written, how text is
# encoded, that numbers are written in full, and that a backslash in a literal is a backslash. Set by a statement after
# connecting and not by the startup parameter `options`, which PgBouncer refuses. What a user may have chosen for the
# handlers' own statements (search_path, TimeZone, isolation, time-outs, read-only) is left as it is.
SETTINGS = {
    "client_encoding": "UTF8",
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "extra_float_digits": "1",
    "standard_conforming_strings": "on",
}

TIMELINE = """
    SELECT CASE WHEN NOT pg_is_in_recovery()
           THEN ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int END
"""
_newest_timeline: dict[str, int] = {}  # that this process has seen, of servers that an address names together

# The database is not there for us: out of reach, overloaded, or read-only as in the middle of a failover. Another time.
# Some errors that psycopg calls operational come again however often the statement is repeated: `is_permanent` tells those.
LOST = (psycopg.OperationalError, psycopg.InterfaceError, psycopg.errors.ReadOnlySqlTransaction)
# By the SQLSTATE, longest first. Another time it may work: connection (08), login (28: a password that is being changed),
# rollback and deadlock (40), resources (53), a lock or an object in use (55P03, 55006), operator and shutdown (57), the
# server's own files (58, F0), a standby (25006). Everything else that an OperationalError can be is permanent: limits of the
# program (54), objects in a wrong state (55), triggers and routines (27, 2F, 38, 39), savepoints (3B), foreign data (HV).
PASSING = ("08", "28", "40", "53", "55006", "55P03", "57", "58", "F0", "25006")
PERMANENT = ("40002", "58P01", "58P02", "58P03")


def parts_of(url: str) -> dict[str, Any]:
    """What an address says, or `UsageError`; never the address itself, which may hold a password."""
    try:
        return conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        raise UsageError(
            "the address of the database cannot be read; it looks like postgresql://user:password@host:5432/name, "
            "in HOLDFAST_DATABASE_URL or on the command line"
        ) from None


def careful(url: str) -> str:
    """The address with our time-outs, unless it says something else. Its password is not logged from here on."""
    given = parts_of(url)
    password = str(given.get("password") or "")
    if password not in (given.get("user"), given.get("dbname")):  # those stand in harmless lines too
        redact.hide(password)
    ours = {key: value for key, value in CAREFUL.items() if key not in given}
    return make_conninfo(url, **ours)


def our_settings(url: str) -> str:
    """The statement that sets what we depend on; the idle limit unless the address has its own."""
    wanted = SETTINGS | ({} if IDLE_LIMIT in str(parts_of(url).get("options") or "") else {IDLE_LIMIT: "10s"})
    return "; ".join(f"SET {name} = '{value}'" for name, value in wanted.items())


def connect_sync(url: str, **how: Any) -> psycopg.Connection[Any]:
    """One connection in autocommit for code without an event loop."""
    conn = psycopg.connect(careful(url), autocommit=True, **how)
    try:
        conn.execute(our_settings(url))
    except BaseException:
        conn.close()
        raise
    return conn


def is_permanent(error: BaseException) -> bool:
    """Whether an error of the database comes again each time the same is asked; False for what is no error of the database."""
    state = error.sqlstate if isinstance(error, psycopg.Error) else None
    return state is not None and (state in PERMANENT or not state.startswith(PASSING))


def place_of(url: str) -> str:
    """Which database an address names, for people: without the password, and whatever else it says."""
    parts = parts_of(url)
    user = f"{parts['user']}@" if parts.get("user") else ""
    return f"{user}{parts.get('host', 'localhost')}:{parts.get('port', 5432)}/{parts.get('dbname', '')}"


async def connect(url: str) -> psycopg.AsyncConnection[Any]:
    """One connection in autocommit: every statement is a transaction unless a block says otherwise."""
    conn = await psycopg.AsyncConnection.connect(careful(url), autocommit=True)
    try:
        await _configure(conn, our_settings(url), several_in(url))
    except BaseException:
        await conn.close()
        raise
    return conn


async def _configure(conn: psycopg.AsyncConnection[Any], settings: str, among: str | None) -> None:
    set_json_loads(from_json, conn)  # four times as fast as json.loads on the bytes that come from the wire
    await conn.execute(settings)
    if among is not None:
        await _refuse_the_past(conn, among)


def several_in(url: str) -> str | None:
    """The servers that an address names, if they are more than one: those of a primary and its standbys."""
    hosts = str(parts_of(url).get("host") or "")
    return hosts + str(parts_of(url).get("port") or "") if "," in hosts else None


async def _refuse_the_past(conn: psycopg.AsyncConnection[Any], among: str) -> None:
    """A primary that was replaced and comes back takes writes like any other, and they would be lost. Every promotion begins
    a new timeline: who has seen the newer one has nothing to do with an older."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(TIMELINE)
        row = await cursor.fetchone()
    timeline = row[0] if row is not None and row[0] is not None else 0
    newest = _newest_timeline.get(among, 0)
    if 0 < timeline < newest:
        raise psycopg.OperationalError(f"this server is on timeline {timeline}, and was replaced by one on {newest}")
    _newest_timeline[among] = max(newest, timeline)


async def _configure_for_our_statements(conn: psycopg.AsyncConnection[Any]) -> None:
    """For connections that run the kernel's statements and nothing of a user's.

    Those are written so that one plan fits every parameter: planning the claim costs 1 ms, because each partial index has
    to be proven useful or not, and doing it for every execution would be most of an idle pick-up. A plan that is kept must
    not be one that was right for an empty table: every row is reached by an index.
    """
    await conn.execute("SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off")


def pool(url: str, *, most: int = 4, patience: float = 10.0) -> AsyncConnectionPool[Any]:
    """A pool, not yet open. `patience` is how many seconds somebody waits for a connection."""
    return AsyncConnectionPool(
        careful(url),
        min_size=1,
        max_size=most,
        open=False,
        timeout=patience,
        kwargs={"autocommit": True},
        configure=partial(_configure, settings=our_settings(url), among=several_in(url)),
    )


class Link:
    """One long-lived connection for one user of it at a time, opened again when it breaks.

    `async with link as conn:`, written out: it stands before the claim of an idle worker, where every step counts.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._conn: psycopg.AsyncConnection[Any] | None = None
        self._one_at_a_time = asyncio.Lock()

    async def __aenter__(self) -> psycopg.AsyncConnection[Any]:
        """The connection, for the length of the block. One that broke inside is closed; the next use opens another."""
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
        conn = await connect(self._url)
        try:
            await _configure_for_our_statements(conn)
        except BaseException:
            await conn.close()
            raise
        return conn

    async def _drop(self) -> None:
        conn, self._conn = self._conn, None
        if conn is not None:
            await conn.close()
