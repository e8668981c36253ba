"""An SQLAlchemy session on a psycopg connection that is in a transaction. Called by: `jobs/finish.py`, for `Done(publish=…)`.

SQLAlchemy is an optional dependency: it is loaded when a function asks for a session. The session works in a savepoint of the
open transaction, so its `commit` and `rollback` concern the savepoint only. The transaction belongs to the caller.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextvars import ContextVar
from functools import lru_cache
from importlib import import_module
from typing import Any, Literal, get_type_hints

import psycopg

from holdfast.errors import UsageError

Wanted = Literal["async", "sync"]
_connection: ContextVar[psycopg.AsyncConnection[Any]] = ContextVar("holdfast_publish_connection")


def session_wanted(function: Callable[..., Any]) -> Wanted | None:
    """Which SQLAlchemy session the annotation of a function's first parameter names; None: no session."""
    try:
        parameter = next(iter(inspect.signature(function).parameters.values()))
    except (StopIteration, TypeError, ValueError):
        return None
    try:
        hint = get_type_hints(function).get(parameter.name)
    except (NameError, TypeError):  # a name that is imported only for type checking: use its last part
        hint = parameter.annotation
    if isinstance(hint, str):
        return {"AsyncSession": "async", "Session": "sync"}.get(hint.rpartition(".")[2])  # type: ignore[return-value]
    names = {f"{base.__module__}.{base.__qualname__}" for base in getattr(hint, "__mro__", ())}
    if "sqlalchemy.ext.asyncio.session.AsyncSession" in names:
        return "async"
    return "sync" if "sqlalchemy.orm.session.Session" in names else None


async def call_with_session(conn: psycopg.AsyncConnection[Any], function: Callable[..., Any], wanted: Wanted) -> None:
    """Call `function` with a session in the transaction of `conn`, and flush the session afterwards."""
    asyncio_part, exceptions = _loaded("sqlalchemy.ext.asyncio"), _loaded("sqlalchemy.exc")
    token = _connection.set(conn)
    try:
        async with _engine().connect() as connection:
            await connection.begin()
            session = asyncio_part.AsyncSession(connection, join_transaction_mode="create_savepoint", expire_on_commit=False)
            async with session:
                if wanted == "async":
                    called = function(session)
                    if not inspect.isawaitable(called):
                        raise UsageError("publish with an AsyncSession must be async: `async def publish(session): …`")
                    await called
                else:
                    await session.run_sync(function)
                await session.commit()  # of the savepoint
    except exceptions.DBAPIError as error:
        if isinstance(error.orig, psycopg.Error):  # the kernel handles psycopg's errors
            raise error.orig from error
        raise
    finally:
        _connection.reset(token)


class _InTransaction:
    """A psycopg connection whose transaction belongs to the caller: SQLAlchemy must neither end the transaction nor close
    it."""

    def __init__(self, conn: psycopg.AsyncConnection[Any]) -> None:
        self._conn = conn

    def __getattr__(self, name: str) -> Any:
        return getattr(self._conn, name)

    async def commit(self) -> None: ...
    async def rollback(self) -> None: ...
    async def close(self) -> None: ...


async def _borrow() -> Any:
    return _InTransaction(_connection.get())


@lru_cache(maxsize=1)
def _engine() -> Any:
    """One engine for the process: it caches compiled statements and has no connections."""
    make, pool = _loaded("sqlalchemy.ext.asyncio").create_async_engine, _loaded("sqlalchemy.pool")
    return make("postgresql+psycopg://", async_creator=_borrow, poolclass=pool.NullPool, use_native_hstore=False)


def _loaded(module: str) -> Any:
    try:
        import_module("greenlet")
        return import_module(module)
    except ModuleNotFoundError as error:
        raise UsageError(f"publish with a session needs {error.name}: pip install 'sqlalchemy[asyncio]'") from None
