"""Claim submitted jobs to poll their external engine: submitted → running, as a fenced claim like any other.

Called by: the worker's loop. The time of the next poll is on the job's row, so it survives any crash. If the engine has not
finished, the job returns to `submitted` (`outcome.py`, which has the delays). A job fails when its engine has had the work for
longer than the job's `max_runtime`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

import psycopg
from psycopg.rows import tuple_row

from holdfast.jobs import locks
from holdfast.jobs.admission import Admission
from holdfast.jobs.claim import SET_CLAIMED, Kinds, known
from holdfast.jobs.finish import finish
from holdfast.jobs.model import CLAIM_COLUMNS, LOCKS, Claim, JobId, WorkerId
from holdfast.jobs.outcome import End, overdue
from holdfast.telemetry.error_text import error_line
from holdfast.telemetry.lazy_log import log

# The same as a claim to run (claim.py), but from `submitted`. Effects of the attempt that submitted are moved to the attempt
# that polls: the fence token on the row is still that of the last attempt, so effects of attempts before it are not moved.
TAKE_PICKED = f"""claimed AS (
        UPDATE holdfast.jobs j SET {SET_CLAIMED}
        FROM picked WHERE j.id = picked.id
        RETURNING {CLAIM_COLUMNS}
    ), taken_over AS (
        UPDATE holdfast.effects e SET attempt_id = c.attempt_id::uuid, fence_token = c.fence_token
        FROM claimed c JOIN picked p ON p.id = c.id
        WHERE c.ties & 8 <> 0 AND e.job_id = c.id AND e.fence_token = p.fence_token AND e.state IN ('planned', 'made')
    )
    SELECT * FROM claimed"""

# `(SELECT …)` evaluates the clock once, so that the index can be used. Overdue jobs are not polled any more.
CLAIM_TO_POLL = f"""
    WITH picked AS MATERIALIZED (
        SELECT id, fence_token FROM holdfast.jobs
        WHERE state = 'submitted' AND next_poll_at <= (SELECT clock_timestamp())
          AND kind_version <= (SELECT version FROM unnest(%(kinds)s::text[], %(versions)s::int[]) AS k(name, version)
                               WHERE name = kind)
          AND queue = ANY (%(queues)s)
          AND (submitted_at + max_runtime <= (SELECT clock_timestamp())) IS NOT TRUE
        ORDER BY next_poll_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
    ), {TAKE_PICKED}
"""


async def claim_to_poll(
    conn: psycopg.AsyncConnection[Any],
    worker_id: WorkerId,
    *,
    kinds: Kinds,
    queues: Sequence[str] = ("default",),
    limit: int = 50,
    begins: bool = True,
) -> list[Claim]:
    """Claim up to `limit` jobs that are due to be polled. Jobs that have ended, or of a newer version than in `kinds`, are not
    claimed."""
    asked = {**known(kinds), "queues": list(queues), "limit": limit}
    parameters = {"worker_id": worker_id, "begins": begins, **asked}
    return await _claim(conn, CLAIM_TO_POLL, parameters)


async def _claim(conn: psycopg.AsyncConnection[Any], statement: str, parameters: dict[str, Any]) -> list[Claim]:
    async with conn.transaction(), conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(statement, parameters)
        claims = [Claim._make(row) for row in await cursor.fetchall()]
        await locks.take(cursor, Admission(), {c.id: c.attempt_id for c in claims if c.ties & LOCKS})
    return claims


# For every kind and queue, because there may be no worker left that can poll it. An overdue job is also due to be polled (see
# FINISH), so only such jobs are read.
FIND_OVERDUE = """
    SELECT id FROM holdfast.jobs
    WHERE state = 'submitted' AND next_poll_at <= (SELECT clock_timestamp())
      AND submitted_at + max_runtime <= (SELECT clock_timestamp()) AND id <> ALL (%(tried)s::bigint[])
    ORDER BY next_poll_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
"""
CLAIM_FOUND = f"""
    WITH picked AS MATERIALIZED (
        SELECT id, fence_token FROM holdfast.jobs WHERE id = %(found)s AND state = 'submitted' FOR UPDATE
    ), {TAKE_PICKED}
"""


async def fail_overdue(conn: psycopg.AsyncConnection[Any], worker_id: WorkerId, *, limit: int = 50) -> list[JobId]:
    """Fail jobs whose engine has had the work for longer than `max_runtime`. Returns their ids.

    Each is claimed and failed in one transaction. The engine's work is recorded as an effect, whose cleaner cancels it.
    """
    which = {"worker_id": worker_id, "begins": True, "limit": 1}
    return (await fail_each(conn, FIND_OVERDUE, which, partial(_claim_found, conn, which), overdue(), limit=limit)).ended


# For a service with a configured limit, which may have changed since the job was made.
FIND_LONGER = """
    SELECT id FROM holdfast.jobs
    WHERE state = 'submitted' AND kind = %(kind)s AND submitted_at + %(longest)s <= (SELECT clock_timestamp())
      AND id <> ALL (%(tried)s::bigint[])
    ORDER BY id LIMIT %(limit)s FOR UPDATE SKIP LOCKED
"""


class Failed(NamedTuple):
    """Jobs that were failed, and jobs for which that raised an error: the next sweep tries those again."""

    ended: list[JobId]
    not_ended: list[JobId]


async def fail_longer_than(
    conn: psycopg.AsyncConnection[Any], worker_id: WorkerId, *, kind: str, longest: timedelta, error: str, limit: int = 50
) -> Failed:
    """Fail jobs of this kind that an engine has had for longer than `longest`, with this error."""
    which = {"worker_id": worker_id, "begins": True, "kind": kind, "longest": longest, "limit": 1}
    return await fail_each(conn, FIND_LONGER, which, partial(_claim_found, conn, which), overdue(error), limit=limit)


async def _claim_found(conn: psycopg.AsyncConnection[Any], which: dict[str, Any], found: JobId) -> list[Claim]:
    return await _claim(conn, CLAIM_FOUND, which | {"found": found})


async def fail_each(
    conn: psycopg.AsyncConnection[Any],
    find: str,
    which: dict[str, Any],
    hold: Callable[[JobId], Awaitable[list[Claim]]],
    end: End,
    *,
    limit: int,
) -> Failed:
    """End the jobs whose ids `find` returns one by one, under the claims that `hold` returns for them.

    One transaction for each job: an end locks its row, then its dependants and keys, and two ends in one transaction would
    break that order. An error is logged, and the next job follows.
    """
    failed = Failed([], [])
    tried: list[JobId] = []
    for _ in range(limit):
        found: JobId | None = None
        try:
            async with conn.transaction():
                found = await _find(conn, find, which | {"tried": tried})
                if found is None:
                    break
                tried.append(found)
                for claim in await hold(found):
                    await finish(conn, claim, end)
                    failed.ended.append(found)
        except Exception as error:
            if found is None or conn.broken:
                raise
            if found in failed.ended:  # the commit failed
                failed.ended.remove(found)
            failed.not_ended.append(found)
            log.error("overdue_job_not_failed", job_id=found, error=error_line(error), exc_info=error)
    return failed


async def _find(conn: psycopg.AsyncConnection[Any], find: str, which: dict[str, Any]) -> JobId | None:
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(find, which)
        row = await cursor.fetchone()
    return None if row is None else JobId(row[0])
