"""Ask an external engine how its work goes: submitted → running, as a fenced claim like any other.

Called by: the worker's loop. The moment of the next look is on the job's row, so it survives any crash. A poll that
ends without news goes back to `submitted` (`outcome.py`), with the next of the delays that stand there. Work that an engine
has for longer than the job's `max_runtime` is not waited for.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import psycopg
from psycopg.rows import tuple_row

from holdfast.jobs import locks
from holdfast.jobs.admission import Admission
from holdfast.jobs.claim import SET_CLAIMED, Kinds, known
from holdfast.jobs.finish import finish
from holdfast.jobs.model import CLAIM_COLUMNS, LOCKS, Claim, JobId, WorkerId
from holdfast.jobs.outcome import End, overdue
from holdfast.telemetry.log import log

# The same claim as to run (claim.py), from the other side. What the attempt that submitted made outside goes over to the one
# that asks: the fence token on the row is still that of the last attempt, so what attempts before it left behind stays theirs.
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

# `(SELECT …)` makes the clock one value for an index condition. What is overdue is not asked about any more.
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
    """Claim up to `limit` jobs whose engine is due to be asked. A job that has ended is never among them,
    nor one that was made for newer code than `kinds` says that this worker has."""
    asked = {**known(kinds), "queues": list(queues), "limit": limit}
    parameters = {"worker_id": worker_id, "begins": begins, **asked}
    return await _claim(conn, CLAIM_TO_POLL, parameters)


async def _claim(conn: psycopg.AsyncConnection[Any], statement: str, parameters: dict[str, Any]) -> list[Claim]:
    async with conn.transaction(), conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(statement, parameters)
        claims = [Claim._make(row) for row in await cursor.fetchall()]
        await locks.take(cursor, Admission(), {c.id: c.attempt_id for c in claims if c.ties & LOCKS})
    return claims


# Whatever its kind and queue: the worker that knows how to ask may be long gone. A job that is overdue is due to be polled as
# well (see FINISH), so this looks at those and at no others.
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
    """End the jobs whose engine has had the work for longer than their `max_runtime`; the ids of those.

    By an attempt of its own, like every end: claimed and failed in one transaction. What the engine still does stands in
    the ledger of effects, and is cancelled from there.
    """
    return (await _fail_each(conn, FIND_OVERDUE, {"worker_id": worker_id, "begins": True, "limit": 1}, overdue(), limit)).ended


# For a service with a longest time of its own, which may have changed since the job was made.
FIND_LONGER = """
    SELECT id FROM holdfast.jobs
    WHERE state = 'submitted' AND kind = %(kind)s AND submitted_at + %(longest)s <= (SELECT clock_timestamp())
      AND id <> ALL (%(tried)s::bigint[])
    ORDER BY id LIMIT %(limit)s FOR UPDATE SKIP LOCKED
"""


class Failed(NamedTuple):
    """Jobs that were ended, and those whose end raised: they stay as they are for the next sweep."""

    ended: list[JobId]
    not_ended: list[JobId]


async def fail_longer_than(
    conn: psycopg.AsyncConnection[Any], worker_id: WorkerId, *, kind: str, longest: timedelta, error: str, limit: int = 50
) -> Failed:
    """End the jobs of this kind that an engine has had for longer than `longest`, with this error."""
    which = {"worker_id": worker_id, "begins": True, "kind": kind, "longest": longest, "limit": 1}
    return await _fail_each(conn, FIND_LONGER, which, overdue(error), limit)


async def _fail_each(conn: psycopg.AsyncConnection[Any], find: str, which: dict[str, Any], end: End, limit: int) -> Failed:
    """One a transaction: an end goes from its row to those that wait for it and to its keys, and to none that come before.
    One that raises is logged and left, and keeps no other from its end."""
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
                for claim in await _claim(conn, CLAIM_FOUND, which | {"found": found}):
                    await finish(conn, claim, end)
                    failed.ended.append(found)
        except Exception as error:
            if found is None or conn.broken:
                raise
            if found in failed.ended:  # its commit was refused
                failed.ended.remove(found)
            failed.not_ended.append(found)
            log.error("overdue_job_not_failed", job_id=found, error=str(error), exc_info=error)
    return failed


async def _find(conn: psycopg.AsyncConnection[Any], find: str, which: dict[str, Any]) -> JobId | None:
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(find, which)
        row = await cursor.fetchone()
    return None if row is None else JobId(row[0])
