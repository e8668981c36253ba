"""The heartbeat statement: renew a worker's lease and return what there is to do. Called by: the heartbeat, every few seconds.

A lease belongs to a worker incarnation: one narrow row and one update for each heartbeat, however many jobs run. The result
contains the attempts that this worker has lost, those with a cancel request, and whether there is anything to claim, promote,
poll, rescue or clean: an idle worker needs no other statement.
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
from holdfast.database.statements import NO_SCHEMA, not_migrated
from holdfast.errors import NotOwnWorker
from holdfast.jobs.claim import Kinds, known
from holdfast.jobs.model import AttemptId, Claim, WorkerId
from holdfast.jobs.payload import to_json
from holdfast.jobs.promote import NEXT_DUE
from holdfast.jobs.unregistered import UNREGISTERED

# The first beat_at equals started_at, so that the first heartbeat can be distinguished from later ones.
REGISTER = """
    INSERT INTO holdfast.workers AS w (id, name, host, pid, version, git_sha, pod, runner, kinds, queues, concurrency,
        started_at, beat_at, lease_until, owner)
    SELECT %(id)s, %(name)s, %(host)s, %(pid)s, %(version)s, %(git_sha)s, %(pod)s, %(runner)s, %(kinds)s::jsonb,
        %(queues)s, %(concurrency)s, now, now, now + %(lease)s, %(owner)s
    FROM clock_timestamp() AS now
    -- The row may be a placeholder for one that was lost (unregistered.py): the registration replaces it.
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
    """A worker as it registers: the id is new at every start, the rest is for display."""

    id: WorkerId
    name: str
    host: str
    pid: int
    version: str
    git_sha: str | None = None
    pod: str | None = None
    runner: Runner = "worker"
    kinds: Mapping[str, int] = field(default_factory=dict)  # names with the newest version of each that it can run
    concurrency: int = 1
    queues: Sequence[str] | None = None  # None: unknown
    owner: str | None = None  # the principal that registered it over HTTP; None: it connects to the database


async def register(conn: psycopg.AsyncConnection[Any], worker: WorkerInfo, *, lease: timedelta) -> None:
    """Register a new incarnation, before its first claim: jobs of an unregistered worker are rescued later than others.

    An id that another owner has registered is refused. Remote workers from before owners were recorded, and placeholder rows,
    have no owner: the next registration sets it.
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
    except NO_SCHEMA as error:
        raise not_migrated(error) from None
    if written.rowcount == 0:
        raise NotOwnWorker(worker.id)


CAN_CLAIM = """EXISTS (SELECT FROM unnest(%(queues)s::text[]) AS q(queue)
                CROSS JOIN unnest(%(kinds)s::text[], %(versions)s::int[]) AS k(kind, version)
                CROSS JOIN LATERAL (SELECT FROM holdfast.jobs j WHERE j.state = 'pending' AND j.run_after IS NULL
                                    AND j.queue = q.queue AND j.kind = k.kind AND j.kind_version <= k.version
                                    -- ORDER BY the index: otherwise, if the statistics have many such jobs and the table has
                                    -- none, the planner scans the whole table.
                                    ORDER BY j.priority, j.id LIMIT 1) AS waiting)"""

# A worker that has resigned stays resigned: a heartbeat that was already under way must not renew its lease.
# clock_timestamp() and not now(): in a long transaction, now() is in the past and would give a shorter lease.
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
        -- Strays: jobs that this worker holds and does not know, because the response to their claim was lost.
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
    """The result of a heartbeat."""

    known: bool  # False: the row is gone, or the worker has resigned
    lost: list[AttemptId]  # no longer held by this worker
    cancelled: list[AttemptId]  # with a cancel request
    can_claim: bool
    can_poll: bool
    can_rescue: bool
    can_clean: bool
    can_wake: bool
    next_due: timedelta | None  # until the next delayed job, by the database's clock
    strays: list[AttemptId]  # held by this worker but unknown to it; attempts, not jobs: the next attempt of a job may run here
    next_poll: timedelta | None
    next_expiry: timedelta | None = None  # until the next lease of another worker that holds jobs expires
    quiet: bool = False  # an operator asked it to claim no more jobs


async def renew(
    conn: psycopg.AsyncConnection[Any],
    worker_id: WorkerId,
    held: Iterable[Claim] = (),
    *,
    lease: timedelta,
    kinds: Kinds = (),
    queues: Sequence[str] = ("default",),
) -> Beat:
    """Renew the lease of a worker and return what there is to do."""
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
    """Whether there is a job that a worker with these kinds could claim; for workers that do not receive notifications."""
    parameters = {**known(kinds), "queues": list(queues)}
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(f"SELECT {CAN_CLAIM}", parameters)
        row = await cursor.fetchone()
    return row is not None and bool(row[0])


# Resigned workers are excluded here too.
RENEW_LEASES = """
    UPDATE holdfast.workers SET beat_at = clock_timestamp(), lease_until = clock_timestamp() + %(lease)s
    WHERE id = ANY (%(ids)s::uuid[]) AND stopped_at IS NULL
    RETURNING id::text
"""


async def renew_leases(conn: psycopg.AsyncConnection[Any], workers: Sequence[WorkerId], *, lease: timedelta) -> set[WorkerId]:
    """Renew the leases of several workers whose process is known to be alive; returns those that were renewed."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(RENEW_LEASES, {"ids": arrays.of_words(workers), "lease": lease})
        return {WorkerId(row[0]) for row in await cursor.fetchall()}


# The row stays until it is pruned, because jobs that it may still hold are rescued by its expired lease.
RESIGN = """
    UPDATE holdfast.workers SET lease_until = clock_timestamp(), stopped_at = clock_timestamp() WHERE id = %(worker_id)s
"""


async def resign(conn: psycopg.AsyncConnection[Any], worker_id: WorkerId) -> None:
    """End the lease now, so that jobs which the worker still holds can be rescued at once."""
    await conn.execute(RESIGN, {"worker_id": worker_id})
