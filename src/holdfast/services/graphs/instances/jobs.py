"""The jobs of instances, as new jobs to enqueue; start.py, resize.py, remove.py and algorithm.py have their handlers. Pure, but
for `enqueue_removal`, which also records what it has to remove.

The jobs that move an instance need the lock `graph:<id>`, so they run one after the other. A job that runs an algorithm needs
`graph-algorithm:<id>` instead, which it takes when it is enqueued: a second one is refused, and no other job waits for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, Literal

import psycopg

from holdfast.jobs.effects import entrust
from holdfast.jobs.enqueue import enqueue
from holdfast.jobs.model import JobId, Lock, NewJob

ALGORITHM_KIND: Final = "graphs.algorithm"
START_KIND: Final = "graphs.start"
RESIZE_KIND: Final = "graphs.resize"
REMOVE_KIND: Final = "graphs.remove"
RUN_EFFECT: Final = "graphs.run"  # a run of an algorithm on a graph server; its cleaner is in algorithm.py
SERVER_EFFECT: Final = "graphs.server"  # the graph server of one start; its cleaner is in remove.py
SPARE: Final = timedelta(minutes=1)  # that a run may take longer than its own limit, which the graph server enforces

Purpose = Literal["delete", "suspend"]


def lock_of(instance_id: int) -> Lock:
    """The lock that every job of an instance needs."""
    return Lock(f"graph:{instance_id}")


def start_job(instance_id: int, start_token: str, *, longest: timedelta, after: Sequence[JobId] = ()) -> NewJob:
    """A job that starts an instance when the jobs `after` have ended, however they end."""
    return NewJob(
        START_KIND,
        {"instance_id": instance_id, "start_token": start_token},
        max_attempts=5,
        max_runtime=longest,
        locks=(lock_of(instance_id),),
        after=tuple(after),
        if_parent_fails="run",
    )


def resize_job(instance_id: int, start_token: str, *, because: str) -> NewJob:
    """A job that gives a running instance the memory and CPU that its row wants."""
    payload = {"instance_id": instance_id, "start_token": start_token, "because": because}
    return NewJob(RESIZE_KIND, payload, max_attempts=5, locks=(lock_of(instance_id),))


def algorithm_job(instance_id: int, algorithm: str, asked: Mapping[str, Any], *, holder: str, longest: timedelta) -> NewJob:
    """A job that runs an algorithm on a running instance. `asked` is the request as the graph server takes it."""
    payload = {"instance_id": instance_id, "algorithm": algorithm, "asked": dict(asked), "holder": holder}
    lock = Lock(f"graph-algorithm:{instance_id}", when_busy="reject")
    return NewJob(ALGORITHM_KIND, payload, max_attempts=5, max_runtime=longest + SPARE, locks=(lock,))


async def enqueue_removal(
    conn: psycopg.AsyncConnection[Any], instance_id: int, purpose: Purpose, *, start_token: str | None = None
) -> JobId:
    """Enqueue the removal of an instance's graph server. If the job never completes, the cleaner of the effect removes it."""
    payload = {"instance_id": instance_id, "purpose": purpose, "start_token": start_token}
    made = await enqueue(conn, NewJob(REMOVE_KIND, payload, max_attempts=20, locks=(lock_of(instance_id),)))
    await entrust(conn, made.id, SERVER_EFFECT, [{"instance_id": instance_id, "start_token": start_token}])
    return made.id
