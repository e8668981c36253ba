"""Bring jobs back to the claim index when their time has come. Called by: any worker, when a beat says so.

A delayed job is pending but off the index that claims walk over; here it gets onto it, and idle workers are told: who
promotes is not always who may run it. The second half is the sweep
behind locks and slots: whoever ends wakes its waiters in the same transaction, and this finds what a rare overlap left.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NamedTuple

import psycopg
from psycopg.rows import tuple_row

from holdfast.jobs import locks, slots
from holdfast.jobs.model import JobId

PROMOTE_DUE = """
    WITH due AS MATERIALIZED (
        SELECT id FROM holdfast.jobs
        WHERE state = 'pending' AND run_after <= (SELECT clock_timestamp())
        ORDER BY run_after LIMIT %(limit)s FOR UPDATE SKIP LOCKED
    )
    -- ANY (ARRAY …) and no join: the rows are reached by their ids, however many the planner expects.
    UPDATE holdfast.jobs j SET run_after = NULL WHERE j.id = ANY (ARRAY(SELECT id FROM due))
    RETURNING j.id, pg_notify('holdfast', j.queue)
"""


async def promote_due(conn: psycopg.AsyncConnection[Any], *, limit: int = 1000) -> list[JobId]:
    """Put up to `limit` delayed jobs whose time has come where claims find them."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(PROMOTE_DUE, {"limit": limit})
        return [row[0] for row in await cursor.fetchall()]


FIND_DUE = """
    SELECT id FROM holdfast.jobs WHERE state = 'pending' AND run_after <= (SELECT clock_timestamp())
      AND id <> ALL (%(but)s::bigint[]) ORDER BY run_after LIMIT %(limit)s
"""
PROMOTE_ONE = """
    UPDATE holdfast.jobs SET run_after = NULL
    WHERE id = %(id)s AND state = 'pending' AND run_after <= (SELECT clock_timestamp())
    RETURNING id, pg_notify('holdfast', queue)
"""


async def find_due(conn: psycopg.AsyncConnection[Any], *, but: list[JobId], limit: int) -> list[JobId]:
    """Delayed jobs whose time has come, without `but`: for a sweep that found one which cannot be promoted."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(FIND_DUE, {"but": but, "limit": limit})
        return [row[0] for row in await cursor.fetchall()]


async def promote_one(conn: psycopg.AsyncConnection[Any], job_id: JobId) -> None:
    """Put one delayed job, whose time has come, where claims find it."""
    await conn.execute(PROMOTE_ONE, {"id": job_id})


class Promoted(NamedTuple):
    """What a promotion came to: how many jobs became due, and how long until the next one does."""

    jobs: int
    next_due: timedelta | None


NEXT_DUE = """SELECT run_after - clock_timestamp() FROM holdfast.jobs
         WHERE state = 'pending' AND run_after IS NOT NULL ORDER BY run_after LIMIT 1"""


async def next_due(conn: psycopg.AsyncConnection[Any]) -> timedelta | None:
    """How long until the next delayed job is due, by the database's clock; negative if one is due already."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(NEXT_DUE)
        row = await cursor.fetchone()
    return None if row is None else row[0]


async def wake_forgotten(conn: psycopg.AsyncConnection[Any]) -> None:
    """Wake jobs that wait for a lock or a slot which is free."""
    async with conn.transaction(), conn.cursor(row_factory=tuple_row) as cursor:
        await locks.wake_forgotten(cursor)
        await slots.wake_forgotten(cursor)
