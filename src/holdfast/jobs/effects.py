"""Effects: a record of what jobs create in external systems, such as queries, pods and staging prefixes.

A row is written before the resource is created, so that a crash at any point leaves a record. When the resource is not needed
any more (its attempt failed, was cancelled or replaced, or it was temporary), the row becomes `unwanted`, and the cleaner of
the effect's kind is called until it confirms that the resource is gone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import uuid4

import psycopg
from psycopg.rows import tuple_row

from holdfast.errors import ClaimLost, UsageError
from holdfast.jobs.model import AttemptId, Claim, JobId, Json
from holdfast.jobs.payload import refuse_bad_text, storable, to_json
from holdfast.jobs.states import State

Cursor = psycopg.AsyncCursor[tuple[Any, ...]]


class Effect(NamedTuple):
    """An external resource: its kind, the tag to find it by, and its handle, if one was returned."""

    id: int
    job_id: JobId
    attempt_id: AttemptId
    fence_token: int
    kind: str
    tag: str
    detail: Json
    handle: Json
    state: str


COLUMNS = "e.id, e.job_id, e.attempt_id::text, e.fence_token, e.kind, e.tag, e.detail, e.handle, e.state"

# The update of the job's row is the fence: a replaced attempt cannot plan an effect, and the end of the job, which locks the
# same row, sees every planned effect.
PLAN = f"""
    WITH held AS (
        UPDATE holdfast.jobs SET ties = ties | 8 WHERE id = %(job_id)s AND attempt_id = %(attempt_id)s RETURNING id
    )
    INSERT INTO holdfast.effects AS e (job_id, attempt_id, fence_token, kind, tag, detail, temporary, adoptable)
    SELECT id, %(attempt_id)s, %(fence_token)s, %(kind)s, %(tag)s, %(detail)s, %(temporary)s, %(adoptable)s FROM held
    ON CONFLICT (tag) DO NOTHING
    RETURNING {COLUMNS}
"""
FIND_TAG = f"""
    SELECT {COLUMNS} FROM holdfast.effects e JOIN holdfast.jobs j ON j.id = %(job_id)s AND j.attempt_id = %(attempt_id)s
    WHERE e.tag = %(tag)s
"""


async def plan(
    conn: psycopg.AsyncConnection[Any],
    claim: Claim,
    kind: str,
    *,
    tag: str | None = None,
    detail: Mapping[str, Any] | None = None,
    temporary: bool = False,
    adoptable: bool = False,
) -> Effect:
    """Record a resource that is about to be created, and its tag. Commit before creating it.

    The same attempt may repeat the call. A tag of another job or attempt is refused: a tag must identify one resource.
    """
    refuse_bad_text(kind, "effect's kind")
    refuse_bad_text(tag, "tag")
    parameters = {
        "job_id": claim.id,
        "attempt_id": claim.attempt_id,
        "fence_token": claim.fence_token,
        "kind": kind,
        "tag": tag or f"{kind}-{claim.id}-{claim.fence_token}-{uuid4().hex[:8]}",
        "detail": to_json(dict(detail or {}), what="effect's detail"),
        "temporary": temporary,
        "adoptable": adoptable,
    }
    row = await _one(conn, PLAN, parameters) or await _one(conn, FIND_TAG, parameters)
    if row is None:
        raise ClaimLost(claim.id, claim.attempt_id, "effect")
    effect = Effect(*row)
    _refuse_foreign_tag(claim, kind, effect)
    return effect


def _refuse_foreign_tag(claim: Claim, kind: str, effect: Effect) -> None:
    if effect.job_id != claim.id:
        raise UsageError(f"tag {effect.tag!r} belongs to job {effect.job_id}; use a tag that contains the id of this job")
    if effect.attempt_id != claim.attempt_id:
        raise UsageError(
            f"tag {effect.tag!r} was planned by an earlier attempt; adopt its effect (`left_behind`, `adopt`), "
            "or use a tag that contains the fence token"
        )
    if effect.kind != kind:
        raise UsageError(f"tag {effect.tag!r} was planned for the kind {effect.kind}; use another tag for {kind}")


# Without an attempt: every attempt finds them with `left_behind`, and after the job's end they are unwanted in any case.
ENTRUST = """
    WITH told AS (
        UPDATE holdfast.jobs SET ties = ties | 8 WHERE id = %(job_id)s AND attempt_id IS NULL RETURNING id
    )
    INSERT INTO holdfast.effects (job_id, attempt_id, fence_token, kind, tag, detail, temporary, adoptable)
    SELECT told.id, %(nobody)s, 0, %(kind)s, %(kind)s || '-' || told.id || '-' || number, detail, true, true
    FROM told, unnest(%(details)s::jsonb[]) WITH ORDINALITY AS given (detail, number)
"""


async def entrust(conn: psycopg.AsyncConnection[Any], job_id: JobId, kind: str, details: Sequence[Mapping[str, Any]]) -> None:
    """Record existing resources that this job has to remove. Call it in the transaction that enqueues the job.

    The job finds them with `left_behind`. If it fails or is cancelled, the cleaner of the effect's kind removes the rest.
    """
    texts = [to_json(dict(detail), what="effect's detail") for detail in details]
    parameters = {"job_id": job_id, "nobody": str(uuid4()), "kind": kind, "details": texts}
    if (await conn.execute(ENTRUST, parameters)).rowcount != len(details):
        raise UsageError(f"job {job_id} has begun or does not exist; call entrust in the transaction that enqueues it")


# Checks the attempt on the effect and on the job: a replaced attempt must not confirm its effects.
CONFIRM = f"""
    UPDATE holdfast.effects e SET state = 'made', handle = %(handle)s
    FROM holdfast.jobs j
    WHERE e.id = %(id)s AND e.state IN ('planned', 'made') AND e.attempt_id = %(attempt_id)s
      AND j.id = e.job_id AND j.attempt_id = %(attempt_id)s
    RETURNING {COLUMNS}
"""


async def confirm(conn: psycopg.AsyncConnection[Any], claim: Claim, effect: Effect, handle: Json) -> Effect:
    """Record that the resource was created, with its handle."""
    parameters = {"id": effect.id, "attempt_id": claim.attempt_id, "handle": to_json(handle, what="handle")}
    row = await _one(conn, CONFIRM, parameters)
    if row is None:
        raise ClaimLost(claim.id, claim.attempt_id, "effect")
    return Effect(*row)


LEFT_BEHIND = f"""
    SELECT {COLUMNS} FROM holdfast.effects e
    WHERE e.job_id = %(job_id)s AND e.attempt_id <> %(attempt_id)s AND e.state IN ('planned', 'made') ORDER BY e.id
"""
ADOPT = f"""
    WITH held AS (
        UPDATE holdfast.jobs SET ties = ties | 8 WHERE id = %(job_id)s AND attempt_id = %(attempt_id)s RETURNING id
    )
    UPDATE holdfast.effects e SET attempt_id = %(attempt_id)s, fence_token = %(fence_token)s, state = 'made',
        handle = coalesce(%(handle)s, e.handle)
    FROM held WHERE e.id = %(id)s AND e.job_id = held.id AND e.state IN ('planned', 'made')
    RETURNING {COLUMNS}
"""


async def left_behind(conn: psycopg.AsyncConnection[Any], claim: Claim) -> list[Effect]:
    """Effects of earlier attempts, which this attempt may adopt. First check by the tag whether the resource exists."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(LEFT_BEHIND, {"job_id": claim.id, "attempt_id": claim.attempt_id})
        return [Effect(*row) for row in await cursor.fetchall()]


async def adopt(conn: psycopg.AsyncConnection[Any], claim: Claim, effect: Effect, handle: Json = None) -> Effect:
    """Take over an effect of an earlier attempt."""
    parameters = {
        "id": effect.id,
        "job_id": claim.id,
        "attempt_id": claim.attempt_id,
        "fence_token": claim.fence_token,
        "handle": None if handle is None else to_json(handle, what="handle"),
    }
    row = await _one(conn, ADOPT, parameters)
    if row is None:
        raise ClaimLost(claim.id, claim.attempt_id, "effect")
    return Effect(*row)


# The effects of an attempt after its end. While an engine has the work, nothing changes. If the job will run again, the next
# attempt may adopt them. When the job has ended, only effects of the last attempt that are not temporary are kept.
SETTLE = """
    UPDATE holdfast.effects e
    SET state = CASE WHEN %(completed)s AND NOT temporary AND attempt_id = %(attempt_id)s::uuid THEN 'kept' ELSE 'unwanted' END,
        clean_after = CASE WHEN %(completed)s AND NOT temporary AND attempt_id = %(attempt_id)s::uuid
                           THEN NULL ELSE clock_timestamp() END
    WHERE job_id = %(job_id)s AND state IN ('planned', 'made') AND (%(ended)s OR NOT adoptable)
"""


async def settle(cursor: Cursor, job_id: JobId, attempt_id: AttemptId | None, state: State) -> None:
    """Update a job's effects in the transaction that ends its attempt."""
    if state is State.SUBMITTED:
        return
    parameters = {
        "job_id": job_id,
        "attempt_id": attempt_id,
        "completed": state is State.COMPLETED,
        "ended": state is not State.PENDING,
    }
    await cursor.execute(SETTLE, parameters)


# ---------------------------------------------------------------------------------------------------------------------
# Cleaning up
# ---------------------------------------------------------------------------------------------------------------------

Cleaner = Callable[[Effect], Awaitable[bool]]  # True: the resource does not exist (any more)

# Taking an effect for cleaning is a fenced claim too: its next time is `lease` ahead, so another cleaner follows if this one
# dies.
TAKE_UNWANTED = f"""
    WITH picked AS MATERIALIZED (
        SELECT id FROM holdfast.effects
        WHERE state = 'unwanted' AND clean_after <= (SELECT clock_timestamp()) AND kind = ANY (%(kinds)s)
        ORDER BY clean_after LIMIT %(limit)s FOR UPDATE SKIP LOCKED
    )
    UPDATE holdfast.effects e
    SET clean_id = %(clean_id)s, clean_after = clock_timestamp() + %(lease)s, clean_tries = clean_tries + 1
    FROM picked WHERE e.id = picked.id AND e.state = 'unwanted'
    RETURNING {COLUMNS}
"""
MARK_GONE = """
    UPDATE holdfast.effects SET state = 'gone', clean_after = NULL, clean_id = NULL, gone_at = clock_timestamp(), error = NULL
    WHERE id = %(id)s AND clean_id = %(clean_id)s
"""
TRY_AGAIN_LATER = """
    UPDATE holdfast.effects
    SET clean_after = clock_timestamp() + least(interval '1 second' * 2 ^ least(clean_tries, 10), interval '10 minutes'),
        clean_id = NULL, error = %(error)s
    WHERE id = %(id)s AND clean_id = %(clean_id)s
"""


async def clean(
    conn: psycopg.AsyncConnection[Any],
    cleaners: Mapping[str, Cleaner],
    *,
    limit: int = 20,
    lease: timedelta = timedelta(minutes=5),
) -> int:
    """Clean up to `limit` unwanted effects that are due. Returns how many were confirmed as gone."""
    clean_id = str(uuid4())
    async with conn.cursor(row_factory=tuple_row) as cursor:
        parameters = {"kinds": list(cleaners), "limit": limit, "clean_id": clean_id, "lease": lease}
        await cursor.execute(TAKE_UNWANTED, parameters)
        taken = [Effect(*row) for row in await cursor.fetchall()]
    gone = 0
    for effect in taken:
        error = "the cleaner did not confirm that it is gone"
        try:
            confirmed = await cleaners[effect.kind](effect)
        except Exception as failure:  # foreign code: after any error, the effect is tried again
            confirmed, error = False, f"{type(failure).__name__}: {failure}"
        done = {"id": effect.id, "clean_id": clean_id}
        if confirmed:
            gone += (await conn.execute(MARK_GONE, done)).rowcount
        else:
            await conn.execute(TRY_AGAIN_LATER, done | {"error": storable(error, 2000)})
    return gone


async def _one(conn: psycopg.AsyncConnection[Any], statement: str, parameters: dict[str, Any]) -> tuple[Any, ...] | None:
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(statement, parameters)
        return await cursor.fetchone()
