"""How a worker is, for whoever asks its probe. Made by: the keeper, for itself and its executors; the remote worker."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import TimeoutError as TookTooLong
from importlib.metadata import version
from typing import Any, TypeVar

import psycopg
from prometheus_client import generate_latest

from holdfast.database.pool import Link
from holdfast.jobs.workers import Standing, standing_of
from holdfast.telemetry.gathered import Gathered, dump
from holdfast.telemetry.metrics import REGISTRY
from holdfast.worker.child import Child
from holdfast.worker.loop import Worker
from holdfast.worker.probe import Facts

T = TypeVar("T")

TURN = 5.0  # seconds that the keeper's event loop may take to turn once
DATABASE = 2.0
EXECUTORS = 1.0  # that a look at the metrics waits for their newest figures
GOOD_FOR = 1.0  # however often we are asked, the database is asked once in so long


class KeeperCheckup:
    """Answers from other threads, by asking in the keeper's event loop."""

    def __init__(
        self,
        url: str,
        children: Sequence[Child],
        is_stopping: Callable[[], bool],
        *,
        executors: int,
        wanted_revision: str | None,
    ) -> None:
        self._children, self._is_stopping = children, is_stopping
        self._executors, self._wanted = executors, wanted_revision
        self._loop = asyncio.get_running_loop()
        self._link = Link(url)
        self._version = version("holdfast")
        self._last: tuple[float, Facts] | None = None
        self._gathered = Gathered()

    async def close(self) -> None:
        await self._link.close()

    # ------------------------------------------------------------------------------------------------- from any thread

    def health(self) -> Facts:
        """A keeper whose event loop does not turn renews no lease; nothing else is a reason to start it again."""
        facts = {"status": "ok", "version": self._version}
        if self._ask(asyncio.sleep(0, True), TURN):
            return facts
        return {**facts, "status": "stuck", "problem": f"the keeper's event loop has not turned for {TURN:.0f} s"}

    def ready(self) -> Facts:
        facts = self._ask(self._ready(), DATABASE + 1)
        return facts or {"ready": False, "problem": "the keeper did not answer in time"}

    def metrics(self) -> bytes:
        self._ask(self._newest_figures(), EXECUTORS + 1)  # without an answer the last ones are good enough
        self._gathered.take("keeper", dump(REGISTRY))
        return generate_latest(self._gathered.registry)

    def _ask(self, question: Coroutine[Any, Any, T], seconds: float) -> T | None:
        try:
            asked = asyncio.run_coroutine_threadsafe(question, self._loop)
        except RuntimeError:  # the loop is closed: the keeper has ended
            question.close()
            return None
        try:
            return asked.result(seconds)
        except (TookTooLong, asyncio.CancelledError):
            asked.cancel()
            return None

    # ------------------------------------------------------------------------------------------------- in the keeper's loop

    async def _ready(self) -> Facts:
        if self._last is None or time.monotonic() - self._last[0] > GOOD_FOR or self._is_stopping():
            self._last = (time.monotonic(), await self._look())
        return self._last[1]

    async def _look(self) -> Facts:
        """Registered, with a lease that is good, at a database whose schema is ours, and not on the way out."""
        facts: dict[str, Any] = {"ready": False, "version": self._version, "stopping": self._is_stopping()}
        facts |= {"executors": self._executors, "wanted_revision": self._wanted}
        living = [child.id for child in self._children if child.is_alive and child.ready_at is not None]
        try:
            async with asyncio.timeout(DATABASE), self._link as conn:
                standing = await standing_of(conn, living)
        except (psycopg.Error, OSError, TimeoutError):
            return facts | {"database": "unreachable", "problem": "the database cannot be reached"}
        facts |= {"database": "ok", "schema_revision": standing.revision, "registered": standing.registered}
        problem = self._what_is_missing(standing)
        return facts | ({"ready": True} if problem is None else {"problem": problem})

    def _what_is_missing(self, standing: Standing) -> str | None:
        if self._is_stopping():
            return "it was told to stop, and claims nothing more"
        if self._wanted not in (None, standing.revision):
            return f"the schema is at {standing.revision}, this code needs {self._wanted}; run `holdfast db migrate`"
        if standing.registered < self._executors:
            return f"{standing.registered} of {self._executors} executors are registered with a lease that is good"
        return None

    async def _newest_figures(self) -> None:
        asked = [child for child in self._children if child.ask_figures()]
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*(child.answered.wait() for child in asked)), EXECUTORS)

    # ------------------------------------------------------------------------------------------------- from the keeper

    def ask_all(self) -> None:
        """At every beat: of one that dies between two looks at the metrics, no more is lost than since the last beat."""
        for child in self._children:
            child.ask_figures()

    def note(self, child: Child) -> None:
        """An executor has said what it counted."""
        self._gathered.take(child.id, child.figures)

    def bury(self, child: Child) -> None:
        """It has ended, after it said what it counted last."""
        self._gathered.retire(child.id)


class WorkerCheckup:
    """A worker without a keeper and without a database: what its own beats tell is all that there is to know."""

    def __init__(self, worker: Worker) -> None:
        self._worker, self._version = worker, version("holdfast")

    def health(self) -> Facts:
        return {"status": "ok", "version": self._version}

    def ready(self) -> Facts:
        """A beat that was answered came from the database, through an API whose schema is right."""
        facts = {"ready": False, "version": self._version, "stopping": self._worker.is_stopping}
        if self._worker.is_stopping:
            return facts | {"problem": "it was told to stop, and claims nothing more"}
        if not self._worker.is_registered:
            return facts | {"problem": "it is not registered at the API yet"}
        if self._worker.is_lease_over:
            return facts | {"problem": "no beat got through for a whole lease; is the API up, and its database?"}
        return facts | {"ready": True}

    def metrics(self) -> bytes:
        return generate_latest(REGISTRY)
