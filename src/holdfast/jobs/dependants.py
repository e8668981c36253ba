"""Update the jobs that wait for a job that has ended. Called by: `finish.py`, in the transaction of the end.

A job that waits for parents has the number of open parents on its row. When a parent fails or is cancelled, all jobs that wait
for it, directly or indirectly, are cancelled in one statement, however long the chain or wide the fan-out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg

from holdfast.jobs.model import DEPENDANTS, JobId
from holdfast.jobs.states import State

Cursor = psycopg.AsyncCursor[tuple[Any, ...]]

# Jobs are selected by a list of ids and not by a join: estimates for a recursive query must not lead to a scan of all jobs.
# Dependencies are read by LATERAL with OFFSET 0 and not by a join, which would read the whole table once for each step of a
# chain. Only of jobs that have dependants: after one fan-out of 10,000 the statistics say that every parent has 10,000, and the
# planner would search the whole table for each.
DEPENDANTS_OF_ONE = """LATERAL (
            SELECT j.id FROM holdfast.jobs j WHERE j.id = one.id AND j.ties & 4 <> 0 OFFSET 0) AS parent
        CROSS JOIN LATERAL (SELECT job_id FROM holdfast.dependencies WHERE parent_id = parent.id OFFSET 0) AS d"""
HOLD_DEPENDANTS = f"""
    WITH RECURSIVE below (id) AS (
        SELECT job_id FROM holdfast.dependencies WHERE parent_id = ANY (%(parents)s)
        UNION
        SELECT d.job_id FROM below AS one CROSS JOIN {DEPENDANTS_OF_ONE} WHERE %(deep)s
    )
    SELECT j.id FROM holdfast.jobs j WHERE j.id = ANY (ARRAY(SELECT id FROM below)) ORDER BY j.id FOR UPDATE OF j
"""


def holding(some: str) -> str:
    """The statement that locks the selected jobs and all that wait for them, in the order of their ids.

    A transaction that changes several rows runs it first. Rows that are locked step by step are locked in an order that depends
    on the dependencies, and two such transactions can deadlock.
    """
    return f"""
    WITH RECURSIVE held (id) AS (
        {some}
        UNION
        SELECT d.job_id FROM held AS one CROSS JOIN {DEPENDANTS_OF_ONE}
    )
    SELECT FROM holdfast.jobs j WHERE j.id = ANY (ARRAY(SELECT id FROM held)) ORDER BY j.id FOR UPDATE OF j
    """


async def hold_dependants(cursor: Cursor, parents: list[JobId], *, deep: bool) -> list[JobId]:
    """Lock the rows of jobs that wait for these, with `deep` also of indirect dependants. Returns their ids."""
    await cursor.execute(HOLD_DEPENDANTS, {"parents": parents, "deep": deep})
    return [row[0] for row in await cursor.fetchall()]


# The jobs that wait for `parent`. OFFSET 0 forces an index lookup for each, whatever the statistics say. The state is read
# inside and compared outside: as a condition inside, and with statistics that have seen no blocked job, each lookup would read
# all blocked jobs.
CHILDREN = """LATERAL (SELECT d.job_id AS id FROM holdfast.dependencies d WHERE d.parent_id = parent.id OFFSET 0) AS child
        CROSS JOIN LATERAL (SELECT j.if_parent_fails, j.ties & 4 <> 0 AS has_dependants,
                j.state = 'blocked' AND j.waiting_for = 'parents' AS waits
            FROM holdfast.jobs j WHERE j.id = child.id OFFSET 0) AS found"""
ENDED = "unnest(%(ids)s::bigint[], %(states)s::text[]) AS parent (id, state)"

# Rows are selected by lists of ids, and the new values are looked up in a JSON map: a join could be planned as a nested loop
# over two lists, because the statistics may have seen neither a blocked job nor a dependency.

# Every job is visited once, from any parent. The parent that its error names is chosen afterwards.
CANCEL_DEPENDANTS = f"""
    WITH RECURSIVE below (id, has_dependants) AS (
        SELECT child.id, found.has_dependants FROM {ENDED} CROSS JOIN {CHILDREN}
        WHERE parent.state <> 'completed' AND found.waits AND found.if_parent_fails = 'cancel'
        UNION
        SELECT child.id, found.has_dependants FROM below AS parent CROSS JOIN {CHILDREN}
        WHERE parent.has_dependants AND found.waits AND found.if_parent_fails = 'cancel'
    ), gone AS (
        SELECT id, state FROM {ENDED} WHERE state <> 'completed'
        UNION ALL SELECT id, 'cancelled' FROM below WHERE has_dependants
    ), children AS MATERIALIZED (
        SELECT DISTINCT ON (child.id) child.id, 'parent ' || parent.id || ' ' || parent.state AS error
        FROM gone AS parent CROSS JOIN {CHILDREN}
        WHERE found.waits AND found.if_parent_fails = 'cancel' ORDER BY child.id, parent.id
    ), held AS MATERIALIZED (
        SELECT j.id, j.state FROM holdfast.jobs j WHERE j.id = ANY (ARRAY(SELECT id FROM children))
        ORDER BY j.id FOR UPDATE OF j
    ), spoilt AS (
        UPDATE holdfast.jobs j
        SET state = 'cancelled', waiting_for = NULL, finished_at = clock_timestamp(), cause = 'parent',
            error = (SELECT jsonb_object_agg(id, error) FROM children) ->> j.id::text
        WHERE j.id = ANY (ARRAY(SELECT id FROM held WHERE state = 'blocked'))
        RETURNING j.id, j.ties, j.slot_key, j.state, j.attempt_no, j.error
    ), noted AS (
        INSERT INTO holdfast.history (job_id, move, state, attempt_no, reason)
        SELECT id, 'cancel', 'cancelled', attempt_no, error FROM spoilt
    )
    SELECT id, ties, slot_key, state FROM spoilt
"""
# A job may wait for several of the jobs that end here. Its row is locked (HOLD_DEPENDANTS) and holds the count: a parent that
# ends in another transaction waits for the row, so no count is lost.
COUNT_DOWN = f"""
    WITH children AS MATERIALIZED (
        SELECT child.id, count(*) AS fewer FROM {ENDED} CROSS JOIN {CHILDREN}
        WHERE found.waits AND (parent.state = 'completed' OR found.if_parent_fails = 'run') GROUP BY child.id
    ), held AS MATERIALIZED (
        SELECT j.id, j.state = 'blocked' AND j.waiting_for = 'parents' AS waits FROM holdfast.jobs j
        WHERE j.id = ANY (ARRAY(SELECT id FROM children)) ORDER BY j.id FOR UPDATE OF j
    ), fewer AS MATERIALIZED (
        SELECT jsonb_object_agg(id, fewer) AS by_id FROM children
    ), counted AS (
        UPDATE holdfast.jobs j
        SET parents_left = parents_left - (f.by_id -> j.id::text)::int,
            state = CASE WHEN parents_left = (f.by_id -> j.id::text)::int THEN 'pending' ELSE j.state END,
            waiting_for = CASE WHEN parents_left = (f.by_id -> j.id::text)::int THEN NULL ELSE waiting_for END
        FROM fewer f WHERE j.id = ANY (ARRAY(SELECT id FROM held WHERE waits))
        RETURNING j.id, j.queue, j.state, j.attempt_no
    ), noted AS (
        INSERT INTO holdfast.history (job_id, move, state, attempt_no, reason)
        SELECT id, 'wake', state, attempt_no, 'all its parents have ended' FROM counted WHERE state = 'pending'
    )
    SELECT id, pg_notify('holdfast', queue) FROM counted WHERE state = 'pending'
"""


async def settle(cursor: Cursor, ended: Mapping[JobId, State]) -> list[tuple[Any, ...]]:
    """Count down the dependants of jobs that have just ended; those that can never run are cancelled and returned."""
    states: dict[JobId, str] = {job_id: str(state) for job_id, state in ended.items()}
    spoilt: list[tuple[Any, ...]] = []
    if any(state is not State.COMPLETED for state in ended.values()):
        await cursor.execute(CANCEL_DEPENDANTS, _lists(states))
        spoilt = await cursor.fetchall()
        states |= {row[0]: State.CANCELLED.value for row in spoilt if row[1] & DEPENDANTS}
    await cursor.execute(COUNT_DOWN, _lists(states))
    return spoilt


def _lists(states: Mapping[JobId, str]) -> dict[str, Any]:
    return {"ids": list(states), "states": list(states.values())}
