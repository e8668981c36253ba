"""A job is created in the caller's transaction: it exists if and only if that transaction commits.

Seven kinds of callers: psycopg with and without an event loop, and SQLAlchemy's four, and a session inside of async code.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NamedTuple

import psycopg
import pytest
from sqlalchemy import BigInteger, create_engine, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from factories import add, everything, rows, value
from holdfast.errors import UsageError
from holdfast.jobs.enqueue import enqueue, enqueue_many, enqueue_many_sync, enqueue_sync
from holdfast.jobs.model import Enqueued, Lock, NewJob


class Caller(NamedTuple):
    """What a test needs of a caller, all of it awaitable."""

    enqueue: Callable[..., Awaitable[Enqueued]]
    enqueue_many: Callable[..., Awaitable[list[Enqueued]]]
    execute: Callable[[str], Awaitable[Any]]
    commit: Callable[[], Awaitable[Any]]
    rollback: Callable[[], Awaitable[Any]]


def _later(function: Callable[..., Any], *before: Any) -> Callable[..., Awaitable[Any]]:
    """The plain function as one that is awaited; what it returns may itself have to be awaited."""

    async def call(*arguments: Any) -> Any:
        result = function(*before, *arguments)
        return await result if hasattr(result, "__await__") else result

    return call


def _caller(tx: Any, one: Callable[..., Any], many: Callable[..., Any]) -> Caller:
    is_psycopg = isinstance(tx, (psycopg.Connection, psycopg.AsyncConnection))
    execute = _later(lambda statement: tx.execute(statement if is_psycopg else text(statement)))
    return Caller(_later(one, tx), _later(many, tx), execute, _later(tx.commit), _later(tx.rollback))


def _from_loop(tx: Any) -> Caller:
    return _caller(tx, enqueue, enqueue_many)


def _plain(tx: Any) -> Caller:
    return _caller(tx, enqueue_sync, enqueue_many_sync)


def _sqlalchemy(database: str) -> str:
    return database.replace("postgresql://", "postgresql+psycopg://")


@asynccontextmanager
async def psycopg_async(database: str) -> AsyncIterator[Caller]:
    async with await psycopg.AsyncConnection.connect(database) as conn:
        yield _from_loop(conn)


@asynccontextmanager
async def psycopg_sync(database: str) -> AsyncIterator[Caller]:
    with psycopg.connect(database) as conn:
        yield _plain(conn)


@asynccontextmanager
async def session(database: str) -> AsyncIterator[Caller]:
    engine = create_engine(_sqlalchemy(database))
    with Session(engine) as found:
        yield _plain(found)
    engine.dispose()


@asynccontextmanager
async def session_in_async_code(database: str) -> AsyncIterator[Caller]:
    engine = create_engine(_sqlalchemy(database))
    with Session(engine) as found:
        yield _from_loop(found)
    engine.dispose()


@asynccontextmanager
async def connection(database: str) -> AsyncIterator[Caller]:
    engine = create_engine(_sqlalchemy(database))
    with engine.connect() as found:
        yield _plain(found)
    engine.dispose()


@asynccontextmanager
async def async_session(database: str) -> AsyncIterator[Caller]:
    pytest.importorskip("greenlet", reason="SQLAlchemy's asyncio side needs greenlet")
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    engine = create_async_engine(_sqlalchemy(database))
    async with AsyncSession(engine) as found:
        yield _from_loop(found)
    await engine.dispose()


@asynccontextmanager
async def async_connection(database: str) -> AsyncIterator[Caller]:
    pytest.importorskip("greenlet", reason="SQLAlchemy's asyncio side needs greenlet")
    from sqlalchemy.ext.asyncio import create_async_engine

    engine = create_async_engine(_sqlalchemy(database))
    async with engine.connect() as found:
        yield _from_loop(found)
    await engine.dispose()


Opens = Callable[[str], AbstractAsyncContextManager[Caller]]
CALLERS = [psycopg_async, psycopg_sync, session, session_in_async_code, connection, async_session, async_connection]
every_caller = pytest.mark.parametrize("opens", CALLERS, ids=lambda opens: opens.__name__)
# One that goes in by itself, one that needs several statements, and enough for a COPY.
JOBS = [
    [NewJob("k")],
    [NewJob("k", unique_key="u", locks=(Lock("t", when_busy="reject"),), idempotency_key="i")],
    [NewJob("k")] * 60,
]
what = pytest.mark.parametrize("jobs", JOBS, ids=["plain", "tied", "many"])


@every_caller
@what
async def test_commit_creates_the_jobs(opens: Opens, jobs: list[NewJob], database: str, conn: Any) -> None:
    async with opens(database) as caller:
        made = await caller.enqueue_many(jobs)
        unseen = await value(conn, "SELECT count(*) FROM holdfast.jobs")
        await caller.commit()

    assert unseen == 0, "nobody sees a job before the commit"
    assert await rows(conn, "SELECT id FROM holdfast.jobs ORDER BY id") == [(m.id,) for m in made]


@every_caller
@what
async def test_rollback_removes_the_jobs_and_their_ties(opens: Opens, jobs: list[NewJob], database: str, conn: Any) -> None:
    before = await everything(conn)

    async with opens(database) as caller:
        await caller.enqueue_many(jobs)
        await caller.rollback()

    assert await everything(conn) == before


@every_caller
async def test_job_and_the_callers_row_commit_together(opens: Opens, database: str, conn: Any) -> None:
    await conn.execute("CREATE TABLE invoices (id bigint)")
    try:
        async with opens(database) as caller:
            await caller.execute("INSERT INTO invoices VALUES (7)")
            made = await caller.enqueue(NewJob("k", {"invoice": 7}))
            await caller.commit()

        same = "SELECT i.xmin::text = j.xmin::text FROM invoices i, holdfast.jobs j WHERE j.id = %s"
        assert await value(conn, same, made.id) is True
    finally:
        await conn.execute("DROP TABLE invoices")


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)


async def test_pending_session_changes_are_flushed_before_the_job(database: str, conn: Any) -> None:
    """Otherwise the job would be there, and its order refused by a constraint afterwards, unseen until the commit."""
    engine = create_engine(_sqlalchemy(database))
    Base.metadata.create_all(engine)
    try:
        with Session(engine) as found:
            found.add(Order(id=1))
            enqueue_sync(found, NewJob("k"))

            assert not found.new
            found.commit()
        assert await value(conn, "SELECT count(*) FROM orders") == 1
    finally:
        Base.metadata.drop_all(engine)
        engine.dispose()


@pytest.mark.parametrize("jobs", [JOBS[0], JOBS[2]], ids=["plain", "many"])
async def test_autocommit_connection_needs_no_commit(jobs: list[NewJob], database: str, conn: Any) -> None:
    with psycopg.connect(database, autocommit=True) as plain:
        made = enqueue_many_sync(plain, jobs)

    assert await value(conn, "SELECT count(*) FROM holdfast.jobs") == len(made)


async def test_rolled_back_savepoint_removes_its_jobs(conn: Any) -> None:
    async with conn.transaction():
        kept = await add(conn)
        async with conn.transaction(force_rollback=True):
            await add(conn, locks=(Lock("t", when_busy="reject"),))

    assert await rows(conn, "SELECT id FROM holdfast.jobs") == [(kept,)]
    assert await rows(conn, "SELECT * FROM holdfast.lock_holders") == []


class Impostor:
    pass


async def test_unsupported_driver_is_refused_with_the_fix() -> None:
    engine = create_engine("sqlite://")
    with Session(engine) as wrong, sqlite3.connect(":memory:") as plain:
        for tx in (wrong, plain, Impostor()):
            with pytest.raises(UsageError, match=r"whose address starts with postgresql\+psycopg://"):
                enqueue_sync(tx, NewJob("k"))
            with pytest.raises(UsageError, match="pass a psycopg connection"):
                await enqueue(tx, NewJob("k"))
    plain.close()
    engine.dispose()


@pytest.mark.filterwarnings("error")
async def test_async_connection_is_refused_by_the_sync_function(database: str, conn: Any) -> None:
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    engine = create_async_engine(_sqlalchemy(database))
    async with AsyncSession(engine) as session, engine.connect() as connection:
        for tx in (conn, session, connection):
            said = rf"`tx` is asynchronous \({type(tx).__name__}\); use the async function with await"
            with pytest.raises(UsageError, match=said):
                enqueue_sync(tx, NewJob("k"))
    await engine.dispose()
