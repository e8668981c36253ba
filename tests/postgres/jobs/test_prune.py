"""Retention: old ended jobs are deleted with their rows, and nothing that is still needed is deleted."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from factories import HOUR, add, end, everything, hold, never_wait, rows, silence, start_worker, submit, take, value
from holdfast.jobs import effects
from holdfast.jobs import prune as prune_module
from holdfast.jobs.effects import clean
from holdfast.jobs.model import Lock, NewJob
from holdfast.jobs.outcome import Cancel, Done, Fail
from holdfast.jobs.pipelines import Pipeline
from holdfast.jobs.prune import prune
from holdfast.jobs.views.history import history


async def _ended(conn: Any, ended_with: object = None, **fields: Any) -> int:
    claim = await hold(conn, **fields)
    await end(conn, claim, ended_with)
    return claim.id


async def _age(conn: Any) -> None:
    """A day goes by."""
    await conn.execute("UPDATE holdfast.jobs SET finished_at = finished_at - interval '1 day' WHERE finished_at IS NOT NULL")
    await conn.execute("UPDATE holdfast.workers SET lease_until = lease_until - interval '1 day'")
    await conn.execute("UPDATE holdfast.pipelines SET created_at = created_at - interval '1 day'")


@pytest.mark.parametrize("ended_with", [None, Fail("no"), Cancel("no")])
async def test_old_jobs_are_deleted_with_their_history(conn: Any, ended_with: object) -> None:
    await _ended(conn, ended_with)
    await _age(conn)

    assert await prune(conn, older_than=HOUR) == 1

    assert await rows(conn, "SELECT FROM holdfast.jobs") == []
    assert await rows(conn, "SELECT FROM holdfast.history") == []


async def test_recently_ended_jobs_are_kept(conn: Any) -> None:
    await _ended(conn)
    before = await everything(conn)

    assert await prune(conn, older_than=HOUR) == 0

    assert await everything(conn) == before


async def test_live_jobs_are_kept_at_any_age(conn: Any) -> None:
    await add(conn), await hold(conn), await submit(conn, await hold(conn)), await add(conn, after=(await add(conn),))
    await conn.execute("UPDATE holdfast.jobs SET created_at = created_at - interval '10 years'")

    assert await prune(conn, older_than=timedelta(0)) == 0


async def test_history_of_kept_jobs_is_kept(conn: Any) -> None:
    await _ended(conn)
    await _age(conn)
    young = await _ended(conn)

    await prune(conn, older_than=HOUR)

    assert await rows(conn, "SELECT job_id FROM holdfast.history") == [(young,)]


async def test_current_job_of_a_slot_is_kept(conn: Any) -> None:
    old = await _ended(conn, slot_key="s")
    current = await _ended(conn, Done("the result"), slot_key="s")
    await _age(conn)

    assert await prune(conn, older_than=HOUR) == 1

    assert await rows(conn, "SELECT id FROM holdfast.jobs") == [(current,)]
    assert old != current


async def test_job_is_kept_until_its_effects_are_removed(conn: Any) -> None:
    claim = await hold(conn)
    await effects.plan(conn, claim, "query")
    await end(conn, claim, Fail("no"))
    await _age(conn)

    assert await prune(conn, older_than=HOUR) == 0

    async def gone(_: Any) -> bool:
        return True

    await clean(conn, {"query": gone})
    assert await prune(conn, older_than=HOUR) == 1
    assert await rows(conn, "SELECT FROM holdfast.effects") == []


async def test_kept_effect_does_not_keep_its_job(conn: Any) -> None:
    claim = await hold(conn)
    await effects.plan(conn, claim, "table")
    await end(conn, claim, Done())
    await _age(conn)

    assert await prune(conn, older_than=HOUR) == 1


async def test_parent_with_waiting_dependants_is_kept(conn: Any) -> None:
    first, second = await hold(conn), await add(conn)
    child = await add(conn, after=(first.id, second))
    await end(conn, first)
    await _age(conn)

    assert await prune(conn, older_than=HOUR) == 0

    await end(conn, await take(conn, second))
    await end(conn, await take(conn, child))
    await _age(conn)
    assert await prune(conn, older_than=HOUR) == 3
    assert await rows(conn, "SELECT FROM holdfast.dependencies") == []


async def test_unused_lock_keys_are_deleted(conn: Any) -> None:
    await _ended(conn, locks=(Lock("old"),))
    await hold(conn, locks=(Lock("held"),))
    await add(conn, locks=(Lock("wanted", when_busy="reject"),))
    await _age(conn)
    await _ended(conn, locks=(Lock("young"),))

    await prune(conn, older_than=HOUR)

    assert await rows(conn, "SELECT key FROM holdfast.lock_keys ORDER BY key") == [("held",), ("wanted",), ("young",)]
    assert await value(conn, "SELECT count(*) FROM holdfast.lock_wants") == 3


async def test_live_job_keeps_its_newest_history_rows(conn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prune_module, "MOVES_KEPT", 3)
    often, seldom = await add(conn), await add(conn)
    await conn.execute("UPDATE holdfast.jobs SET attempt_no = 101 WHERE id = %s", [often])
    await conn.execute(
        """INSERT INTO holdfast.history (job_id, move, state, attempt_no, at)
           SELECT job_id, 'snooze', 'pending', number,
                  clock_timestamp() - CASE WHEN number > 8 THEN 0 ELSE 2 END * interval '1 h'
           FROM unnest(%s::bigint[]) AS job_id, generate_series(1, 10) AS number ORDER BY number""",
        [[often, seldom]],
    )

    await prune(conn, older_than=timedelta(minutes=30), batch=1)

    assert [entry.attempt_no for entry in await history(conn, often)] == [8, 9, 10]
    assert len(await history(conn, seldom)) == 10

    monkeypatch.setattr(prune_module, "MOVES_KEPT", 1)
    await prune(conn, older_than=timedelta(minutes=30))
    assert [entry.attempt_no for entry in await history(conn, often)] == [9, 10], "what is young stays"
    assert [entry.attempt_no for entry in await history(conn, often, most=1)] == [10]


async def test_any_number_of_lock_keys_is_deleted(conn: Any) -> None:
    await conn.execute("INSERT INTO holdfast.lock_keys SELECT 'key ' || number FROM generate_series(1, 25) AS number")

    await prune(conn, older_than=HOUR, batch=10)

    assert await rows(conn, "SELECT key FROM holdfast.lock_keys") == []


async def test_old_workers_are_deleted_unless_a_job_names_them(conn: Any) -> None:
    """A job held by an unknown worker could never be rescued."""
    gone, holding, alive = await start_worker(conn), await hold(conn), await start_worker(conn)
    await silence(conn, holding)
    await conn.execute("UPDATE holdfast.workers SET lease_until = lease_until - interval '1 day' WHERE id <> %s", [alive])

    await prune(conn, older_than=HOUR)

    left = {worker for (worker,) in await rows(conn, "SELECT id::text FROM holdfast.workers")}
    assert left == {holding.worker_id, alive}
    assert gone not in left


async def test_pipeline_is_deleted_with_its_last_job(conn: Any) -> None:
    pipeline = Pipeline("nightly")
    first = pipeline.add(NewJob("k"))
    pipeline.add(NewJob("k"), after=first)
    made = await pipeline.enqueue(conn)
    await end(conn, await take(conn, made[0].id))
    await _age(conn)
    await prune(conn, older_than=HOUR)
    assert await value(conn, "SELECT count(*) FROM holdfast.pipelines") == 1

    await end(conn, await take(conn, made[1].id))
    await _age(conn)
    await prune(conn, older_than=HOUR)

    assert await rows(conn, "SELECT FROM holdfast.pipelines") == []


async def test_prune_deletes_all_old_jobs_in_batches(conn: Any) -> None:
    for _ in range(7):
        await _ended(conn)
    await _age(conn)
    await _ended(conn)

    assert await prune(conn, older_than=HOUR, batch=2) == 7

    assert await value(conn, "SELECT count(*) FROM holdfast.jobs") == 1


async def test_prune_respects_its_limit(conn: Any) -> None:
    for _ in range(7):
        await _ended(conn)
    await _age(conn)

    assert await prune(conn, older_than=HOUR, batch=5, most=3) == 3

    assert await value(conn, "SELECT count(*) FROM holdfast.jobs") == 4


async def test_prune_skips_locked_jobs(connect: Any) -> None:
    conn, other = await connect(), await connect()
    held = await _ended(conn, Fail("no"))
    await _ended(conn)
    await _age(conn)
    await never_wait(conn)

    async with other.transaction():
        await other.execute("SELECT FROM holdfast.jobs WHERE id = %s FOR UPDATE", [held])
        assert await prune(conn, older_than=HOUR) == 1

    assert await rows(conn, "SELECT DISTINCT job_id FROM holdfast.history") == [(held,)]
