"""Record that the handler of an attempt has started. Called by: heartbeats, for running jobs; keepers, for executors whose
interpreter is blocked; lanes, for jobs with `confirm_start`.

Workers prefetch short jobs, so a claim does not show that the handler has started. The start of a short job is never written,
because the job ends before the next heartbeat. `max_runtime`, the crash limit and `explain` use the start time written here. A
job whose worker died before a heartbeat could report it gets `confirm_start` (rescue.py): its next start is written before its
handler runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from holdfast.database import arrays
from holdfast.errors import ClaimLost
from holdfast.jobs.model import AttemptId, Claim, JobId, WorkerId

# `begun_at` may be from an earlier attempt; then it is before the claim of this one.
HAS_BEGUN = "(begun_at IS NOT NULL AND begun_at >= claimed_at)"

# SKIP LOCKED: the heartbeat must not wait for an end that is being written, perhaps in a long transaction of a handler.
NOTE_BEGUN = f"""
    WITH unseen AS MATERIALIZED (
        SELECT j.id, greatest(j.claimed_at, clock_timestamp() - interval '1 second' * mine.seconds) AS began
        FROM unnest(%(ids)s::bigint[], %(attempts)s::uuid[], %(seconds)s::float8[]) AS mine(id, attempt_id, seconds)
        JOIN holdfast.jobs j ON j.id = mine.id AND j.attempt_id = mine.attempt_id
        WHERE j.worker_id = %(worker_id)s AND NOT {HAS_BEGUN}
        FOR UPDATE OF j SKIP LOCKED
    )
    UPDATE holdfast.jobs j SET begun_at = unseen.began, deadline_at = unseen.began + j.max_runtime
    FROM unseen WHERE j.id = unseen.id
    RETURNING j.id
"""


async def note_begun(
    conn: psycopg.AsyncConnection[Any], worker_id: WorkerId, running: Sequence[tuple[JobId, AttemptId, float]]
) -> list[JobId]:
    """Write the start of these attempts of the worker, each with the seconds since then. Returns the ids whose start was not
    known before. Attempts of other workers are left out: their ids are not secret."""
    parameters = {
        "worker_id": worker_id,
        "ids": arrays.of_words(one[0] for one in running),
        "attempts": arrays.of_words(one[1] for one in running),
        "seconds": [one[2] for one in running],
    }
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(NOTE_BEGUN, parameters)
        return [row[0] for row in await cursor.fetchall()]


NOTE_BEGUN_BLOCKED = f"""
    WITH unseen AS MATERIALIZED (
        SELECT id, greatest(claimed_at, clock_timestamp() - interval '1 second' * %(seconds)s) AS began
        FROM holdfast.jobs
        WHERE worker_id = %(worker_id)s AND fence_token = ANY (%(tokens)s::bigint[]) AND NOT {HAS_BEGUN}
        FOR UPDATE SKIP LOCKED
    )
    UPDATE holdfast.jobs j SET begun_at = unseen.began, deadline_at = unseen.began + j.max_runtime
    FROM unseen WHERE j.id = unseen.id
"""


async def note_begun_blocked(
    conn: psycopg.AsyncConnection[Any], worker_id: WorkerId, tokens: Sequence[int], *, seconds: float
) -> None:
    """Write the start of the attempts with these fence tokens. The interpreter of their worker has been blocked for this long
    and sends no heartbeats."""
    await conn.execute(NOTE_BEGUN_BLOCKED, {"worker_id": worker_id, "tokens": arrays.of_words(tokens), "seconds": seconds})


BEGIN = f"""
    UPDATE holdfast.jobs
    SET (begun_at, deadline_at) = (SELECT began, began + max_runtime
                                   FROM (SELECT CASE WHEN {HAS_BEGUN} THEN begun_at ELSE clock_timestamp() END) AS b(began))
    WHERE id = %(id)s AND attempt_id = %(attempt_id)s
    RETURNING id
"""


async def begin(conn: psycopg.AsyncConnection[Any], claim: Claim) -> None:
    """Write that this attempt starts now. Raises `ClaimLost` if it was replaced: then its handler must not run."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(BEGIN, {"id": claim.id, "attempt_id": claim.attempt_id})
        if await cursor.fetchone() is None:
            raise ClaimLost(claim.id, claim.attempt_id, "begin")
