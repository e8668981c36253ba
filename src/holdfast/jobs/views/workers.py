"""Workers with what each can run and holds, and kinds with their waiting jobs. Called by: the API, clients and workers."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import psycopg
from psycopg.rows import class_row, tuple_row

from holdfast.database.revision import OLDEST_CODE
from holdfast.errors import KindNotPublished, NotFound
from holdfast.jobs.model import WorkerId


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker as the API shows it."""

    id: str
    name: str
    host: str
    pid: int
    pod: str | None
    runner: str
    version: str
    git_sha: str | None
    kinds: dict[str, int]
    queues: list[str] | None  # null: unknown
    concurrency: int
    started_at: datetime
    beat_at: datetime
    lease_until: datetime
    stopped_at: datetime | None
    quiet_at: datetime | None  # since when it was asked to claim no more
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
    """Workers by id; with `alive` only those whose lease has not expired."""
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


@dataclass(frozen=True, slots=True)
class KindView:
    """A kind: the workers that can run it, its waiting jobs, and whether it is paused or drained."""

    kind: str
    workers: int  # alive and not quiet, that can run it
    waiting: int  # ready to be claimed, counted up to a cap
    paused: bool
    drained: bool
    reason: str | None
    actor: str | None
    version: int | None  # the newest that was published; null: no worker has published it
    public: bool | None  # whether a request may enqueue it


# Known kinds: of live workers, of pauses and drains, of claimable jobs, and published ones. Those of jobs are found by a skip
# scan of the claim index.
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


async def require_known_kind(conn: psycopg.AsyncConnection[Any], kind: str) -> None:
    """`KindNotPublished` for a kind that no worker runs or has published, and of which no job waits: probably a typo."""
    known = [one.kind for one in await list_kinds(conn)]
    if kind not in (*known, "*"):
        raise KindNotPublished(kind, difflib.get_close_matches(kind, known, n=3))


async def list_kinds(conn: psycopg.AsyncConnection[Any]) -> list[KindView]:
    """Every kind that a worker can run or has published, that waits, or that is paused or drained."""
    async with conn.cursor(row_factory=class_row(KindView)) as cursor:
        await cursor.execute(KINDS)
        return await cursor.fetchall()


class Standing(NamedTuple):
    """The answer to a worker that checks its registration."""

    revision: str | None  # of the schema
    oldest_code: str | None  # that may run on it
    registered: int  # how many of the given workers have a valid lease


STANDING = f"""
    SELECT (SELECT version_num FROM holdfast.alembic_version), {OLDEST_CODE},
           (SELECT count(*) FROM holdfast.workers
            WHERE id = ANY (%(ids)s::uuid[]) AND stopped_at IS NULL AND lease_until > clock_timestamp())
"""


async def standing_of(conn: psycopg.AsyncConnection[Any], ids: Sequence[WorkerId]) -> Standing:
    """How many of these workers are registered, and the revision of the schema."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(STANDING.encode(), {"ids": list(ids)})
        return Standing(*(await cursor.fetchone() or (None, None, 0)))
