"""Claims: order, refusals that change nothing, and the columns that a claim writes."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from factories import (
    HOUR,
    add,
    clock,
    column,
    end,
    everything,
    hold,
    job,
    lose,
    make_due,
    never_wait,
    replace,
    rows,
    start_worker,
    submit,
    take,
)
from factories import value as one
from holdfast.jobs.cancel import cancel
from holdfast.jobs.claim import claim, claim_by_id, claim_plain
from holdfast.jobs.control import pause, resume
from holdfast.jobs.enqueue import enqueue_many
from holdfast.jobs.model import JobId, Lock, NewJob
from holdfast.jobs.outcome import Fail, Retry, Snooze
from holdfast.jobs.promote import promote_due

# ---------------------------------------------------------------------------------------------------------------------
# By id
# ---------------------------------------------------------------------------------------------------------------------


async def test_a_claim_makes_the_job_running_for_its_worker(conn: Any) -> None:
    """K-01, K-06, K-12, K-13."""
    worker = await start_worker(conn)
    job_id = await add(conn)
    before = await clock(conn)

    claimed = await claim_by_id(conn, worker, job_id)

    found = await job(conn, job_id)
    assert claimed is not None
    assert (found.state, found.worker_id, found.attempt_id) == ("running", worker, claimed.attempt_id)
    assert before <= found.claimed_at <= await clock(conn)  # type: ignore[operator]
    assert UUID(claimed.attempt_id).version == 4


async def test_claim_has_everything_that_the_attempt_needs(conn: Any) -> None:
    """K-11: no second look."""
    parent, pipeline = await add(conn), str(uuid4())
    worker = await start_worker(conn)
    job_id = await add(
        conn,
        "export",
        payload={"sql": "SELECT 1", "columns": ["a"]},
        queue="q",
        priority=4,
        kind_version=3,
        max_attempts=7,
        max_runtime=HOUR,
        pipeline_id=pipeline,
        parent_id=parent,
        step="s",
    )

    found = await take(conn, job_id, worker)

    assert found.waited is not None
    assert found._replace(attempt_id="", fence_token=0, waited=None) == (
        *(job_id, "export", {"sql": "SELECT 1", "columns": ["a"]}, "", 1, 0, "q", 4, 0, 3, 0, 7, 0),
        *(pipeline, parent, "s", None, 0, HOUR, worker, 3, False, 0, None, None, False),
    )
    assert found.fence_token == (await job(conn, job_id)).fence_token


async def _unknown(conn: Any) -> int:
    return 999_999_999


async def _held(conn: Any) -> int:
    return (await hold(conn)).id


async def _ended(conn: Any, ended_with: object) -> int:
    claimed = await hold(conn)
    await end(conn, claimed, ended_with)
    return claimed.id


async def _exhausted(conn: Any) -> int:
    claimed = await hold(conn, max_attempts=1)
    await end(conn, claimed, ValueError("the last one"))
    return claimed.id


async def _quarantined(conn: Any) -> int:
    claimed = await hold(conn, max_crashes=1)
    await lose(conn, claimed)
    return claimed.id


async def _cancelled(conn: Any) -> int:
    job_id = await add(conn)
    await cancel(conn, job_id, actor="ada")
    return job_id


async def _submitted(conn: Any) -> int:
    claimed = await hold(conn)
    await submit(conn, claimed)
    return claimed.id


async def _not_due(conn: Any) -> int:
    return await add(conn, run_after=HOUR)


async def _not_due_and_locked(conn: Any) -> int:
    return await add(conn, run_after=HOUR, locks=(Lock("t"),))


async def _waits_for_a_parent(conn: Any) -> int:
    return await add(conn, after=(await add(conn),))


async def _waits_for_a_lock(conn: Any) -> int:
    await hold(conn, locks=(Lock("t"),))
    waiting = await add(conn, locks=(Lock("t"),))
    assert await claim_by_id(conn, await start_worker(conn), waiting) is None
    return waiting


async def _waits_for_a_slot(conn: Any) -> int:
    await hold(conn, slot_key="s")
    waiting = await add(conn, slot_key="s")
    assert await claim_by_id(conn, await start_worker(conn), waiting) is None
    return waiting


async def _paused(conn: Any, kind: str) -> int:
    await pause(conn, kind, actor="ada")
    return await add(conn)


REFUSED = {
    "there is no such job": _unknown,
    "somebody holds it": _held,
    "it has completed": lambda conn: _ended(conn, None),
    "it has failed": lambda conn: _ended(conn, Fail("no")),
    "its attempts are used up": _exhausted,
    "it is quarantined": _quarantined,
    "it was cancelled": _cancelled,
    "an engine has it": _submitted,
    "it is not due": _not_due,
    "it is not due and needs a lock": _not_due_and_locked,
    "it waits for a parent": _waits_for_a_parent,
    "it waits for a lock": _waits_for_a_lock,
    "it waits for a slot": _waits_for_a_slot,
    "its kind is paused": lambda conn: _paused(conn, "k"),
    "everything is paused": lambda conn: _paused(conn, "*"),
}


@pytest.mark.parametrize("arrange", REFUSED.values(), ids=REFUSED.keys())
async def test_a_refused_claim_changes_nothing(conn: Any, arrange: Any) -> None:
    """K-04, K-08, Z-06, E-30."""
    job_id = await arrange(conn)
    worker = await start_worker(conn)
    before = await everything(conn)

    assert await claim_by_id(conn, worker, JobId(job_id)) is None

    assert await everything(conn) == before


@pytest.mark.parametrize("arrange", REFUSED.values(), ids=REFUSED.keys())
async def test_a_batch_leaves_out_what_a_claim_by_id_is_refused(conn: Any, arrange: Any) -> None:
    """K-04, K-53."""
    job_id = await arrange(conn)
    before = await rows(conn, "SELECT t::text FROM holdfast.jobs t WHERE id = %s", job_id)

    claims = await claim(conn, await start_worker(conn), kinds=["k"])

    assert job_id not in [claimed.id for claimed in claims]
    assert await rows(conn, "SELECT t::text FROM holdfast.jobs t WHERE id = %s", job_id) == before


async def test_claim_skips_a_job_that_another_claim_takes(connect: Any) -> None:
    """K-01, K-09: the loser neither waits nor raises."""
    conn, other = await connect(), await connect()
    job_id = await add(conn)
    worker = await start_worker(conn)
    await never_wait(conn)

    async with other.transaction():
        await take(other, job_id)
        assert await claim_by_id(conn, worker, job_id) is None


async def test_due_job_is_claimed_by_id_before_promotion(conn: Any) -> None:
    job_id = await add(conn, run_after=HOUR)
    await conn.execute("UPDATE holdfast.jobs SET run_after = clock_timestamp() - interval '1 s' WHERE id = %s", [job_id])

    await take(conn, job_id)

    assert (await job(conn, job_id)).run_after is None


# ---------------------------------------------------------------------------------------------------------------------
# What every claim writes
# ---------------------------------------------------------------------------------------------------------------------


async def test_every_claim_counts_and_is_a_new_attempt(conn: Any) -> None:
    """K-05, K-07, K-17."""
    job_id = await add(conn, max_attempts=9, max_crashes=9)
    seen = []
    for ending in (Retry("again"), Snooze(timedelta(seconds=1)), "lost", ValueError("odd"), None):
        claimed = await take(conn, job_id)
        seen.append((claimed, (await job(conn, job_id)).claimed_at))
        if ending == "lost":
            await lose(conn, claimed)
        else:
            await end(conn, claimed, ending)
        await make_due(conn, job_id)

    assert [claimed.attempt_no for claimed, _ in seen] == [1, 2, 3, 4, 5]
    assert len({claimed.attempt_id for claimed, _ in seen}) == 5
    assert [claimed.fence_token for claimed, _ in seen] == sorted({claimed.fence_token for claimed, _ in seen})
    assert [at for _, at in seen] == sorted({at for _, at in seen}), "claimed_at is the time of the most recent claim"


async def test_fence_token_increases_across_jobs_and_connections(connect: Any) -> None:
    connections = [await connect() for _ in range(3)]
    tokens = [(await hold(connections[number % 3])).fence_token for number in range(12)]

    assert tokens == sorted(set(tokens))


async def test_claim_time_is_the_clock_and_not_the_start_of_the_transaction(conn: Any) -> None:
    job_id = await add(conn, max_runtime=HOUR)
    async with conn.transaction():
        started = await one(conn, "SELECT now()")
        await take(conn, job_id)

    assert (await job(conn, job_id)).claimed_at > started  # type: ignore[operator]
    assert await column(conn, job_id, "deadline_at") > started + HOUR


async def test_deadline_counts_from_the_claim(conn: Any) -> None:
    claimed = await hold(conn, max_runtime=HOUR)

    late = await one(conn, "SELECT deadline_at - claimed_at FROM holdfast.jobs WHERE id = %s", claimed.id)
    assert HOUR <= late < HOUR + timedelta(minutes=1)
    assert await column(conn, (await hold(conn)).id, "deadline_at") is None


async def test_replaced_attempt_and_its_successor_share_no_ids(conn: Any) -> None:
    """E-34: also when the same pod takes it again."""
    worker = await start_worker(conn)
    first = await hold(conn, worker=worker)
    await lose(conn, first)

    second = await take(conn, first.id, worker)

    assert second.worker_id == first.worker_id
    assert second.attempt_id != first.attempt_id
    assert second.fence_token > first.fence_token


# ---------------------------------------------------------------------------------------------------------------------
# In batches
# ---------------------------------------------------------------------------------------------------------------------


async def test_claims_are_ordered_by_priority_and_then_by_age(conn: Any) -> None:
    """K-02."""
    later, first, second = await add(conn, priority=5), await add(conn, priority=-5), await add(conn, priority=-5)
    normal = await add(conn)
    worker = await start_worker(conn)

    order = [(await claim(conn, worker, kinds=["k"], limit=1))[0].id for _ in range(4)]

    assert order == [first, second, normal, later]


@pytest.mark.parametrize("join", ["nestloop", "hashjoin", "mergejoin"])
async def test_batch_order_does_not_depend_on_the_query_plan(conn: Any, join: str) -> None:
    """A table of a few rows is read whole, and claimed as it lies."""
    made = [await add(conn, priority=priority) for priority in (3, 1, 2, 1)]
    await conn.execute("ANALYZE holdfast.jobs")
    for other in {"nestloop", "hashjoin", "mergejoin"} - {join}:
        await conn.execute(f"SET enable_{other} = off")

    claims = await claim(conn, await start_worker(conn), kinds=["k"], limit=4)

    assert [one.id for one in claims] == [made[1], made[3], made[2], made[0]]


async def test_priority_applies_across_kinds_and_queues(conn: Any) -> None:
    jobs = [
        await add(conn, kind, queue=queue, priority=p)
        for p, kind, queue in ((3, "a", "x"), (1, "b", "x"), (2, "a", "y"), (0, "b", "y"))
    ]
    worker = await start_worker(conn)

    order = [(await claim(conn, worker, kinds=["a", "b"], queues=["x", "y"], limit=1))[0].id for _ in range(4)]

    assert order == [jobs[3], jobs[1], jobs[2], jobs[0]]


@pytest.mark.parametrize("fields", [{}, {"locks": (Lock("t", most=None),)}], ids=["plain", "with a lock"])
async def test_batch_claim_sets_the_same_columns_as_a_single_claim(conn: Any, fields: dict[str, Any]) -> None:
    """K-05, K-06, K-12: every job gets an attempt of its own, every time."""
    jobs = [await add(conn, max_runtime=HOUR, **fields) for _ in range(3)]
    worker = await start_worker(conn)
    seen = []
    for number in (1, 2):
        before = await clock(conn)
        claims = await claim(conn, worker, kinds=["k"])
        assert sorted(claimed.id for claimed in claims) == jobs
        for claimed in claims:
            found = await job(conn, claimed.id)
            assert (found.state, found.worker_id, found.attempt_id) == ("running", worker, claimed.attempt_id)
            assert (found.attempt_no, found.fence_token) == (number, claimed.fence_token)
            assert found.claimed_at >= before  # type: ignore[operator]
            assert await column(conn, claimed.id, "deadline_at") >= before + HOUR
            seen.append(claimed)
            await end(conn, claimed, Retry("again", timedelta(0)))

    assert len({claimed.attempt_id for claimed in seen}) == len({claimed.fence_token for claimed in seen}) == 6


@pytest.mark.parametrize("limit", [1, 3, 10])
async def test_a_batch_is_never_larger_than_its_limit(conn: Any, limit: int) -> None:
    """K-02, K-03."""
    await enqueue_many(conn, [NewJob(kind, queue=queue) for kind in "ab" for queue in "xy" for _ in range(20)])

    claims = await claim(conn, await start_worker(conn), kinds=["a", "b"], queues=["x", "y"], limit=limit)

    assert len(claims) == limit
    assert await one(conn, "SELECT count(*) FROM holdfast.jobs WHERE state = 'running'") == limit


async def test_default_batch_size_is_ten(conn: Any) -> None:
    """K-02, K-53."""
    await enqueue_many(conn, [NewJob("k")] * 12)

    assert len(await claim(conn, await start_worker(conn), kinds=["k"])) == 10


async def test_batch_limit_holds_with_stale_statistics(fresh_database: str) -> None:
    """P1, F-43: at one row a nested loop runs the sub-select again for each, and would claim a dozen for a limit of one."""
    async with await psycopg.AsyncConnection.connect(fresh_database, autocommit=True) as conn:
        await conn.execute("ALTER TABLE holdfast.jobs SET (autovacuum_enabled = false)")
        await add(conn)
        await conn.execute("ANALYZE holdfast.jobs")
        await enqueue_many(conn, [NewJob("k")] * 10_000)
        worker = await start_worker(conn)

        for planner in (
            "",
            "SET enable_hashjoin = off; SET enable_mergejoin = off",
            "SET plan_cache_mode = force_generic_plan",
        ):
            await conn.execute(planner)
            for limit in (1, 5):
                already = await one(conn, "SELECT count(*) FROM holdfast.jobs WHERE state = 'running'")
                claims = await claim(conn, worker, kinds=["k"], limit=limit)
                running = await one(conn, "SELECT count(*) FROM holdfast.jobs WHERE state = 'running'")
                assert (len(claims), running - already) == (limit, limit)


async def test_claim_skips_locked_rows(connect: Any) -> None:
    """K-02, K-03, K-53: SKIP LOCKED, so nobody waits for anybody."""
    conn, other = await connect(), await connect()
    held, free = await add(conn), await add(conn)
    worker = await start_worker(conn)
    await never_wait(conn)

    async with other.transaction():
        await other.execute("SELECT FROM holdfast.jobs WHERE id = %s FOR UPDATE", [held])
        first = await claim(conn, worker, kinds=["k"])
    second = await claim(conn, worker, kinds=["k"])

    assert [c.id for c in first] == [free]
    assert [c.id for c in second] == [held]


async def test_only_the_kinds_and_queues_of_the_worker_are_claimed(conn: Any) -> None:
    mine = await add(conn, "mine", queue="here")
    await add(conn, "theirs", queue="here")
    await add(conn, "mine", queue="there")

    claims = await claim(conn, await start_worker(conn), kinds=["mine"], queues=["here"])

    assert [c.id for c in claims] == [mine]


async def test_job_of_a_newer_version_waits_for_a_worker_that_has_it(conn: Any) -> None:
    worker = await start_worker(conn)
    old, new = await add(conn, "a", kind_version=1), await add(conn, "a", kind_version=2)

    by_old_code = await claim(conn, worker, kinds={"a": 1})
    by_id = await claim_by_id(conn, worker, new, kinds={"a": 1})
    by_new_code = await claim(conn, worker, kinds={"a": 2})

    assert [one.id for one in by_old_code] == [old]
    assert by_id is None
    assert [one.id for one in by_new_code] == [new]


async def test_claim_without_kinds_returns_no_jobs(conn: Any) -> None:
    await add(conn)

    assert await claim(conn, await start_worker(conn), kinds=[]) == []


async def test_delayed_job_is_claimed_when_due(conn: Any) -> None:
    """K-34, K-53."""
    job_id = await add(conn, run_after=HOUR)
    worker = await start_worker(conn)

    assert await claim(conn, worker, kinds=["k"]) == []
    assert await promote_due(conn) == []

    await conn.execute("UPDATE holdfast.jobs SET run_after = clock_timestamp() WHERE id = %s", [job_id])
    assert await promote_due(conn) == [job_id]
    assert [c.id for c in await claim(conn, worker, kinds=["k"])] == [job_id]


async def test_a_paused_kind_is_not_claimed_and_the_others_are(conn: Any) -> None:
    await add(conn, "a")
    other = await add(conn, "b")
    await pause(conn, "a", actor="ada")
    worker = await start_worker(conn)

    first = await claim(conn, worker, kinds=["a", "b"])
    await resume(conn, "a")
    second = await claim(conn, worker, kinds=["a", "b"])

    assert [c.id for c in first] == [other]
    assert [c.kind for c in second] == ["a"]


async def test_pause_of_all_kinds_stops_all_claims(conn: Any) -> None:
    await add(conn)
    await pause(conn, actor="ada")

    assert await claim(conn, await start_worker(conn), kinds=["k"]) == []


async def test_batch_mixes_plain_jobs_with_jobs_that_need_locks_and_slots(conn: Any) -> None:
    plain, locked, slotted = await add(conn), await add(conn, locks=(Lock("t"),)), await add(conn, slot_key="s")
    busy = await add(conn, locks=(Lock("t"),))

    claims = await claim(conn, await start_worker(conn), kinds=["k"], limit=4)

    assert sorted(c.id for c in claims) == [plain, locked, slotted]
    assert (await job(conn, busy)).waiting_for == "lock"


async def test_batch_is_smaller_when_locks_are_busy(conn: Any) -> None:
    await hold(conn, locks=(Lock("t"),))
    waiting = [await add(conn, locks=(Lock("t"),)) for _ in range(3)]
    worker = await start_worker(conn)

    assert await claim(conn, worker, kinds=["k"], limit=3) == []

    assert await rows(conn, "SELECT id FROM holdfast.jobs WHERE state = 'blocked' ORDER BY id") == [(i,) for i in waiting]


async def test_claim_after_a_lost_attempt_is_an_ordinary_claim(conn: Any) -> None:
    """K-24."""
    first = await hold(conn)
    second = await replace(conn, first)

    assert (second.attempt_no, second.crashes, second.errors) == (2, 1, 0)


async def test_claim_reports_that_all_pending_jobs_are_locked(conn: Any, connect: Any) -> None:
    """A claim of one job locks the first of each kind, and leaves the others without a hint."""
    first, second = await add(conn, "a"), await add(conn, "b")
    worker, other = await start_worker(conn), await connect()

    async with other.transaction():
        assert [one.id for one in (await claim_plain(other, worker, kinds=["a", "b"], limit=1)).claims] == [first]
        assert await claim_plain(conn, worker, kinds=["a", "b"], limit=1) == ([], [], True)
        assert await claim_plain(conn, worker, kinds=["c"], limit=1) == ([], [], False)

    found = await claim_plain(conn, worker, kinds=["a", "b"], limit=1)
    assert ([one.id for one in found.claims], found.contended) == ([second], False)
    assert await claim_plain(conn, worker, kinds=["a", "b"], limit=1) == ([], [], False), "nothing is left, nothing is locked"


async def test_paused_job_is_not_reported_as_locked(conn: Any) -> None:
    await add(conn, "a")
    await pause(conn, "a", actor="me", reason="why")

    assert await claim_plain(conn, await start_worker(conn), kinds=["a"]) == ([], [], False)
