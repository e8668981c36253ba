"""Set and read the owner of a job: the principal that made it over HTTP. Called by: the HTTP API, in which analysts may act
only on their own jobs.

The owner is set in the transaction that made the job, and never changed: an enqueue that finds an existing job (`unique_key`,
`slot_key`) does not become its owner. Jobs made in Python and the children of jobs have no owner.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.rows import tuple_row

from holdfast.jobs.model import Enqueued, JobId

# The condition guards against mistakes of a caller: an owner is never replaced.
SET_OWNER = "UPDATE holdfast.jobs SET owner = %(owner)s WHERE id = %(id)s AND owner IS NULL"


async def set_owner(conn: psycopg.AsyncConnection[Any], made: Enqueued, owner: str) -> None:
    """Set the owner of a job that this transaction created; a job that existed before is not changed."""
    if made.created:
        await conn.execute(SET_OWNER, {"id": made.id, "owner": owner})


READ_OWNER = "SELECT owner FROM holdfast.jobs WHERE id = %(id)s"


async def owner_of(conn: psycopg.AsyncConnection[Any], job_id: JobId) -> str | None:
    """The owner of this job; None: it was made in Python, or there is no such job."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(READ_OWNER, {"id": job_id})
        row = await cursor.fetchone()
    return None if row is None else row[0]
