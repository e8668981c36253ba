"""The open database of a graph server: its sessions, and its replacement by a changed copy.

Queries run in threads, each with a session of the current database. The database is open read-only, always. To add a
property, a run of an algorithm changes a copy of the file; `replace` then makes the copy the current database. Queries that
run keep the old one until they end: none of them waits, and none sees half of a change.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

from holdfast.services.graphs.server.engines.port import Database, Engine, Session

T = TypeVar("T")
USES: Final = 500  # of one session: ladybug keeps every statement with parameters that a session has run
INTERRUPT_EVERY: Final = 0.02  # seconds: an engine forgets an interrupt that arrives while it still compiles


SMALL: Final = 1024 * 1024  # bytes: results up to this size are not counted
ROOM_SECONDS: Final = 5.0  # that a result waits for room


class Busy(Exception):
    """Too many queries wait, or the results of others use all memory."""


class Budget:
    """Memory that many results share. A result that is larger than the whole budget gets all of it, alone."""

    def __init__(self, size: int) -> None:
        self._size, self._free = size, size
        self._changed = threading.Condition()

    def take(self, wanted: int, deadline: float) -> int:
        """Wait a little until there is room, and take it; how much was taken. `Busy` if there is none in time.

        A small result takes nothing: it never waits for a large one whose client reads slowly.
        """
        if wanted <= SMALL:
            return 0
        count, latest = min(wanted, self._size), min(deadline, time.monotonic() + ROOM_SECONDS)
        with self._changed:
            while self._free < count:
                left = latest - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    raise Busy
            self._free -= count
        return count

    def give_back(self, count: int) -> None:
        """Return what was taken."""
        with self._changed:
            self._free += count
            self._changed.notify_all()


class Borrowed:
    """A session for one caller, and the database that it belongs to."""

    def __init__(self, owner: OpenDatabase, session: Session) -> None:
        self.owner, self.session, self.uses = owner, session, 0

    def give_back(self) -> None:
        self.owner.take_back(self)


class OpenDatabase:
    """A file that is open read-only, and its sessions. After `retire` it is closed and removed as soon as nobody uses it."""

    def __init__(self, database: Database, file: Path, schema: Mapping[str, Any]) -> None:
        self.file, self.schema = file, schema
        self._database = database
        self._free: list[Borrowed] = []
        self._used: set[Borrowed] = set()
        self._guard = threading.Lock()
        self._is_retired = False

    def borrow(self) -> Borrowed | None:
        """A session; None if the database is retired."""
        with self._guard:
            if self._is_retired:
                return None
            borrowed = self._free.pop() if self._free else Borrowed(self, self._database.session())
            self._used.add(borrowed)
            return borrowed

    def take_back(self, borrowed: Borrowed) -> None:
        """End the use of a session."""
        borrowed.uses += 1
        with self._guard:
            self._used.discard(borrowed)
            if borrowed.uses < USES and not self._is_retired:
                self._free.append(borrowed)
            else:
                borrowed.session.close()
            self._end_if_unused()

    def retire(self) -> None:
        """Close it when its last user has ended, and remove its file."""
        with self._guard:
            self._is_retired = True
            self._end_if_unused()

    def interrupt(self) -> None:
        """Interrupt every statement that runs now."""
        with self._guard:
            for borrowed in self._used:
                borrowed.session.interrupt()

    @property
    def users(self) -> int:
        """How many sessions are in use."""
        return len(self._used)

    def _end_if_unused(self) -> None:
        if not self._is_retired or self._used:
            return
        for borrowed in self._free:
            borrowed.session.close()
        self._free.clear()
        self._database.close()
        self.file.unlink(missing_ok=True)


class Graph:
    """The current database, and the threads that run queries on it."""

    def __init__(self, engine: Engine, first: OpenDatabase, *, pool_bytes: int, sessions: int, waiting: int) -> None:
        self.engine, self.pool_bytes = engine, pool_bytes
        self.current = first
        self.budget = Budget(pool_bytes // 2)
        self._threads = ThreadPoolExecutor(sessions, thread_name_prefix="graph-query")
        self._limit = sessions + waiting
        self._queries: set[Future[Any]] = set()

    @property
    def queries(self) -> int:
        """How many queries run or wait."""
        return len(self._queries)

    async def run(self, function: Callable[[], T]) -> T:
        """Run a function in a query thread; `Busy` if too many wait. If the caller is cancelled, the function continues."""
        if len(self._queries) >= self._limit:
            raise Busy
        future = self._threads.submit(function)
        self._queries.add(future)
        future.add_done_callback(self._queries.discard)
        return await asyncio.wrap_future(future)

    def borrow(self) -> Borrowed:
        """A session of the current database."""
        while True:
            borrowed = self.current.borrow()
            if borrowed is not None:
                return borrowed

    def replace(self, database: OpenDatabase) -> None:
        """Make this the current database."""
        before, self.current = self.current, database
        before.retire()

    def close(self) -> None:
        """Stop the queries that run, close the database and remove its file."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        while self._queries:
            self.current.interrupt()
            time.sleep(INTERRUPT_EVERY)
        self._threads.shutdown(wait=True)
        self.current.retire()
