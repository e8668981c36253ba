"""What a job reports beside its state: result, message, counts. It is on the job's row of `ingestions`."""

from __future__ import annotations

from typing import Any

import psycopg

from holdfast.errors import ClaimLost
from holdfast.jobs.model import Claim, Json
from holdfast.jobs.payload import to_json

Conn = psycopg.AsyncConnection[Any]

# Fenced as every write after a claim. The row exists: it was made when the job was claimed, or before.
NOTE = """
    UPDATE holdfast.ingestions i SET outcome = %(outcome)s::jsonb, message = %(message)s
    FROM holdfast.jobs j WHERE i.job_id = %(job_id)s AND j.id = i.job_id AND j.attempt_id = %(attempt_id)s
"""
# In the transaction that ends the job, whose fence was checked there.
CONCLUDE = """
    UPDATE holdfast.ingestions SET outcome = %(outcome)s::jsonb, message = %(message)s, result = %(result)s
    WHERE job_id = %(job_id)s
"""


async def note(conn: Conn, claim: Claim, message: str, outcome: Json) -> None:
    """Note what is known while the job runs, so that it is there if the job fails. `ClaimLost` if it was replaced."""
    given = {"outcome": to_json(outcome, what="outcome"), "message": message}
    done = await conn.execute(NOTE, {**given, "job_id": claim.id, "attempt_id": claim.attempt_id})
    if done.rowcount == 0:
        raise ClaimLost(claim.id, claim.attempt_id, "report")


async def conclude(conn: Conn, job_id: int, result: str, message: str, outcome: Json) -> None:
    """Write the result in the transaction that ends the job."""
    given = {"outcome": to_json(outcome, what="outcome"), "message": message, "result": result, "job_id": job_id}
    await conn.execute(CONCLUDE, given)
