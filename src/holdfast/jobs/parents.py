"""The results of the jobs that a job waited for. Called by: handlers, through `ctx.parents()`. Changes nothing."""

from __future__ import annotations

from typing import Any, Final, Generic, NamedTuple, TypeVar

import psycopg
from psycopg.rows import tuple_row

from holdfast.errors import UsageError
from holdfast.jobs.model import Claim, JobId

T = TypeVar("T")
MOST_BYTES: Final = 8 * 2**20  # of all results together, as JSON text


class Parent(NamedTuple, Generic[T]):
    """A job for which this one waited, or the job that made it."""

    id: JobId
    kind: str
    step: str | None  # of a child of `Done(then=…)`; None for the steps of a `Pipeline`
    state: str  # completed; with if_parent_fails="run" also failed or cancelled
    result: T


# The jobs of `after`, in that order. A job that waited for none has the one that made it as its parent. Jobs from before the
# column `parents` existed have only their dependencies.
PARENTS = """
    SELECT parent.id, parent.place FROM holdfast.jobs j CROSS JOIN LATERAL unnest(
        CASE WHEN j.parents IS NOT NULL THEN j.parents
             WHEN EXISTS (SELECT FROM holdfast.dependencies d WHERE d.job_id = j.id)
             THEN ARRAY(SELECT d.parent_id FROM holdfast.dependencies d WHERE d.job_id = j.id ORDER BY d.parent_id)
             WHEN j.parent_id IS NOT NULL THEN ARRAY[j.parent_id] END
    ) WITH ORDINALITY AS parent (id, place)
    WHERE j.id = %(id)s
"""
MEASURE = f"""
    WITH parents AS MATERIALIZED ({PARENTS})
    SELECT coalesce(sum(octet_length(p.result::text)), 0) FROM parents JOIN holdfast.jobs p ON p.id = parents.id
"""
READ = f"""
    WITH parents AS MATERIALIZED ({PARENTS})
    SELECT p.id, p.kind, p.step, p.state, p.result FROM parents JOIN holdfast.jobs p ON p.id = parents.id ORDER BY parents.place
"""


async def read_parents(conn: psycopg.AsyncConnection[Any], claim: Claim, *, most_bytes: int = MOST_BYTES) -> list[Parent[Any]]:
    """The parents of a job, in the order of its `after`; those that were pruned are missing."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(MEASURE, {"id": claim.id})
        ((size,),) = await cursor.fetchall()
        if size > most_bytes:
            raise UsageError(
                f"the results of the parents of job {claim.id} have {size:,} bytes, and ctx.parents() reads at most "
                f"{most_bytes:,}; store large results in a table or a file, and return a reference"
            )
        await cursor.execute(READ, {"id": claim.id})
        return [Parent(*row) for row in await cursor.fetchall()]
