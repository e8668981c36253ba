"""The answers of a worker's probe: health, readiness, metrics. Made by: the keeper, for itself and its executors; the remote
worker."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import TimeoutError as TookTooLong
from typing import Any, TypeVar

import psycopg
from prometheus_client import generate_latest

from holdfast.database.pool import Link
from holdfast.database.revision import Found, fits, said_of
from holdfast.distribution import VERSION
from holdfast.jobs.views.workers import Standing, standing_of
from holdfast.telemetry.gathered import Gathered, dump
from holdfast.telemetry.metrics import REGISTRY
from holdfast.worker.keeper.executor_process import ExecutorProcess
from holdfast.worker.loop import Worker
from holdfast.worker.probe import Facts

T = TypeVar("T")

LOOP_TIMEOUT = 5.0  # seconds: a keeper whose event loop does not run for longer is unhealthy
DATABASE_TIMEOUT = 2.0
METRICS_TIMEOUT = 1.0  # for the newest metrics of the executors
CACHED_FOR = 1.0  # however often the probe is called, the database is queried once in this time


class KeeperCheckup:
    """Answers calls from other threads by running coroutines in the keeper's event loop."""

    def __init__(
        self,
        url: str,
        children: Sequence[ExecutorProcess],
        is_stopping: Callable[[], bool],
        *,
        executors: int,
        wanted_revision: str | None,
    ) -> None:
        self._children, self._is_stopping = children, is_stopping
        self._executors, self._wanted = executors, wanted_revision
        self._loop = asyncio.get_running_loop()
        self._link = Link(url)
        self._version = VERSION
        self._last: tuple[float, Facts] | None = None
        self._gathered = Gathered()

    async def close(self) -> None:
        await self._link.close()

    # ------------------------------------------------------------------------------------------------- from any thread

    def health(self) -> Facts:
        """A keeper whose event loop does not run renews no lease; nothing else is a reason to restart it."""
        facts = {"status": "ok", "version": self._version}
        if self._ask(asyncio.sleep(0, True), LOOP_TIMEOUT):
            return facts
        return {**facts, "status": "stuck", "problem": f"the keeper's event loop has not run for {LOOP_TIMEOUT:.0f} s"}

    def ready(self) -> Facts:
        facts = self._ask(self._ready(), DATABASE_TIMEOUT + 1)
        return facts or {"ready": False, "problem": "the keeper did not answer in time"}

    def metrics(self) -> bytes:
        self._ask(self._newest_figures(), METRICS_TIMEOUT + 1)  # without an answer, the last ones are served
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
        if self._last is None or time.monotonic() - self._last[0] > CACHED_FOR or self._is_stopping():
            facts = await self._check()  # it may take longer than its answer is kept
            self._last = (time.monotonic(), facts)
        return self._last[1]

    async def _check(self) -> Facts:
        """Ready: registered with a valid lease, this code can run on the schema, and it is not stopping."""
        facts: dict[str, Any] = {"ready": False, "version": self._version, "stopping": self._is_stopping()}
        facts |= {"executors": self._executors, "wanted_revision": self._wanted}
        living = [child.id for child in self._children if child.is_alive and child.ready_at is not None]
        try:
            async with asyncio.timeout(DATABASE_TIMEOUT), self._link as conn:
                standing = await standing_of(conn, living)
        except (psycopg.Error, OSError, TimeoutError):
            return facts | {"database": "unreachable", "problem": "the database cannot be reached"}
        facts |= {"database": "ok", "schema_revision": standing.revision, "registered": standing.registered}
        problem = self._problem(standing)
        return facts | ({"ready": True} if problem is None else {"problem": problem})

    def _problem(self, standing: Standing) -> str | None:
        if self._is_stopping():
            return "it is stopping and claims no more jobs"
        if self._wanted is not None and not fits(Found(standing.revision, standing.oldest_code), self._wanted):
            return said_of(standing.revision, self._wanted)
        if standing.registered < self._executors:
            return f"{standing.registered} of {self._executors} executors are registered with a valid lease"
        return None

    async def _newest_figures(self) -> None:
        asked = [child for child in self._children if child.ask_figures()]
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*(child.answered.wait() for child in asked)), METRICS_TIMEOUT)

    # ------------------------------------------------------------------------------------------------- from the keeper

    def ask_all(self) -> None:
        """At every heartbeat: if an executor dies between two scrapes, only the counts since the last heartbeat are lost."""
        for child in self._children:
            child.ask_figures()

    def note(self, child: ExecutorProcess) -> None:
        """An executor has sent its metrics."""
        self._gathered.take(child.id, child.figures)

    def retire(self, child: ExecutorProcess) -> None:
        """An executor has ended, after it sent its last metrics."""
        self._gathered.retire(child.id)


class WorkerCheckup:
    """A worker without a keeper and without a database: its heartbeats are the only source."""

    def __init__(self, worker: Worker) -> None:
        self._worker, self._version = worker, VERSION

    def health(self) -> Facts:
        return {"status": "ok", "version": self._version}

    def ready(self) -> Facts:
        """A successful heartbeat shows that the API and its database work, with the right schema."""
        facts = {"ready": False, "version": self._version, "stopping": self._worker.is_stopping}
        if self._worker.is_stopping:
            return facts | {"problem": "it is stopping and claims no more jobs"}
        if not self._worker.is_registered:
            return facts | {"problem": "it is not registered at the API yet"}
        if self._worker.is_lease_over:
            return facts | {"problem": "no heartbeat succeeded for a whole lease; check that the API and its database are up"}
        return facts | {"ready": True}

    def metrics(self) -> bytes:
        return generate_latest(REGISTRY)
