"""Report the progress of an attempt, and check whether it should continue. Called by: handlers, through their context.

Neither changes the state. Both are fenced like every write after a claim, so a replaced attempt cannot write for its successor.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.rows import tuple_row

from holdfast.errors import CancelRequested, ClaimLost, UsageError
from holdfast.jobs.model import Claim
from holdfast.jobs.payload import refuse_bad_text

PROGRESS = """
    UPDATE holdfast.jobs
    SET progress = coalesce(%(progress)s, progress), message = coalesce(%(message)s, message)
    WHERE id = %(id)s AND attempt_id = %(attempt_id)s
    RETURNING cancel_requested_at IS NOT NULL, cancel_reason
"""


async def report(
    conn: psycopg.AsyncConnection[Any], claim: Claim, *, progress: float | None = None, message: str | None = None
) -> None:
    """Write the progress (0 to 1) and a message. Raises if the attempt was replaced (`ClaimLost`) or has a cancel request."""
    try:
        is_part = progress is None or 0 <= progress <= 1
    except TypeError:
        is_part = False
    if not is_part:
        raise UsageError(f"progress must be between 0 and 1, not {progress!r}; the message is the second argument")
    refuse_bad_text(message, "message")
    parameters = {"id": claim.id, "attempt_id": claim.attempt_id, "progress": progress, "message": message}
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(PROGRESS, parameters)
        _go_on(claim, await cursor.fetchone(), "progress")


CHECK = """
    SELECT cancel_requested_at IS NOT NULL, cancel_reason FROM holdfast.jobs
    WHERE id = %(id)s AND attempt_id = %(attempt_id)s
"""


async def checkpoint(conn: psycopg.AsyncConnection[Any], claim: Claim) -> None:
    """Call this before a side effect: raises if the attempt was replaced (`ClaimLost`) or has a cancel request."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(CHECK, {"id": claim.id, "attempt_id": claim.attempt_id})
        _go_on(claim, await cursor.fetchone(), "checkpoint")


def _go_on(claim: Claim, row: tuple[Any, ...] | None, operation: str) -> None:
    if row is None:
        raise ClaimLost(claim.id, claim.attempt_id, operation)
    if row[0]:
        raise CancelRequested(claim.id, row[1])
