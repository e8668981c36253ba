"""Record and read who made a job over HTTP. Called by: the HTTP API, which lets analysts act on their own jobs only.

The owner is set in the transaction that made the job, and never again: an enqueue that finds an equal job (`unique_key`,
`slot_key`) does not own it. Jobs made in Python have no owner, nor have the children of a job: a handler made them.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.rows import tuple_row

from holdfast.jobs.model import Enqueued, JobId

# The guards are for mistakes of a caller: an owner is never replaced.
SET_OWNER = "UPDATE holdfast.jobs SET owner = %(owner)s WHERE id = %(id)s AND owner IS NULL"


async def set_owner(conn: psycopg.AsyncConnection[Any], made: Enqueued, owner: str) -> None:
    """Make `owner` the owner of a job that this transaction created; a job that was found keeps its own."""
    if made.created:
        await conn.execute(SET_OWNER, {"id": made.id, "owner": owner})


READ_OWNER = "SELECT owner FROM holdfast.jobs WHERE id = %(id)s"


async def owner_of(conn: psycopg.AsyncConnection[Any], job_id: JobId) -> str | None:
    """Who made this job over HTTP; None: it was made in Python, or there is no such job."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(READ_OWNER, {"id": job_id})
        row = await cursor.fetchone()
    return None if row is None else row[0]
