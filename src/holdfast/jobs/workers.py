"""Look at workers, who is alive, what each can run, and what it holds; and make one quiet. Called by: the API."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import psycopg
from psycopg.rows import class_row, tuple_row

from holdfast.errors import NotFound
from holdfast.jobs.model import WorkerId

# What a worker that talks to Postgres opens at most: two for claims, for batches, chains and the heartbeats of executor and
# keeper one each, and what handlers and lanes share.
OWN_CONNECTIONS = 6
MOST_SHARED_CONNECTIONS = 8


def shared_connections(concurrency: int) -> int:
    """How many connections the lanes of a worker share at most."""
    return min(concurrency + 2, MOST_SHARED_CONNECTIONS)


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker as people see it."""

    id: str
    name: str
    host: str
    pid: int
    pod: str | None
    runner: str
    version: str
    git_sha: str | None
    kinds: dict[str, int]
    queues: list[str] | None  # null: it does not say
    concurrency: int
    started_at: datetime
    beat_at: datetime
    lease_until: datetime
    stopped_at: datetime | None
    quiet_at: datetime | None  # since when it shall claim no more
    alive: bool
    holds: int  # jobs


VIEW = """w.id::text, w.name, w.host, w.pid, w.pod, w.runner, w.version, w.git_sha, w.kinds, w.queues, w.concurrency,
    w.started_at, w.beat_at, w.lease_until, w.stopped_at, w.quiet_at,
    w.stopped_at IS NULL AND w.lease_until > clock_timestamp() AS alive,
    (SELECT count(*) FROM holdfast.jobs j WHERE j.worker_id = w.id) AS holds"""
LIST = f"""
    SELECT {VIEW} FROM holdfast.workers w
    WHERE (NOT %(alive)s OR (w.stopped_at IS NULL AND w.lease_until > clock_timestamp()))
      AND (%(after)s::uuid IS NULL OR w.id > %(after)s::uuid)
    ORDER BY w.id LIMIT %(limit)s
"""
GET = f"SELECT {VIEW} FROM holdfast.workers w WHERE w.id = %(id)s"


async def list_workers(
    conn: psycopg.AsyncConnection[Any], *, alive: bool = False, after: str | None = None, limit: int = 50
) -> list[WorkerView]:
    """Workers by id, with `alive` only those whose lease runs."""
    async with conn.cursor(row_factory=class_row(WorkerView)) as cursor:
        await cursor.execute(LIST, {"alive": alive, "after": after, "limit": limit})
        return await cursor.fetchall()


async def get_worker(conn: psycopg.AsyncConnection[Any], worker_id: str) -> WorkerView:
    """One worker."""
    async with conn.cursor(row_factory=class_row(WorkerView)) as cursor:
        await cursor.execute(GET, {"id": worker_id})
        found = await cursor.fetchone()
    if found is None:
        raise NotFound(f"there is no worker {worker_id}")
    return found


QUIET = """
    UPDATE holdfast.workers SET quiet_at = CASE WHEN %(quiet)s THEN coalesce(quiet_at, clock_timestamp()) END
    WHERE id = %(id)s
"""


async def make_quiet(conn: psycopg.AsyncConnection[Any], worker_id: str, *, quiet: bool = True) -> WorkerView:
    """Have a worker claim no more, from its next beat on, or claim again. What it holds, it brings to an end."""
    await conn.execute(QUIET, {"id": worker_id, "quiet": quiet})
    return await get_worker(conn, worker_id)


@dataclass(frozen=True, slots=True)
class KindView:
    """A kind of job: who can run it, what waits of it, and what operators have said about it."""

    kind: str
    workers: int  # alive and not quiet, that can run it
    waiting: int  # ready to be claimed, counted up to a cap
    paused: bool
    drained: bool
    reason: str | None
    actor: str | None
    version: int | None  # the newest that was published; null: no worker has published it
    public: bool | None  # whether a request may enqueue it


# The kinds that are known: of a living worker, an operator, a job that could be claimed, or published before. Those of
# jobs are found by hopping over the claim index from one kind to the next.
KINDS = """
    WITH RECURSIVE hop AS (
        (SELECT queue, kind FROM holdfast.jobs WHERE state = 'pending' AND run_after IS NULL ORDER BY queue, kind LIMIT 1)
        UNION ALL
        SELECT next.queue, next.kind FROM hop CROSS JOIN LATERAL (
            SELECT queue, kind FROM holdfast.jobs j
            WHERE state = 'pending' AND run_after IS NULL AND (j.queue, j.kind) > (hop.queue, hop.kind)
            ORDER BY queue, kind LIMIT 1) AS next
    ), alive AS (
        SELECT k.kind FROM holdfast.workers w CROSS JOIN LATERAL jsonb_object_keys(w.kinds) AS k(kind)
        WHERE w.stopped_at IS NULL AND w.quiet_at IS NULL AND w.lease_until > clock_timestamp()
    ), known AS (
        SELECT kind FROM hop UNION SELECT kind FROM alive UNION SELECT kind FROM holdfast.controls WHERE kind <> '*'
        UNION SELECT kind FROM holdfast.kinds
    )
    SELECT known.kind, (SELECT count(*) FROM alive a WHERE a.kind = known.kind) AS workers,
        (SELECT count(*) FROM hop h CROSS JOIN LATERAL (
            SELECT FROM holdfast.jobs j WHERE j.state = 'pending' AND j.run_after IS NULL AND j.queue = h.queue
                AND j.kind = h.kind ORDER BY j.priority, j.id LIMIT 10001) AS few WHERE h.kind = known.kind) AS waiting,
        c.paused_at IS NOT NULL AS paused, c.drained_at IS NOT NULL AS drained, c.reason, c.actor,
        published.version, published.public
    FROM known LEFT JOIN holdfast.controls c ON c.kind = known.kind
    LEFT JOIN LATERAL (SELECT k.version, (k.declaration ->> 'public')::boolean AS public FROM holdfast.kinds k
                       WHERE k.kind = known.kind ORDER BY k.version DESC LIMIT 1) AS published ON true
    ORDER BY known.kind LIMIT 1000
"""


async def list_kinds(conn: psycopg.AsyncConnection[Any]) -> list[KindView]:
    """Every kind that a worker can run or has published, that waits, or that is paused or drained."""
    async with conn.cursor(row_factory=class_row(KindView)) as cursor:
        await cursor.execute(KINDS)
        return await cursor.fetchall()


class Standing(NamedTuple):
    """What a worker that asks after itself should know."""

    revision: str | None  # of the schema
    registered: int  # of those that were asked for, with a lease that is good


STANDING = """
    SELECT (SELECT version_num FROM holdfast.alembic_version),
           (SELECT count(*) FROM holdfast.workers
            WHERE id = ANY (%(ids)s::uuid[]) AND stopped_at IS NULL AND lease_until > clock_timestamp())
"""


async def standing_of(conn: psycopg.AsyncConnection[Any], ids: Sequence[WorkerId]) -> Standing:
    """How many of these are registered, and the revision of the schema."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(STANDING, {"ids": list(ids)})
        return Standing(*(await cursor.fetchone() or (None, 0)))
