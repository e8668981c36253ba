"""The ledger of what jobs make outside: queries, pods, staging prefixes.

A row is written before the thing is made, so that a crash at any point leaves a trace to follow. When nobody needs the
thing any more (its attempt failed, was cancelled or replaced, or it was only ever temporary) the row becomes
`unwanted`, and a cleaner, registered by the effect's kind, is called until it confirms that the thing is gone.
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
    """A thing outside: its kind, the tag to find it by, and the handle if one came back."""

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

# The mark on the job's row is the fence: a replaced attempt cannot plan anything, and the end of the job, whose guard
# asks for the same row, cannot miss what was planned.
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
    """Write down what is about to be made, and the tag it will carry. Commit before making it.

    The same attempt may say it again. A tag of anybody else is refused: whoever looks for it outside must find one thing.
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
        raise UsageError(f"tag {effect.tag!r} belongs to job {effect.job_id}; let the tag carry the id of its own job")
    if effect.attempt_id != claim.attempt_id:
        raise UsageError(
            f"tag {effect.tag!r} was planned by an earlier attempt; adopt what it made (`left_behind`, `adopt`), "
            "or let the tag carry the fence token"
        )
    if effect.kind != kind:
        raise UsageError(f"tag {effect.tag!r} was planned for a {effect.kind}; a {kind} needs a tag of its own")


# In nobody's hands: no attempt has begun, so that each finds them as left behind, and whatever the end, they are unwanted.
ENTRUST = """
    WITH told AS (
        UPDATE holdfast.jobs SET ties = ties | 8 WHERE id = %(job_id)s AND attempt_id IS NULL RETURNING id
    )
    INSERT INTO holdfast.effects (job_id, attempt_id, fence_token, kind, tag, detail, temporary, adoptable)
    SELECT told.id, %(nobody)s, 0, %(kind)s, %(kind)s || '-' || told.id || '-' || number, detail, true, true
    FROM told, unnest(%(details)s::jsonb[]) WITH ORDINALITY AS given (detail, number)
"""


async def entrust(conn: psycopg.AsyncConnection[Any], job_id: JobId, kind: str, details: Sequence[Mapping[str, Any]]) -> None:
    """Write down things that are there already and that this job is to remove. Call it in the transaction that enqueues it.

    The job finds them with `left_behind`; what it leaves, failing or cancelled, the cleaner of the kind removes.
    """
    texts = [to_json(dict(detail), what="effect's detail") for detail in details]
    parameters = {"job_id": job_id, "nobody": str(uuid4()), "kind": kind, "details": texts}
    if (await conn.execute(ENTRUST, parameters)).rowcount != len(details):
        raise UsageError(f"job {job_id} has begun, or is not there: what it is to remove is said when it is enqueued")


# Guarded by the attempt on the effect itself and on the job: what a replaced attempt made is not its to confirm.
CONFIRM = f"""
    UPDATE holdfast.effects e SET state = 'made', handle = %(handle)s
    FROM holdfast.jobs j
    WHERE e.id = %(id)s AND e.state IN ('planned', 'made') AND e.attempt_id = %(attempt_id)s
      AND j.id = e.job_id AND j.attempt_id = %(attempt_id)s
    RETURNING {COLUMNS}
"""


async def confirm(conn: psycopg.AsyncConnection[Any], claim: Claim, effect: Effect, handle: Json) -> Effect:
    """The thing is made; this is how to reach it."""
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
    """What earlier attempts of this job may have made and this one may adopt: look it up outside by its tag first."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(LEFT_BEHIND, {"job_id": claim.id, "attempt_id": claim.attempt_id})
        return [Effect(*row) for row in await cursor.fetchall()]


async def adopt(conn: psycopg.AsyncConnection[Any], claim: Claim, effect: Effect, handle: Json = None) -> Effect:
    """Take over what an earlier attempt made."""
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


# What an attempt leaves, by how its job goes on. While an engine has the work nothing changes; a job that will run
# again keeps what its next attempt may adopt; at the end only what the last attempt made for keeps is kept.
SETTLE = """
    UPDATE holdfast.effects e
    SET state = CASE WHEN %(completed)s AND NOT temporary AND attempt_id = %(attempt_id)s::uuid THEN 'kept' ELSE 'unwanted' END,
        clean_after = CASE WHEN %(completed)s AND NOT temporary AND attempt_id = %(attempt_id)s::uuid
                           THEN NULL ELSE clock_timestamp() END
    WHERE job_id = %(job_id)s AND state IN ('planned', 'made') AND (%(ended)s OR NOT adoptable)
"""


async def settle(cursor: Cursor, job_id: JobId, attempt_id: AttemptId | None, state: State) -> None:
    """Decide what becomes of a job's effects, in the transaction that ends its attempt."""
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

Cleaner = Callable[[Effect], Awaitable[bool]]  # True: it is gone, or never was

# Taking an effect for cleaning is a fenced claim as well: pushed `lease` ahead, so that a cleaner that dies is followed.
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
    """Clean up to `limit` unwanted effects whose time has come; how many were confirmed gone."""
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
        except Exception as failure:  # foreign code: whatever it raises, the effect is tried again
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
