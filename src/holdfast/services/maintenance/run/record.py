"""Write how far each action is, only under the attempt that holds the job. Called by: the handler.

Every statement locks the job's row in share mode and checks the attempt on it: a replaced attempt writes nothing, and nobody
can replace the attempt between the check and the commit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import psycopg
from psycopg.rows import tuple_row
from psycopg.types.json import Jsonb

from holdfast.errors import ClaimLost
from holdfast.jobs.model import Claim
from holdfast.jobs.payload import storable
from holdfast.services.maintenance.engines.interface import ActionResult, TableStats
from holdfast.services.maintenance.savings import with_totals

Conn = psycopg.AsyncConnection[Any]

HELD = "held AS MATERIALIZED (SELECT id FROM holdfast.jobs WHERE id = %(job_id)s AND attempt_id = %(attempt_id)s FOR SHARE)"

READ_STATUSES = "SELECT position, status FROM holdfast.maintenance_actions WHERE job_id = %(job_id)s ORDER BY position"


async def statuses(conn: Conn, claim: Claim) -> dict[int, str]:
    """The status of each action, by its position: what an earlier attempt has completed is not run again."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(READ_STATUSES, {"job_id": claim.id})
        return dict(await cursor.fetchall())


# An action does not begin after the end of the window of its policy. The clock is the database's.
BEGIN = f"""
    WITH {HELD}
    UPDATE holdfast.maintenance_actions a
    SET status = CASE WHEN r.not_after <= clock_timestamp() THEN 'skipped' ELSE 'running' END,
        error = CASE WHEN r.not_after <= clock_timestamp() THEN 'the window of the policy is over' END,
        error_code = CASE WHEN r.not_after <= clock_timestamp() THEN 'window_over' END,
        attempt_id = %(attempt_id)s, started_at = coalesce(a.started_at, clock_timestamp()),
        before = coalesce(a.before, %(before)s),
        finished_at = CASE WHEN r.not_after <= clock_timestamp() THEN clock_timestamp() END
    FROM held JOIN holdfast.maintenance_runs r ON r.job_id = held.id
    WHERE a.job_id = held.id AND a.position = %(position)s
    RETURNING a.status
"""


async def begin(conn: Conn, claim: Claim, position: int, before: TableStats) -> bool:
    """The action begins; False: it was skipped, because the window of its policy is over.

    The figures from before its first attempt stay: what an interrupted attempt has committed is part of the result.
    """
    (status,) = await _one(conn, BEGIN, claim, "begin an action", position=position, before=Jsonb(before.as_json()))
    return bool(status == "running")


FINISH = f"""
    WITH {HELD}
    UPDATE holdfast.maintenance_actions a
    SET status = %(status)s, before = coalesce(a.before, %(before)s), after = coalesce(%(after)s, a.after),
        details = CASE WHEN %(details)s::jsonb = '{{}}' THEN a.details ELSE %(details)s END,
        engine_seconds = a.engine_seconds + %(engine_seconds)s, error = %(error)s, error_code = %(error_code)s,
        attempt_id = %(attempt_id)s, finished_at = CASE WHEN %(status)s <> 'running' THEN clock_timestamp() END
    FROM held WHERE a.job_id = held.id AND a.position = %(position)s
    RETURNING a.position
"""


class Failure(NamedTuple):
    """Why an action failed."""

    code: str
    message: str


async def finish(
    conn: Conn,
    claim: Claim,
    position: int,
    *,
    status: str,
    result: ActionResult | None = None,
    engine_seconds: float = 0.0,
    failure: Failure | None = None,
) -> None:
    """The action has ended as `status`; `running`: it was stopped, and `result` is what it did until then."""
    after = None if result is None or result.after is None else Jsonb(result.after.as_json())
    await _one(
        *(conn, FINISH, claim, "record an action"),
        position=position,
        status=status,
        before=None if result is None else Jsonb(result.before.as_json()),
        after=after,
        details=Jsonb({} if result is None else with_totals(result.details)),
        engine_seconds=engine_seconds,
        error=None if failure is None else storable(failure.message, 4000),
        error_code=None if failure is None else failure.code,
    )


async def _one(conn: Conn, statement: str, claim: Claim, operation: str, **parameters: Any) -> tuple[Any, ...]:
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(statement, {"job_id": claim.id, "attempt_id": claim.attempt_id, **parameters})
        row = await cursor.fetchone()
    if row is None:
        raise ClaimLost(claim.id, claim.attempt_id, operation)
    return row


READ_RESULT = """
    SELECT action, status, before, after, details, round(engine_seconds::numeric, 3)::float, error, error_code
    FROM holdfast.maintenance_actions WHERE job_id = %(job_id)s ORDER BY position
"""
FIELDS = ("action", "status", "before", "after", "details", "engine_seconds", "error", "error_code")


async def results(conn: Conn, claim: Claim) -> list[dict[str, Any]]:
    """The result of each action, for the result of the job."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(READ_RESULT, {"job_id": claim.id})
        return [dict(zip(FIELDS, row, strict=True)) for row in await cursor.fetchall()]
