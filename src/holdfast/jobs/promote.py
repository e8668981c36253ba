"""Make due jobs claimable: delayed jobs and periodic jobs. Called by: any worker, when a heartbeat says that one is due.

A delayed job is pending but not on the index that claims scan. Promoting puts it there and notifies idle workers: the worker
that promotes a job is not always one that can run it. `wake_forgotten` is the sweep behind locks and slots: the end of a job
wakes its waiters in the same transaction, and the sweep finds what a rare overlap left.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NamedTuple

import psycopg
from psycopg.rows import tuple_row

from holdfast.jobs import locks, slots
from holdfast.jobs.model import JobId
from holdfast.jobs.periodic.active import NEXT_PERIODIC
from holdfast.jobs.periodic.enqueue_due import enqueue_due

PROMOTE_DUE = """
    WITH due AS MATERIALIZED (
        SELECT id FROM holdfast.jobs
        WHERE state = 'pending' AND run_after <= (SELECT clock_timestamp())
        ORDER BY run_after LIMIT %(limit)s FOR UPDATE SKIP LOCKED
    )
    -- ANY (ARRAY …) and not a join: the planner then uses the primary key, however many rows it expects.
    UPDATE holdfast.jobs j SET run_after = NULL WHERE j.id = ANY (ARRAY(SELECT id FROM due))
    RETURNING j.id, pg_notify('holdfast', j.queue)
"""


async def promote_due(conn: psycopg.AsyncConnection[Any], *, limit: int = 1000) -> list[JobId]:
    """Make up to `limit` delayed jobs that are due claimable."""
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
    """Delayed jobs that are due, without `but`: for a sweep in which one job could not be promoted."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(FIND_DUE, {"but": but, "limit": limit})
        return [row[0] for row in await cursor.fetchall()]


async def promote_one(conn: psycopg.AsyncConnection[Any], job_id: JobId) -> None:
    """Make one delayed job that is due claimable."""
    await conn.execute(PROMOTE_ONE, {"id": job_id})


class Promoted(NamedTuple):
    """How many jobs became claimable, and how long until the next delayed or periodic job is due."""

    jobs: int
    next_due: timedelta | None


NEXT_DUE = f"""SELECT least((SELECT run_after - clock_timestamp() FROM holdfast.jobs
         WHERE state = 'pending' AND run_after IS NOT NULL ORDER BY run_after LIMIT 1), ({NEXT_PERIODIC}))"""


async def next_due(conn: psycopg.AsyncConnection[Any]) -> timedelta | None:
    """How long until the next delayed or periodic job is due, by the database's clock; negative if one is due already."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(NEXT_DUE)
        row = await cursor.fetchone()
    return None if row is None else row[0]


async def promote_all_due(conn: psycopg.AsyncConnection[Any]) -> Promoted:
    """Promote delayed jobs and enqueue periodic jobs whose time has come."""
    promoted = await promote_due(conn)
    enqueued = await enqueue_due(conn)
    return Promoted(len(promoted) + len(enqueued), await next_due(conn))


async def wake_forgotten(conn: psycopg.AsyncConnection[Any]) -> None:
    """Wake jobs that wait for a lock or a slot which is free."""
    async with conn.transaction(), conn.cursor(row_factory=tuple_row) as cursor:
        await locks.wake_forgotten(cursor)
        await slots.wake_forgotten(cursor)
