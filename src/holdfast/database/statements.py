"""Run the same logic on every kind of connection. Called by: `jobs/enqueue.py`, which uses the caller's transaction.

The logic is a generator that yields statements and receives their rows. The functions below run it on a psycopg connection
(async or sync), or on the one inside an SQLAlchemy session, so that the logic exists only once.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any, NamedTuple, TypeVar

import psycopg
from psycopg.rows import tuple_row

from holdfast.errors import MIXED_UP, NotMigrated, UsageError

T = TypeVar("T")


class Statement(NamedTuple):
    """A statement with its parameters; with `copy` the rows are streamed into its COPY."""

    sql: str
    parameters: dict[str, Any] | None = None
    copy: Iterable[str] | None = None


Steps = Generator[Statement, list[tuple[Any, ...]], T]
NO_SCHEMA = (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn, psycopg.errors.InvalidSchemaName)
POOLED = (psycopg.errors.DuplicatePreparedStatement, psycopg.errors.InvalidSqlStatementName)  # 42P05, 26000


def not_migrated(error: psycopg.Error) -> NotMigrated:
    """The error for a statement that found no schema, or one of another version."""
    found = error.diag.message_primary or str(error)
    return NotMigrated(f"the schema of Holdfast is missing or older than this code ({found}); run `holdfast db migrate`")


async def run_async(conn: psycopg.AsyncConnection[Any], steps: Steps[T]) -> T:
    try:
        statement = next(steps)
        while True:
            async with conn.cursor(row_factory=tuple_row) as cursor:
                if statement.copy is not None:
                    async with cursor.copy(statement.sql) as copy:
                        for chunk in statement.copy:  # the server processes one chunk while the next is built
                            await copy.write(chunk)
                    rows: list[tuple[Any, ...]] = []
                else:
                    await cursor.execute(statement.sql, statement.parameters)
                    rows = await cursor.fetchall() if cursor.description else []
            statement = steps.send(rows)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    except POOLED as error:
        raise UsageError(MIXED_UP) from error
    except NO_SCHEMA as error:
        raise not_migrated(error) from error


def run_sync(conn: psycopg.Connection[Any], steps: Steps[T]) -> T:
    try:
        statement = next(steps)
        while True:
            with conn.cursor(row_factory=tuple_row) as cursor:
                if statement.copy is not None:
                    with cursor.copy(statement.sql) as copy:
                        for chunk in statement.copy:
                            copy.write(chunk)
                    rows: list[tuple[Any, ...]] = []
                else:
                    cursor.execute(statement.sql, statement.parameters)
                    rows = cursor.fetchall() if cursor.description else []
            statement = steps.send(rows)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    except POOLED as error:
        raise UsageError(MIXED_UP) from error
    except NO_SCHEMA as error:
        raise not_migrated(error) from error


async def connection_of(tx: Any) -> psycopg.AsyncConnection[Any] | psycopg.Connection[Any]:
    """The psycopg connection of `tx`: a psycopg connection, or an SQLAlchemy session or connection."""
    if isinstance(tx, (psycopg.AsyncConnection, psycopg.Connection)):
        return tx
    if hasattr(tx, "sync_session"):  # an AsyncSession: flush pending objects first, as before any query
        await tx.flush()
        tx = await tx.connection()
    if hasattr(tx, "get_raw_connection"):  # an AsyncConnection of SQLAlchemy
        if not tx.in_transaction():  # SQLAlchemy tracks only its own statements; without begin() its commit would do nothing
            await tx.begin()
        return _psycopg_only((await tx.get_raw_connection()).driver_connection)
    return connection_of_sync(tx)


def connection_of_sync(tx: Any) -> psycopg.Connection[Any]:
    """The same for a synchronous caller."""
    if isinstance(tx, psycopg.Connection):
        return tx
    if isinstance(tx, psycopg.AsyncConnection) or hasattr(tx, "sync_session") or hasattr(tx, "get_raw_connection"):
        raise UsageError(
            f"`tx` is asynchronous ({type(tx).__name__}); use the async function with await, or pass a synchronous connection"
        )
    if hasattr(tx, "flush") and hasattr(tx, "connection"):  # a Session
        tx.flush()
        tx = tx.connection()
    if hasattr(tx, "in_transaction") and hasattr(tx, "begin") and not tx.in_transaction():
        tx.begin()
    found = getattr(getattr(tx, "connection", None), "driver_connection", None)  # a Connection of SQLAlchemy
    return _psycopg_only(found if found is not None else tx)  # type: ignore[return-value]


def _psycopg_only(found: Any) -> psycopg.AsyncConnection[Any] | psycopg.Connection[Any]:
    if isinstance(found, (psycopg.AsyncConnection, psycopg.Connection)):
        return found
    raise UsageError(
        f"`tx` is a {type(found).__module__}.{type(found).__name__}; pass a psycopg connection, or an SQLAlchemy "
        "session or connection whose address starts with postgresql+psycopg://"
    )
