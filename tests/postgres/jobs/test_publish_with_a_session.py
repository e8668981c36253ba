"""`Done(publish=…)` with an SQLAlchemy session: the same transaction as the end of the job."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from factories import end, hold, replace, state_of, value
from holdfast.database.alchemy import session_wanted
from holdfast.errors import ClaimLost
from holdfast.jobs.model import NewJob
from holdfast.jobs.outcome import Done

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession as OnlyForTheChecker


class Base(DeclarativeBase):
    pass


class Row(Base):
    __tablename__ = "published_by_session"
    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture(autouse=True)
async def table(conn: Any) -> AsyncIterator[None]:
    await conn.execute("CREATE TABLE published_by_session (id int PRIMARY KEY)")
    yield
    await conn.execute("DROP TABLE published_by_session")


async def count(conn: Any) -> int:
    return await value(conn, "SELECT count(*) FROM published_by_session")  # type: ignore[no-any-return]


async def add_async(session: AsyncSession) -> None:
    session.add(Row(id=1))


def add_sync(session: Session) -> None:
    session.add(Row(id=1))


async def add_committed(session: AsyncSession) -> None:
    session.add(Row(id=1))
    await session.commit()


@pytest.mark.parametrize("publish", [add_async, add_sync, add_committed])
async def test_session_changes_commit_with_the_end_of_the_job(conn: Any, connect: Any, publish: Any) -> None:
    """Twice: the second uses the engine of the first."""
    claim = await hold(conn)
    other = await connect()

    await end(conn, claim, Done(publish=publish, then=[NewJob("next")]))

    assert (await count(other), await state_of(other, claim.id)) == (1, "completed")
    await conn.execute("DELETE FROM published_by_session")
    await end(conn, await hold(conn), Done(publish=publish))
    assert await count(other) == 1


@pytest.mark.parametrize("publish", [add_async, add_sync, add_committed])
async def test_a_replaced_attempt_publishes_nothing(conn: Any, publish: Any) -> None:
    claim = await hold(conn)
    await replace(conn, claim)

    with pytest.raises(ClaimLost):
        await end(conn, claim, Done(publish=publish))

    assert await count(conn) == 0


async def test_refused_children_roll_back_the_session(conn: Any) -> None:
    claim = await hold(conn)
    claim_before = await state_of(conn, claim.id)

    async def commit_and_raise(session: AsyncSession) -> None:
        session.add(Row(id=1))
        await session.commit()
        raise ValueError("after the commit")

    with pytest.raises(ValueError, match="after the commit"):
        await end(conn, claim, Done(publish=commit_and_raise))

    assert (await count(conn), await state_of(conn, claim.id)) == (0, claim_before)


async def test_session_rollback_undoes_only_the_session(conn: Any) -> None:
    claim = await hold(conn)

    async def roll_back(session: AsyncSession) -> None:
        await session.execute(text("INSERT INTO published_by_session VALUES (1)"))
        await session.rollback()
        await session.execute(text("INSERT INTO published_by_session VALUES (2)"))

    await end(conn, claim, Done(publish=roll_back))

    assert await value(conn, "SELECT array_agg(id) FROM published_by_session") == [2]
    assert await state_of(conn, claim.id) == "completed"


async def test_database_error_is_the_drivers_exception(conn: Any) -> None:
    claim = await hold(conn)

    async def twice(session: AsyncSession) -> None:
        await session.execute(text("INSERT INTO published_by_session VALUES (1), (1)"))

    with pytest.raises(psycopg.errors.UniqueViolation) as raised:
        await end(conn, claim, Done(publish=twice))

    assert isinstance(raised.value.__cause__, IntegrityError)
    assert await state_of(conn, claim.id) == "running"


async def test_lost_connection_is_recognised(conn: Any, connect: Any) -> None:
    dying = await connect()
    claim = await hold(conn)

    async def cut(session: AsyncSession) -> None:
        await session.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))

    with pytest.raises(psycopg.OperationalError):
        await end(dying, claim, Done(publish=cut))

    assert await state_of(conn, claim.id) == "running"


async def test_sync_publish_with_an_async_session_is_refused(conn: Any) -> None:
    claim = await hold(conn)

    def plain(session: AsyncSession) -> None: ...

    with pytest.raises(Exception, match="must be async"):
        await end(conn, claim, Done(publish=plain))


def test_annotation_selects_session_or_connection() -> None:
    async def named(session: OnlyForTheChecker) -> None: ...
    async def quoted(session: AsyncSession) -> None: ...
    async def other(conn: psycopg.AsyncConnection[Any]) -> None: ...
    async def nothing(conn) -> None: ...  # type: ignore[no-untyped-def]

    class Mine(AsyncSession): ...

    async def mine(session: Mine) -> None: ...

    mine.__annotations__["session"] = Mine
    assert [session_wanted(one) for one in (quoted, mine, other, nothing, print)] == ["async", "async", None, None, None]
    assert session_wanted(add_sync) == "sync"
    named.__annotations__["session"] = "orm.AsyncSession"
    assert session_wanted(named) == "async"
