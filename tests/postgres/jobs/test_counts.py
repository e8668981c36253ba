"""Counts of every state stay fast in a large table: the number of rows read is bounded with any plan.

Looked at is what EXPLAIN (ANALYZE) says that each scan went through, so nothing here depends on how fast the machine is.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest
from psycopg import AsyncClientCursor

from databases import new_database
from holdfast.jobs.states import State
from holdfast.jobs.views import read
from holdfast.jobs.views.read import CAP, MOST_LOOKED_AT, Count, count_states

CROWD, FEW = 200_000, 30
# Jobs in any state, made as rows: each satisfies the constraints of its state.
FILL = """
    INSERT INTO holdfast.jobs (kind, state, run_after, waiting_for, attempt_id, worker_id, handle, next_poll_at, finished_at)
    SELECT 'k', %(state)s, CASE WHEN %(delayed)s THEN clock_timestamp() + interval '1 h' END,
        CASE WHEN %(state)s = 'blocked' THEN 'lock' END,
        CASE WHEN %(state)s = 'running' THEN gen_random_uuid() END, CASE WHEN %(state)s = 'running' THEN gen_random_uuid() END,
        CASE WHEN %(state)s = 'submitted' THEN '1'::jsonb END, CASE WHEN %(state)s = 'submitted' THEN clock_timestamp() END,
        CASE WHEN %(state)s IN ('completed', 'failed', 'cancelled') THEN clock_timestamp() END
    FROM generate_series(1, %(count)s)
"""


def _fill(conn: psycopg.Connection[Any], state: State, count: int, *, delayed: bool = False) -> None:
    conn.execute(FILL, {"state": state, "count": count, "delayed": delayed})


# Completed jobs are the usual crowd; pending ones are a backlog of which little is done.
@pytest.fixture(scope="module", params=[State.COMPLETED, State.PENDING], ids=["many completed", "many pending"])
def crowd(request: pytest.FixtureRequest, server: str, template: str) -> Iterator[tuple[State, str]]:
    """The state of the crowd, and the address of a database with it and, after it, a few jobs in every other state."""
    with new_database(server, f"TEMPLATE {template}") as url:
        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute("ALTER TABLE holdfast.jobs SET (autovacuum_enabled = false)")
            _fill(conn, request.param, CROWD)
            for state in State:
                if state is not request.param:
                    _fill(conn, state, FEW)
            _fill(conn, State.PENDING, FEW, delayed=True)
            conn.execute("VACUUM ANALYZE holdfast.jobs")
        yield request.param, url


@pytest.fixture
async def counting(crowd: tuple[State, str]) -> AsyncIterator[tuple[State, Any]]:
    async with await psycopg.AsyncConnection.connect(crowd[1], autocommit=True) as conn:
        yield crowd[0], conn


async def _looked_at(conn: Any, statement: str, **parameters: int) -> list[int]:
    """How many rows each scan of the jobs went through, those that it threw away included."""
    cursor = AsyncClientCursor(conn)
    await cursor.execute("EXPLAIN (ANALYZE, FORMAT JSON) " + statement, parameters)
    ((plan,),) = await cursor.fetchall()
    found: list[int] = []

    def walk(node: dict[str, Any]) -> None:
        if node.get("Relation Name") == "jobs":
            rows = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
            found.append(round(rows * node["Actual Loops"]))
        for child in node.get("Plans", ()):
            walk(child)

    walk((json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"])
    return found


@pytest.mark.more
async def test_count_reads_no_more_rows_than_its_cap(counting: tuple[State, Any]) -> None:
    _, conn = counting

    looked_at = await _looked_at(conn, read.COUNT_STATES, cap=CAP)

    assert len(looked_at) == len(read.COUNTED)
    assert max(looked_at) <= CAP + 1


async def test_count_of_completed_jobs_is_bounded(counting: tuple[State, Any]) -> None:
    state, conn = counting

    looked_at = await _looked_at(conn, read.COUNT_COMPLETED, cap=CAP, most_looked_at=MOST_LOOKED_AT)

    assert max(looked_at) <= (CAP + 1 if state is State.COMPLETED else MOST_LOOKED_AT + 1)


async def test_every_state_is_counted_in_a_large_table(counting: tuple[State, Any]) -> None:
    """Exact where there is an index, capped where there are many, and what was not looked for to the end says so."""
    many, conn = counting

    found = await count_states(conn)

    few = {State.BLOCKED, State.RUNNING, State.SUBMITTED, State.FAILED, State.CANCELLED}
    assert {state: found[state] for state in few} == dict.fromkeys(few, Count(FEW, capped=False))
    assert found[many] == Count(CAP, capped=True)
    if many is State.COMPLETED:
        assert found[State.PENDING] == Count(2 * FEW, capped=False), "those that wait for their time are among them"
    else:
        assert found[State.COMPLETED].estimated
        assert found[State.COMPLETED].count < 100 * FEW, "as far off as the sample of an ANALYZE may be"


async def test_completed_jobs_at_the_head_of_a_backlog_are_counted_with_stale_statistics(fresh_database: str) -> None:
    async with await psycopg.AsyncConnection.connect(fresh_database, autocommit=True) as conn:
        await conn.execute("ALTER TABLE holdfast.jobs SET (autovacuum_enabled = false)")
        await conn.execute(FILL, {"state": "completed", "count": 3, "delayed": False})
        await conn.execute(FILL, {"state": "pending", "count": 20, "delayed": False})

        part = await count_states(conn, most_looked_at=10)
        whole = await count_states(conn, most_looked_at=23)
        enough = await count_states(conn, most_looked_at=10, cap=2)

    assert part[State.COMPLETED] == Count(3, capped=False, estimated=True)
    assert whole[State.COMPLETED] == Count(3, capped=False)
    assert enough[State.COMPLETED] == Count(2, capped=True)


def test_estimate_is_marked() -> None:
    assert str(Count(1234, capped=False, estimated=True)) == "~1,234"
