"""Say that a worker is alive, and learn in the same breath what there is to do. Called by: the heartbeat, every few seconds.

A lease belongs to a worker incarnation: one narrow row, one update a beat, whatever is in flight. The answer names the
attempts that are no longer this worker's, those that were asked to stop, and whether anything is waiting to be claimed,
promoted, polled, rescued or cleaned: an idle worker needs no other statement.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

import psycopg
from psycopg.rows import tuple_row

from holdfast.crashpoints import crashpoint, dies_inside
from holdfast.database import arrays
from holdfast.errors import NotMigrated, NotOwnWorker
from holdfast.jobs.claim import Kinds, known
from holdfast.jobs.model import AttemptId, Claim, WorkerId
from holdfast.jobs.payload import to_json
from holdfast.jobs.promote import NEXT_DUE
from holdfast.jobs.unregistered import UNREGISTERED

# It has beaten for the first time when it began: one moment, so that every later beat can be told from it.
REGISTER = """
    INSERT INTO holdfast.workers AS w (id, name, host, pid, version, git_sha, pod, runner, kinds, queues, concurrency,
        started_at, beat_at, lease_until, owner)
    SELECT %(id)s, %(name)s, %(host)s, %(pid)s, %(version)s, %(git_sha)s, %(pod)s, %(runner)s, %(kinds)s::jsonb,
        %(queues)s, %(concurrency)s, now, now, now + %(lease)s, %(owner)s
    FROM clock_timestamp() AS now
    -- Its row may be one that stands for it because its own was lost (unregistered.py): it has to say again who it is.
    ON CONFLICT (id) DO UPDATE SET name = excluded.name, host = excluded.host, pid = excluded.pid, version = excluded.version,
        git_sha = excluded.git_sha, pod = excluded.pod, runner = excluded.runner, kinds = excluded.kinds,
        queues = excluded.queues, concurrency = excluded.concurrency, beat_at = excluded.beat_at,
        lease_until = excluded.lease_until, stopped_at = NULL, owner = excluded.owner
    WHERE w.owner IS NOT DISTINCT FROM excluded.owner OR (w.owner IS NULL AND (w.runner = 'remote' OR w.pid = 0))
    RETURNING id
"""

Runner = Literal["worker", "executor", "in process", "remote"]


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """Who a worker is: the id is new at every start, the rest is for people."""

    id: WorkerId
    name: str
    host: str
    pid: int
    version: str
    git_sha: str | None = None
    pod: str | None = None
    runner: Runner = "worker"
    kinds: Mapping[str, int] = field(default_factory=dict)  # with the newest version of each that it can run
    concurrency: int = 1
    queues: Sequence[str] | None = None  # None: it does not say
    owner: str | None = None  # who registers it over HTTP; None: it has the database


async def register(conn: psycopg.AsyncConnection[Any], worker: WorkerInfo, *, lease: timedelta) -> None:
    """Announce a new incarnation, before its first claim: a job of an unregistered worker is rescued later than others.

    An id that another owner has registered is refused. A remote worker without an owner is from before owners were recorded,
    and a row without a process stands for a lost one: the next registration sets the owner.
    """
    parameters = {
        "id": worker.id,
        "name": worker.name,
        "host": worker.host,
        "pid": worker.pid,
        "version": worker.version,
        "git_sha": worker.git_sha,
        "pod": worker.pod,
        "runner": worker.runner,
        "kinds": to_json(dict(worker.kinds), what="list of kinds"),
        "queues": None if worker.queues is None else list(worker.queues),
        "concurrency": worker.concurrency,
        "lease": lease,
        "owner": worker.owner,
    }
    try:
        written = await conn.execute(REGISTER, parameters)
    except psycopg.errors.UndefinedTable:
        raise NotMigrated("the schema is missing; run `holdfast db migrate`") from None
    if written.rowcount == 0:
        raise NotOwnWorker(worker.id)


CAN_CLAIM = """EXISTS (SELECT FROM unnest(%(queues)s::text[]) AS q(queue)
                CROSS JOIN unnest(%(kinds)s::text[], %(versions)s::int[]) AS k(kind, version)
                CROSS JOIN LATERAL (SELECT FROM holdfast.jobs j WHERE j.state = 'pending' AND j.run_after IS NULL
                                    AND j.queue = q.queue AND j.kind = k.kind AND j.kind_version <= k.version
                                    -- In the order of the index: else, with many such jobs in the statistics and none in
                                    -- the table, all of it would be walked over to find that out.
                                    ORDER BY j.priority, j.id LIMIT 1) AS waiting)"""

# A worker that has resigned stays so: its row must not come back to life under a beat that was on its way.
# clock_timestamp() and not now(): a transaction that began long ago must not renew a lease from back then.
BEAT = f"""
    WITH beat AS (
        UPDATE holdfast.workers SET beat_at = clock_timestamp(), lease_until = clock_timestamp() + %(lease)s
        WHERE id = %(worker_id)s AND stopped_at IS NULL RETURNING id, quiet_at
    ), mine AS (
        SELECT * FROM unnest(%(ids)s::bigint[], %(attempts)s::uuid[]) AS mine(id, attempt_id)
    )
    SELECT
        EXISTS (SELECT FROM beat),
        ARRAY(SELECT mine.attempt_id::text FROM mine
              WHERE NOT EXISTS (SELECT FROM holdfast.jobs j WHERE j.id = mine.id AND j.attempt_id = mine.attempt_id)),
        ARRAY(SELECT mine.attempt_id::text FROM mine JOIN holdfast.jobs j ON j.id = mine.id AND j.attempt_id = mine.attempt_id
              WHERE j.cancel_requested_at IS NOT NULL),
        {CAN_CLAIM},
        EXISTS (SELECT FROM holdfast.jobs WHERE state = 'submitted' AND next_poll_at <= (SELECT clock_timestamp())),
        EXISTS (SELECT FROM holdfast.workers w WHERE w.lease_until < clock_timestamp()
                AND EXISTS (SELECT FROM holdfast.jobs j WHERE j.worker_id = w.id))
            OR EXISTS (SELECT FROM holdfast.jobs WHERE worker_id IS NOT NULL AND deadline_at < clock_timestamp())
            OR EXISTS ({UNREGISTERED}),
        EXISTS (SELECT FROM holdfast.effects WHERE state = 'unwanted' AND clean_after <= (SELECT clock_timestamp())),
        EXISTS (SELECT FROM holdfast.lock_wants WHERE waiting)
            OR EXISTS (SELECT FROM holdfast.jobs WHERE slot_key IS NOT NULL AND NOT is_current
                       AND state IN ('blocked', 'pending') AND state = 'blocked'),
        ({NEXT_DUE}),
        -- Claims whose answer never reached us: held in our name, and unknown to us for longer than an answer can take.
        ARRAY(SELECT j.attempt_id::text FROM holdfast.jobs j WHERE j.worker_id = %(worker_id)s
              AND j.claimed_at < clock_timestamp() - %(lease)s
              AND NOT EXISTS (SELECT FROM mine WHERE mine.attempt_id = j.attempt_id)),
        (SELECT next_poll_at - clock_timestamp() FROM holdfast.jobs WHERE state = 'submitted' ORDER BY next_poll_at LIMIT 1),
        (SELECT min(w.lease_until) - clock_timestamp() FROM holdfast.workers w
         WHERE w.lease_until >= clock_timestamp() AND w.id <> %(worker_id)s
           AND EXISTS (SELECT FROM holdfast.jobs j WHERE j.worker_id = w.id)),
        EXISTS (SELECT FROM beat WHERE quiet_at IS NOT NULL)
"""


@dataclass(frozen=True, slots=True)
class Beat:
    """What a worker learns from its own heartbeat."""

    known: bool  # False: the row is gone, or the worker has resigned
    lost: list[AttemptId]  # held by us no more
    cancelled: list[AttemptId]  # asked to stop
    can_claim: bool
    can_poll: bool
    can_rescue: bool
    can_clean: bool
    can_wake: bool
    next_due: timedelta | None  # until the next delayed job, by the database's clock
    strays: list[AttemptId]  # held by us without our knowing; not by job: the next attempt of one may be ours and run
    next_poll: timedelta | None
    next_expiry: timedelta | None = None  # until the lease of somebody else who holds jobs ends, if it is not renewed
    quiet: bool = False  # somebody wants that it claims no more


async def renew(
    conn: psycopg.AsyncConnection[Any],
    worker_id: WorkerId,
    held: Iterable[Claim] = (),
    *,
    lease: timedelta,
    kinds: Kinds = (),
    queues: Sequence[str] = ("default",),
) -> Beat:
    """Renew the lease of a worker, whatever it holds, and look around."""
    claims = list(held)
    parameters = {
        "worker_id": worker_id,
        "lease": lease,
        "ids": arrays.of_words(claim.id for claim in claims),
        "attempts": arrays.of_words(claim.attempt_id for claim in claims),
        **known(kinds),
        "queues": list(queues),
    }
    beat = await _beat(conn, parameters)
    crashpoint("hb.after")
    return beat


@dies_inside("hb.in_tx")
async def _beat(conn: psycopg.AsyncConnection[Any], parameters: dict[str, Any]) -> Beat:
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(BEAT, parameters)
        row = await cursor.fetchone()
    assert row is not None
    return Beat(*row)


async def can_claim(conn: psycopg.AsyncConnection[Any], *, kinds: Kinds, queues: Sequence[str]) -> bool:
    """Whether a job waits that a worker with these kinds could take; asked by those who cannot hear hints."""
    parameters = {**known(kinds), "queues": list(queues)}
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(f"SELECT {CAN_CLAIM}", parameters)
        row = await cursor.fetchone()
    return row is not None and bool(row[0])


# The same for a resigned one.
RENEW_LEASES = """
    UPDATE holdfast.workers SET beat_at = clock_timestamp(), lease_until = clock_timestamp() + %(lease)s
    WHERE id = ANY (%(ids)s::uuid[]) AND stopped_at IS NULL
    RETURNING id::text
"""


async def renew_leases(conn: psycopg.AsyncConnection[Any], workers: Sequence[WorkerId], *, lease: timedelta) -> set[WorkerId]:
    """Renew the leases of several workers by somebody who sees that they live; those that were."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(RENEW_LEASES, {"ids": arrays.of_words(workers), "lease": lease})
        return {WorkerId(row[0]) for row in await cursor.fetchall()}


# The row stays until it is pruned: a job it may still hold must find the lease that has ended.
RESIGN = """
    UPDATE holdfast.workers SET lease_until = clock_timestamp(), stopped_at = clock_timestamp() WHERE id = %(worker_id)s
"""


async def resign(conn: psycopg.AsyncConnection[Any], worker_id: WorkerId) -> None:
    """End the lease now: whatever the worker still held can be rescued at once."""
    await conn.execute(RESIGN, {"worker_id": worker_id})
