"""Take jobs: pending → running. Called by: the worker's loop, and in process by id.

Every claim writes a new random `attempt_id` to the job's row. It is the fence: every later write must present it. A claim also
increments `attempt_no` and takes a new `fence_token` for external systems.

A job that needs a lock or a slot is tied. Its claim may have to wait for another transaction that uses the same key, so tied
jobs are claimed in a separate transaction after the plain ones: plain jobs never wait for them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

import psycopg
from psycopg.rows import tuple_row

from holdfast.crashpoints import crashpoint, dies_inside
from holdfast.database import arrays
from holdfast.jobs import locks, slots
from holdfast.jobs.model import CLAIM_COLUMNS, Claim, JobId, WorkerId
from holdfast.telemetry.error_text import error_line
from holdfast.telemetry.lazy_log import log

Kinds = Collection[str] | Mapping[str, int]  # names, or names with the newest known version of each
NEWEST = 2**31 - 1
TURN = attrgetter("priority", "id")  # the order of jobs; Postgres returns updated rows in any order

# Written by every claim, to run or to poll. `begins`: the caller starts the jobs at once, so their run time counts from now. A
# worker that prefetches jobs passes false, and later reports which have begun (begin.py).
SET_CLAIMED = """state = 'running', attempt_id = gen_random_uuid(), attempt_no = attempt_no + 1,
        fence_token = nextval('holdfast.fence_token'), worker_id = %(worker_id)s, claimed_at = clock_timestamp(),
        begun_at = CASE WHEN %(begins)s THEN clock_timestamp() END,
        deadline_at = CASE WHEN %(begins)s THEN clock_timestamp() + max_runtime END"""

# The part after the rows are picked and locked. The update has only a condition on the id: a cached plan could start from any
# other condition. Jobs that need a lock or a slot are only returned (their attempt is null); CLAIM_TIED claims them.
CLAIM_PICKED = f"""claimed AS (
        UPDATE holdfast.jobs j SET {SET_CLAIMED}, run_after = NULL
        FROM picked WHERE j.id = picked.id AND picked.ties & 3 = 0
        RETURNING {CLAIM_COLUMNS}
    )
    SELECT * FROM claimed
    UNION ALL
    SELECT id, NULL, NULL, NULL, NULL, NULL, NULL, NULL, ties, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
           NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
    FROM picked WHERE ties & 3 <> 0"""

# MATERIALIZED and not `id IN (SELECT … LIMIT …)`: a nested loop would run that sub-select again and claim too many.
# One ordered index scan per queue and kind: jobs of paused kinds and of kinds that this worker does not know are never read.
# There is no condition on the time: a delayed job is not on the index before it is due (see promote.py).
# A job of a newer version than this worker has is left for a worker with newer code.
CLAIM = f"""
    WITH picked AS MATERIALIZED (
        SELECT head.id, head.ties
        FROM unnest(%(queues)s::text[]) AS q(queue)
        CROSS JOIN unnest(%(kinds)s::text[], %(versions)s::int[]) AS k(kind, version)
        CROSS JOIN LATERAL (
            SELECT id, ties, priority FROM holdfast.jobs
            WHERE state = 'pending' AND run_after IS NULL AND queue = q.queue AND kind = k.kind AND kind_version <= k.version
            ORDER BY priority, id LIMIT %(limit)s FOR UPDATE SKIP LOCKED
        ) AS head
        WHERE NOT EXISTS (SELECT FROM holdfast.controls c WHERE c.kind IN (k.kind, '*') AND c.paused_at IS NOT NULL)
        ORDER BY head.priority, head.id LIMIT %(limit)s
    ), {CLAIM_PICKED}
"""
# Whether there is a job that another claim has locked and might not take: a claim locks more rows than it takes. A separate
# statement, for claims that found nothing: as a part of CLAIM it added a seventh to the time of every claim.
CONTENDED = """
    SELECT EXISTS (
        SELECT FROM unnest(%(queues)s::text[]) AS q(queue)
        CROSS JOIN unnest(%(kinds)s::text[], %(versions)s::int[]) AS k(kind, version)
        CROSS JOIN LATERAL (SELECT FROM holdfast.jobs
            WHERE state = 'pending' AND run_after IS NULL AND queue = q.queue AND kind = k.kind AND kind_version <= k.version
            ORDER BY priority, id LIMIT 1) AS waiting
        WHERE NOT EXISTS (SELECT FROM holdfast.controls c WHERE c.kind IN (k.kind, '*') AND c.paused_at IS NOT NULL))
"""

CLAIM_BY_ID = f"""
    WITH picked AS MATERIALIZED (
        SELECT id, ties FROM holdfast.jobs
        WHERE id = %(id)s AND state = 'pending' AND (run_after IS NULL OR run_after <= clock_timestamp())
          AND NOT EXISTS (SELECT FROM holdfast.controls c WHERE c.kind IN (jobs.kind, '*') AND c.paused_at IS NOT NULL)
          AND (%(kinds)s::text[] IS NULL
               OR EXISTS (SELECT FROM unnest(%(kinds)s::text[], %(versions)s::int[]) AS k(kind, version)
                          WHERE k.kind = jobs.kind AND jobs.kind_version <= k.version))
        FOR UPDATE SKIP LOCKED
    ), {CLAIM_PICKED}
"""

HOLD_TIED = """
    SELECT id, slot_key FROM holdfast.jobs
    WHERE id = ANY (%(ids)s) AND state = 'pending' AND (run_after IS NULL OR run_after <= clock_timestamp())
    ORDER BY priority, id FOR UPDATE SKIP LOCKED
"""
CLAIM_TIED = f"""
    UPDATE holdfast.jobs j SET {SET_CLAIMED}, run_after = NULL, is_current = slot_key IS NOT NULL
    WHERE id = ANY (%(ids)s) AND state = 'pending'
    RETURNING {CLAIM_COLUMNS}
"""


class Found(NamedTuple):
    """The result of a claim: plain jobs that are claimed, and the ids of tied jobs for `claim_tied`."""

    claims: list[Claim]
    tied: list[JobId]
    contended: bool = False  # nothing was found, but other claims have locked jobs that they might not take


async def claim(
    conn: psycopg.AsyncConnection[Any],
    worker_id: WorkerId,
    *,
    kinds: Kinds,
    queues: Iterable[str] = ("default",),
    limit: int = 10,
    begins: bool = True,
) -> list[Claim]:
    """Claim up to `limit` jobs, smallest priority first and oldest first within it: the plain ones, and then the tied ones.

    `kinds` may give the newest known version of each kind; without versions, jobs of every version are claimed.
    `begins=False`: the caller prefetches, and reports with `begin` or a heartbeat which jobs have started.
    """
    claims, tied, _ = await claim_plain(conn, worker_id, kinds=kinds, queues=queues, limit=limit, begins=begins)
    if not tied:
        return claims
    try:
        return claims + await claim_tied(conn, worker_id, tied, soon=bool(claims), begins=begins)
    except psycopg.Error as error:
        if not claims:
            raise
        log.warning("claim_put_off", jobs=tied, error=error_line(error), worker_id=worker_id)
        return claims


async def claim_plain(
    conn: psycopg.AsyncConnection[Any],
    worker_id: WorkerId,
    *,
    kinds: Kinds,
    queues: Iterable[str] = ("default",),
    limit: int = 10,
    begins: bool = True,
) -> Found:
    """Claim the plain ones of the next `limit` jobs and return the ids of the tied ones, without waiting. One statement, and a
    second one if there are none."""
    asked = {**known(kinds), "queues": arrays.of_texts(queues), "limit": limit}
    parameters = {"worker_id": worker_id, "begins": begins, **asked}
    found = await _find(conn, CLAIM, parameters)
    assert len(found.claims) <= limit, f"claimed {len(found.claims)} jobs for a limit of {limit}"
    if found.claims or found.tied:
        return found
    return found._replace(contended=await _is_contended(conn, asked))


async def _is_contended(conn: psycopg.AsyncConnection[Any], asked: dict[str, Any]) -> bool:
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(CONTENDED, asked, prepare=True)
        row = await cursor.fetchone()
    return bool(row and row[0])


async def claim_by_id(
    conn: psycopg.AsyncConnection[Any],
    worker_id: WorkerId,
    job_id: JobId,
    *,
    kinds: Kinds | None = None,
    begins: bool = True,
) -> Claim | None:
    """Claim this job. None: it is unknown, ended, held, not due, blocked, paused, too new, or another claim was faster."""
    kept = {"kinds": None, "versions": None} if kinds is None else known(kinds)
    claims, tied, _ = await _find(conn, CLAIM_BY_ID, {"worker_id": worker_id, "id": job_id, "begins": begins, **kept})
    if tied:
        claims = await claim_tied(conn, worker_id, tied, begins=begins)
    return claims[0] if claims else None


def known(kinds: Kinds) -> dict[str, str]:
    """The SQL parameters for the kinds, and the versions of each, that a worker can run."""
    versions = kinds.values() if isinstance(kinds, Mapping) else [NEWEST] * len(kinds)
    return {"kinds": arrays.of_texts(kinds), "versions": arrays.of_words(versions)}


@dies_inside("claim.in_tx")
async def _find(conn: psycopg.AsyncConnection[Any], statement: str, parameters: dict[str, Any]) -> Found:
    cursor = conn.cursor(row_factory=tuple_row)
    await cursor.execute(statement, parameters, prepare=True)
    rows = await cursor.fetchall()
    tied = [row[0] for row in rows if row[3] is None]
    if tied:
        rows = [row for row in rows if row[3] is not None]
    return Found(sorted(map(Claim._make, rows), key=TURN), tied)


# An enqueue with `reject` locks the key until the caller's transaction ends, which may take long.
SHORT_LOCK_TIMEOUT = "SET LOCAL lock_timeout = '1s'"


async def claim_tied(
    conn: psycopg.AsyncConnection[Any], worker_id: WorkerId, ids: list[JobId], *, soon: bool = False, begins: bool = True
) -> list[Claim]:
    """Claim those of these jobs that get their locks and their slot; the others are blocked until the holder ends.

    Blocking changes nothing else: no attempt is counted, and no other row is changed. `soon`: do not wait long for a key,
    because the caller holds other claims.
    """
    try:
        return await _claim_tied(conn, worker_id, ids, soon=soon, begins=begins)
    except psycopg.errors.UniqueViolation as lost:
        # The second guard behind `slots.hold`: another job of the slot became current first. The transaction is rolled back.
        if lost.diag.constraint_name != "one_current_per_slot":
            raise
        return []


async def _claim_tied(
    conn: psycopg.AsyncConnection[Any], worker_id: WorkerId, ids: list[JobId], *, soon: bool, begins: bool
) -> list[Claim]:
    async with conn.transaction(), conn.cursor(row_factory=tuple_row) as cursor:
        if soon:
            await cursor.execute(SHORT_LOCK_TIMEOUT)
        await cursor.execute(HOLD_TIED, {"ids": ids})
        candidates: dict[JobId, str | None] = dict(await cursor.fetchall())
        free_slot = await slots.block_where_busy(cursor, candidates)
        admitted = await locks.block_where_busy(cursor, free_slot)
        claims: list[Claim] = []
        if admitted.jobs:
            await slots.demote_ended(cursor, [candidates[job_id] for job_id in admitted.jobs if candidates[job_id]])
            await cursor.execute(CLAIM_TIED, {"ids": admitted.jobs, "worker_id": worker_id, "begins": begins})
            claims = sorted(map(Claim._make, await cursor.fetchall()), key=TURN)
            await locks.take(cursor, admitted, {claim.id: claim.attempt_id for claim in claims})
        await locks.wake_waiters(cursor, admitted.reopened)
    if not claims:
        return []
    crashpoint("lock.after")
    return claims
