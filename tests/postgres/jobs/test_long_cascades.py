"""The end of a job reaches everything that waits for it, however long the chain or wide the fan-out."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from factories import add, column, end, hold, moves_of, rows, silence, state_of, take, value, waits
from holdfast.jobs import dependants
from holdfast.jobs import finish as finishing
from holdfast.jobs.cancel import abort, cancel
from holdfast.jobs.enqueue import enqueue
from holdfast.jobs.model import Lock, NewJob
from holdfast.jobs.outcome import Done, Fail
from holdfast.jobs.pipelines import Pipeline
from holdfast.jobs.rescue import OVERDUE_GRACE, rescue
from holdfast.jobs.states import State

MANY = 10_000
# What `after` writes, for thousands at once: a statement for each would be most of the test.
CHAIN = """
    WITH made AS (
        INSERT INTO holdfast.jobs (kind, queue, payload, state, waiting_for, parents_left, ties)
        SELECT 'k', 'default', '{}', 'blocked', 'parents', 1, CASE WHEN %(chain)s THEN 4 ELSE 0 END
        FROM generate_series(1, %(count)s) RETURNING id
    ), ordered AS (
        SELECT id, coalesce(lag(id) OVER (ORDER BY id), %(head)s) AS before FROM made
    ), tied AS (
        UPDATE holdfast.jobs SET ties = ties | 4 WHERE id = %(head)s
    )
    INSERT INTO holdfast.dependencies (parent_id, job_id)
    SELECT CASE WHEN %(chain)s THEN before ELSE %(head)s END, id FROM ordered
"""


async def _below(conn: Any, head: int, *, chain: bool, count: int = MANY) -> None:
    await conn.execute("SET session_replication_role = replica")  # the foreign keys cannot see rows of the same statement
    await conn.execute(CHAIN, {"head": head, "count": count, "chain": chain})
    await conn.execute("SET session_replication_role = DEFAULT")


async def _states(conn: Any) -> dict[str, int]:
    return dict(await rows(conn, "SELECT state, count(*) FROM holdfast.jobs GROUP BY 1"))


@pytest.mark.more
@pytest.mark.parametrize("chain", [True, False], ids=["chain", "fan-out"])
@pytest.mark.parametrize("way", ["fail", "cancel", "quarantine", "overdue"])
async def test_cancel_of_a_job_cancels_ten_thousand_dependants(conn: Any, chain: bool, way: str) -> None:
    claim = await hold(conn, max_crashes=1)
    await _below(conn, claim.id, chain=chain)

    match way:
        case "fail":
            await end(conn, claim, Fail("no"))
        case "cancel":
            await cancel(conn, claim.id, actor="ada", force=True)
        case "quarantine":
            await silence(conn, claim)
            assert await rescue(conn) == [claim.id]
        case "overdue":
            await conn.execute("UPDATE holdfast.jobs SET deadline_at = clock_timestamp() - %s * 2 WHERE id = %s",
                               [OVERDUE_GRACE, claim.id])  # fmt: skip
            assert await rescue(conn) == [claim.id]

    head = "cancelled" if way == "cancel" else "failed"
    assert await state_of(conn, claim.id) == head
    assert await value(conn, "SELECT count(*) FROM holdfast.jobs WHERE state = 'cancelled' AND cause = 'parent'") == MANY
    assert await value(conn, "SELECT count(*) FROM holdfast.history WHERE move = 'cancel' AND reason LIKE 'parent %%'") == MANY
    named = await value(conn, "SELECT count(DISTINCT error) FROM holdfast.jobs WHERE cause = 'parent'")
    assert named == (MANY if chain else 1), "each names the parent that it waited for"


@pytest.mark.parametrize("chain", [True, False], ids=["chain", "fan-out"])
async def test_completion_of_a_job_wakes_ten_thousand_dependants(conn: Any, chain: bool) -> None:
    claim = await hold(conn)
    await _below(conn, claim.id, chain=chain)

    await end(conn, claim, Done())

    expected = {"completed": 1, "pending": 1, "blocked": MANY - 1} if chain else {"completed": 1, "pending": MANY}
    assert await _states(conn) == expected


@pytest.mark.parametrize(("ended_with", "state"), [(Done(), "pending"), (Fail("no"), "cancelled")], ids=["done", "failed"])
async def test_end_of_a_job_locks_no_slot_of_its_dependants(conn: Any, ended_with: Any, state: str) -> None:
    """They are never current. Postgres has room for some thousands of such locks, and a job whose end needs more never ends."""
    claim = await hold(conn, slot_key="of the head")
    waiting = [await add(conn, slot_key=f"unit:{number}", after=[claim.id]) for number in range(3)]

    async with conn.transaction():
        await end(conn, claim, ended_with)
        taken = await value(conn, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()")

    assert taken == 1
    assert [await state_of(conn, job) for job in waiting] == [state] * 3


ONLY_PENDING = "INSERT INTO holdfast.jobs (kind, queue, payload) SELECT 'k', 'default', '{}' FROM generate_series(1, 3000)"


@pytest.mark.more
@pytest.mark.parametrize("chain", [True, False], ids=["chain", "fan-out"])
@pytest.mark.parametrize("seen", ["everything", "only pending jobs"])
async def test_cascade_takes_linear_time_with_any_statistics(conn: Any, chain: bool, seen: str) -> None:
    """They may say that each parent has 10,000 dependants, or that no job is blocked and none depends on another."""
    if seen == "only pending jobs":
        await conn.execute(ONLY_PENDING)
        await conn.execute("ANALYZE holdfast.jobs, holdfast.dependencies")
        await conn.execute("DELETE FROM holdfast.jobs")
    claim = await hold(conn)
    await _below(conn, claim.id, chain=chain)
    if seen == "everything":
        await conn.execute("VACUUM ANALYZE holdfast.jobs, holdfast.dependencies")
    head, completed = {"ids": [claim.id], "states": ["failed"]}, {"ids": [claim.id], "states": ["completed"]}
    runs = [
        (dependants.HOLD_DEPENDANTS, {"parents": [claim.id], "deep": True}),
        (dependants.holding("SELECT unnest(%(ids)s::bigint[])"), head),
        (dependants.CANCEL_DEPENDANTS, head),
        (dependants.COUNT_DOWN, completed),
    ]

    for statement, parameters in runs:
        async with conn.transaction(force_rollback=True):
            cursor = await conn.execute("EXPLAIN (ANALYZE, FORMAT JSON) " + statement, parameters)
            ((plan,),) = await cursor.fetchall()
        assert sum(map(_rows, _nodes(plan[0]["Plan"]))) < 50 * MANY, (
            "a nested loop over two lists would be 10,000 times as many"
        )


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in plan.get("Plans", ()):
        yield from _nodes(below)


def _rows(node: dict[str, Any]) -> float:
    """How many rows this part of a plan went through."""
    counts = ("Actual Rows", "Rows Removed by Filter", "Rows Removed by Join Filter", "Rows Removed by Index Recheck")
    return float(sum(node.get(count, 0) for count in counts) * node["Actual Loops"])


@pytest.mark.more
async def test_a_pipeline_of_a_thousand_steps_can_be_aborted(conn: Any) -> None:
    line = Pipeline("long")
    line.add(NewJob("k"))
    ((head, _),) = await line.enqueue(conn)
    await _below(conn, head, chain=True, count=1_100)
    await conn.execute("UPDATE holdfast.jobs SET pipeline_id = %s", [line.id])

    assert await abort(conn, line.id, actor="ada") == 1_101

    assert await _states(conn) == {"cancelled": 1_101}


async def test_locks_of_transitive_dependants_are_released(conn: Any) -> None:
    """Its lock, its slot, and those that run when a parent fails: also at the end of a chain."""
    head = await hold(conn)
    middle = await add(conn, after=(head.id,))
    await add(conn, after=(middle,))
    last = (await enqueue(conn, NewJob("k", after=(middle,), locks=(Lock("l"),), slot_key="s"))).id
    runs = await add(conn, after=(last, middle), if_parent_fails="run")

    await end(conn, head, Fail("no"))

    assert await state_of(conn, last) == "cancelled"
    assert await rows(conn, "SELECT job_id FROM holdfast.lock_wants WHERE waiting") == []
    assert (await enqueue(conn, NewJob("k", locks=(Lock("l"),), slot_key="s"))).created, "its slot is free"
    assert await state_of(conn, runs) == "pending", "both of its parents have ended, in one transaction"
    assert await moves_of(conn, runs) == ["wake"]
    await take(conn, runs)


@pytest.mark.parametrize("parent", [State.FAILED, State.COMPLETED])
async def test_concurrently_cancelled_dependant_is_not_changed(conn: Any, connect: Any, parent: State) -> None:
    """The end of its parent waits for the row, then sees that it is over: the job is neither cancelled again nor woken."""
    other, observer = await connect(), await connect()
    head = await hold(conn)
    child = await add(conn, after=(head.id,))

    async def settle() -> list[Any]:
        async with conn.transaction(), conn.cursor() as cursor:
            return await dependants.settle(cursor, {head.id: parent})

    async with other.transaction():
        await cancel(other, child, actor="ada")
        settling = asyncio.create_task(settle())
        await waits(observer, conn)

    assert await settling == []
    assert await state_of(conn, child) == "cancelled"
    assert await moves_of(conn, child) == ["cancel"]


async def test_fan_in_of_parents_that_end_together_counts_each_once(conn: Any) -> None:
    claims = [await hold(conn, max_crashes=1) for _ in range(3)]
    worker = claims[0].worker_id
    await conn.execute("UPDATE holdfast.jobs SET worker_id = %s, alone = true", [worker])
    other = await hold(conn)
    after = tuple(claim.id for claim in claims)
    runs = await add(conn, after=(*after, other.id), if_parent_fails="run")
    await conn.execute("UPDATE holdfast.jobs SET cancel_requested_at = clock_timestamp() WHERE id = ANY (%s)", [list(after)])
    await silence(conn, claims[0])

    assert sorted(await rescue(conn)) == sorted(after)

    assert await column(conn, runs, "parents_left") == 1
    await end(conn, other, Done())
    assert await state_of(conn, runs) == "pending"


async def test_failed_rescue_does_not_stop_other_rescues(conn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each dead worker is a transaction of its own, and so is each overdue job."""
    claims = sorted([await hold(conn) for _ in range(5)], key=lambda claim: claim.worker_id)
    overdue = [await hold(conn) for _ in range(3)]
    await silence(conn, *claims)
    await conn.execute("UPDATE holdfast.jobs SET deadline_at = clock_timestamp() - %s * 2 WHERE id = ANY (%s)",
                       [OVERDUE_GRACE, [claim.id for claim in overdue]])  # fmt: skip
    bad = {claims[0].id, claims[2].id, overdue[0].id}
    untie = finishing.untie_all

    async def fails_for_some(cursor: Any, ended: Any) -> None:
        if bad & {one.id for one, _ in ended}:
            raise RecursionError("it cannot be done")
        await untie(cursor, ended)

    monkeypatch.setattr("holdfast.jobs.rescue.untie_all", fails_for_some)

    rescued = await rescue(conn)

    assert set(rescued) == {claim.id for claim in (*claims, *overdue)} - bad
    states = dict(await rows(conn, "SELECT id, state FROM holdfast.jobs"))
    assert {job_id for job_id, state in states.items() if state == "running"} == bad
    bad.clear()
    assert len(await rescue(conn)) == 3, "the next sweep tries them again"


async def test_failed_statement_in_a_rescue_does_not_stop_other_rescues(conn: Any) -> None:
    """An error of the database: the transaction of that worker alone is rolled back."""
    claims = sorted([await hold(conn) for _ in range(3)], key=lambda claim: claim.worker_id)
    await conn.execute(
        f"CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$;"
        f"CREATE TRIGGER refuse BEFORE INSERT ON holdfast.history FOR EACH ROW WHEN (NEW.job_id = {claims[0].id}) "
        "EXECUTE FUNCTION refuse()"
    )
    await silence(conn, *claims)

    assert set(await rescue(conn)) == {claims[1].id, claims[2].id}

    assert await state_of(conn, claims[0].id) == "running"
