"""The interface between a worker and the kernel. Used by: the worker; implemented by: `direct.py` and `remote.py`.

The worker does not know whether Postgres is at the other end of a socket or behind an HTTP API. Whatever is asked under
a claim is fenced by its attempt id: `ClaimLost` means that another attempt has the job by now, and nothing was written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

import psycopg
from psycopg_pool import PoolTimeout

from holdfast.database.pool import LOST
from holdfast.jobs.claim import Found
from holdfast.jobs.client import Client
from holdfast.jobs.effects import Cleaner, Effect
from holdfast.jobs.logs import Numbered
from holdfast.jobs.model import AttemptId, Claim, JobId, Json, NewJob, WorkerId
from holdfast.jobs.outcome import End
from holdfast.jobs.parents import Parent
from holdfast.jobs.promote import Promoted
from holdfast.jobs.renew import Beat, WorkerInfo

# The other end cannot be reached, or its answer was lost: try again, and look up what became of a write before that.
UNREACHABLE = (*LOST, PoolTimeout, OSError)


@dataclass(frozen=True, slots=True)
class Takes:
    """What a worker can run: its queues, and its kinds with the newest version of each that it knows."""

    versions: Mapping[str, int]
    queues: Sequence[str]

    def knows(self, kind: str, version: int) -> bool:
        """Whether a job of this kind and version can be run here."""
        return version <= self.versions.get(kind, 0)


Running = tuple[JobId, AttemptId, float]  # an attempt whose handler runs, and for how many seconds


class ForHandlers(Protocol):
    """What a handler asks for through its context, and its lane before it runs."""

    async def begin(self, claim: Claim) -> None:
        """Write that the handler of this attempt starts now; `ClaimLost` if another attempt has the job."""
        ...

    async def progress(self, claim: Claim, done: float | None, message: str | None) -> None: ...
    async def checkpoint(self, claim: Claim) -> None: ...
    async def plan(
        self,
        claim: Claim,
        kind: str,
        *,
        tag: str | None,
        detail: Mapping[str, Any] | None,
        temporary: bool,
        adoptable: bool,
    ) -> Effect: ...
    async def confirm(self, claim: Claim, effect: Effect, handle: Json) -> Effect: ...
    async def left_behind(self, claim: Claim) -> list[Effect]: ...
    async def adopt(self, claim: Claim, effect: Effect, handle: Json) -> Effect: ...
    async def parents(self, claim: Claim) -> list[Parent[Any]]:
        """The jobs that this one waited for, with their results."""
        ...

    def connection(self) -> AbstractAsyncContextManager[psycopg.AsyncConnection[Any]]:
        """A connection to the database; `UsageError` where there is none."""
        ...


class Pulse(Protocol):
    """The heartbeat's own line, for a thread with its own event loop: nothing that the worker does can hold it up."""

    async def beat(
        self, worker: WorkerInfo, held: Sequence[Claim], takes: Takes, *, lease: timedelta, running: Sequence[Running] = ()
    ) -> Beat:
        """Renew the lease; `running` are those whose handlers have started, so that it is known if this worker dies."""
        ...

    async def register(self, worker: WorkerInfo, *, lease: timedelta) -> None: ...
    async def close(self) -> None: ...


class Transport(ForHandlers, Protocol):
    """What the worker itself asks for."""

    largest_batch: int  # how many jobs a claim may give at most

    async def open(self) -> None: ...
    async def close(self) -> None: ...
    async def publish(self, worker: WorkerInfo, declared: Sequence[Mapping[str, Json]]) -> None:
        """Store what the kinds of this worker declare, for everything that enqueues without having their functions."""
        ...

    async def register(self, worker: WorkerInfo, *, lease: timedelta) -> None: ...
    async def resign(self, worker_id: WorkerId) -> None: ...
    def pulse(self) -> Pulse: ...
    def client(self) -> Client:
        """What handlers enqueue with; `UsageError` where there is no database."""
        ...

    def connections(self) -> dict[str, int]:
        """How many connections are open, used and waited for, where they are counted."""
        ...

    async def listen(self, wake: Callable[[str], None]) -> None:
        """Call `wake` when there may be something to do. Runs until cancelled."""
        ...

    async def claim(self, worker_id: WorkerId, takes: Takes, limit: int) -> Found:
        """Claim up to `limit` jobs, or name some of them for `claim_tied`."""
        ...

    async def claim_tied(self, worker_id: WorkerId, ids: list[JobId]) -> list[Claim]:
        """Claim those of these jobs that get their locks and their slot. May wait for another transaction at the same keys."""
        ...

    async def claim_by_id(self, worker_id: WorkerId, takes: Takes, job_id: JobId) -> Claim | None: ...
    async def claim_to_poll(self, worker_id: WorkerId, takes: Takes, limit: int) -> list[Claim]: ...

    async def complete(self, claims: Sequence[Claim], results: Sequence[str | None]) -> set[JobId]:
        """Complete a batch of plain jobs, with their results as JSON text; the ids that were."""
        ...

    async def complete_and_chain(self, claim: Claim, result: str | None, child: NewJob) -> Claim | None:
        """Complete a plain job and hold its one plain child at once; None: nothing was written."""
        ...

    async def finish(self, claim: Claim, end: End) -> None: ...
    async def was_written(self, claim: Claim) -> bool:
        """After an answer was lost: whether the end of this attempt is there; `ClaimLost` if another process ended it."""
        ...

    async def write_logs(self, lines: Sequence[Numbered]) -> set[AttemptId]:
        """Store log lines of handlers. Returns the attempts that still hold their jobs; lines of others are not stored."""
        ...

    async def promote(self) -> Promoted: ...
    async def wake_forgotten(self) -> None: ...
    async def rescue(self, worker: WorkerInfo) -> list[JobId]: ...
    async def release_strays(self, worker: WorkerInfo, strays: Sequence[AttemptId]) -> list[JobId]: ...
    async def clean(self, cleaners: Mapping[str, Cleaner]) -> int: ...
