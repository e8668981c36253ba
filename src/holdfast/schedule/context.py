"""The context of one pass of a loop: its tick, and transactions that are refused after its term is over. Made by: `tick.py`."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from datetime import datetime, timedelta
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from holdfast.database.pool import connect_sync
from holdfast.database.statements import connection_of, connection_of_sync, run_async, run_sync
from holdfast.errors import TermLost, UsageError
from holdfast.schedule.term import Term, guard

Borrow = Callable[[], AbstractAsyncContextManager[psycopg.AsyncConnection[Any]]]
SAFE_SHARE = 0.8  # of the lease: side effects stop before it can end at the database


class Held:
    """Whether this process still has the term, as far as it knows. Shared by a pass and the task that renews its lease."""

    def __init__(self, lease: timedelta) -> None:
        self._lease = lease.total_seconds()
        self.is_lost = False
        self.until = 0.0
        self.renewed(time.monotonic())

    def renewed(self, asked_at: float) -> None:
        self.until = asked_at + self._lease * SAFE_SHARE

    @property
    def is_over(self) -> bool:
        return self.is_lost or time.monotonic() > self.until


class _Tick:
    """What `Pass` and `SyncPass` have in common."""

    def __init__(self, term: Term, held: Held) -> None:
        self._term, self._held = term, held

    @property
    def name(self) -> str:
        """The loop's name."""
        return self._term.loop

    @property
    def term(self) -> int:
        """The number under which this pass writes; for external systems that must refuse an older one."""
        return self._term.number

    @property
    def due_at(self) -> datetime | None:
        """The due time of the tick, by the database's clock; None for a manual run."""
        return self._term.due_at

    @property
    def is_manual(self) -> bool:
        """Whether this is a manual run."""
        return self._term.trigger == "manual"

    @property
    def actor(self) -> str | None:
        """Who requested a manual run."""
        return self._term.actor

    @property
    def reason(self) -> str | None:
        """The reason of a manual run."""
        return self._term.reason

    def check(self) -> None:
        """Call it before an external side effect: raises `TermLost` when another process may run this loop."""
        if self._held.is_over:
            raise TermLost(self._term.loop, self._term.number)


class Pass(_Tick):
    """One pass of an asynchronous loop."""

    def __init__(self, term: Term, held: Held, borrow: Borrow, url: str) -> None:
        super().__init__(term, held)
        self._borrow, self._url = borrow, url

    async def write(self, tx: Any) -> None:
        """Bind a transaction to this term: `TermLost` if another process runs the loop, and none can begin before the
        transaction has ended. `tx` is a psycopg connection or an SQLAlchemy session."""
        conn = await connection_of(tx)
        _refuse_no_transaction(conn)
        if isinstance(conn, psycopg.Connection):
            run_sync(conn, guard(self._term))
        else:
            await run_async(conn, guard(self._term))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        """A connection in a transaction of this term, committed at the end of the block."""
        self.check()
        async with self._borrow() as conn, conn.transaction():
            await self.write(conn)
            yield conn

    def connection(self) -> AbstractAsyncContextManager[psycopg.AsyncConnection[Any]]:
        """A connection in autocommit, inside a block, for reads."""
        return self._borrow()

    def in_thread(self) -> SyncPass:
        """The same pass for code that runs in a thread."""
        return SyncPass(self._term, self._held, self._url)


class SyncPass(_Tick):
    """One pass of a loop that is a plain function and runs in a thread."""

    def __init__(self, term: Term, held: Held, url: str) -> None:
        super().__init__(term, held)
        self._url = url

    def write(self, tx: Any) -> None:
        """Bind a transaction to this term; see `Pass.write`."""
        conn = connection_of_sync(tx)
        _refuse_no_transaction(conn)
        run_sync(conn, guard(self._term))

    @contextmanager
    def transaction(self) -> Iterator[psycopg.Connection[Any]]:
        """A connection in a transaction of this term, committed at the end of the block."""
        self.check()
        with self.connection() as conn, conn.transaction():
            self.write(conn)
            yield conn

    @contextmanager
    def connection(self) -> Iterator[psycopg.Connection[Any]]:
        """A connection in autocommit, inside a block, for reads."""
        with connect_sync(self._url) as conn:
            yield conn


def _refuse_no_transaction(conn: psycopg.AsyncConnection[Any] | psycopg.Connection[Any]) -> None:
    """In autocommit the lock on the term would be gone before the next statement."""
    if conn.autocommit and conn.info.transaction_status == TransactionStatus.IDLE:
        raise UsageError("ctx.write needs an open transaction: wrap it in `async with conn.transaction()`")
