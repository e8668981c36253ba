"""Jobs held by a worker without a row in `workers`: found, given a lease to register again, and rescued."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from factories import (
    HOUR,
    LEASE,
    add,
    everything,
    hold,
    job,
    moves_of,
    rows,
    silence,
    start_worker,
    state_of,
    take,
    value,
    waits,
)
from holdfast.errors import NotStale
from holdfast.jobs.model import WorkerId
from holdfast.jobs.prune import PRUNE_WORKERS
from holdfast.jobs.recover import recover
from holdfast.jobs.renew import WorkerInfo, register, renew
from holdfast.jobs.rescue import rescue
from holdfast.jobs.unregistered import UNREGISTERED
from holdfast.jobs.views.explain import explain

LOSE_ROWS = "DELETE FROM holdfast.workers"


async def _lease_left(conn: Any, worker_id: str) -> timedelta:
    found = await value(conn, "SELECT lease_until - clock_timestamp() FROM holdfast.workers WHERE id = %s", worker_id)
    assert isinstance(found, timedelta)
    return found


async def test_job_without_a_worker_row_is_rescued_after_one_lease(conn: Any) -> None:
    """An asynchronous failover lost the registration; then the worker claimed, and died before its next beat."""
    claim = await hold(conn)
    await conn.execute(LOSE_ROWS)
    sweeper = await start_worker(conn, lease=LEASE)

    assert (await renew(conn, sweeper, lease=LEASE)).can_rescue, "any beat sees it"
    assert await rescue(conn) == [], "a living worker gets the time to register again"
    left = await _lease_left(conn, claim.worker_id)
    assert LEASE / 3 < left <= LEASE, "counted from its newest claim"
    assert not (await renew(conn, sweeper, lease=LEASE)).can_rescue
    assert (await renew(conn, sweeper, lease=LEASE)).next_expiry is not None, "and the end of that time is planned for"

    await silence(conn, claim)
    assert (await renew(conn, sweeper, lease=LEASE)).can_rescue
    assert await rescue(conn) == [claim.id]

    found = await job(conn, claim.id)
    assert (found.state, found.crashes, found.cause) == ("pending", 1, "lease_lost")
    assert await moves_of(conn, claim.id) == ["rescue"]


async def test_old_claim_without_a_worker_row_gets_a_third_of_a_lease(conn: Any) -> None:
    """Rows that were deleted by hand: the worker may live, and beats several times in a lease."""
    claim = await hold(conn)
    await conn.execute("UPDATE holdfast.jobs SET claimed_at = claimed_at - interval '10 days'")
    await conn.execute(LOSE_ROWS)

    assert await rescue(conn) == []

    left = await _lease_left(conn, claim.worker_id)
    assert timedelta(seconds=0) < left <= timedelta(seconds=10), "a third of the default lease: nobody lives who says another"


async def test_live_worker_registers_again_and_keeps_its_jobs(conn: Any) -> None:
    me = WorkerInfo(WorkerId(str(uuid4())), "worker-7", "host-7", 77, "1", kinds={"k": 1}, concurrency=3)
    await register(conn, me, lease=LEASE)
    claim = await hold(conn, worker=me.id)
    await conn.execute(LOSE_ROWS)
    await rescue(conn)  # somebody else was first and made a row that stands for it

    assert not (await renew(conn, me.id, [claim], lease=LEASE)).known, "that row is not taken for its own"
    await register(conn, me, lease=LEASE)

    beat = await renew(conn, me.id, [claim], lease=LEASE)
    assert (beat.known, beat.lost) == (True, [])
    assert await rows(conn, "SELECT name, host, pid, kinds, concurrency, stopped_at FROM holdfast.workers") == [
        ("worker-7", "host-7", 77, {"k": 1}, 3, None)
    ]
    assert await rescue(conn) == []
    assert await state_of(conn, claim.id) == "running"


async def test_a_worker_that_registers_while_its_row_is_made_is_not_overwritten(connect: Any) -> None:
    conn, other = await connect(), await connect()
    me = WorkerInfo(WorkerId(str(uuid4())), "worker-7", "host", 7, "1")
    await register(conn, me, lease=LEASE)
    await hold(conn, worker=me.id)
    await conn.execute(LOSE_ROWS)

    async with conn.transaction():
        await register(conn, me, lease=LEASE)
        sweep = asyncio.create_task(rescue(other))
        await waits(conn, other)
    assert await sweep == []

    assert await rows(conn, "SELECT name, stopped_at FROM holdfast.workers") == [("worker-7", None)]


async def test_explain_reports_the_missing_registration(conn: Any) -> None:
    claim = await hold(conn)
    await conn.execute(LOSE_ROWS)
    gone = "Attempt 1 is held by a worker that is not registered any more; if it does not register again, "
    gone += "the job is rescued "

    assert await explain(conn, claim.id) == gone + "within a lease."
    await rescue(conn)
    assert (await explain(conn, claim.id)).startswith(gone + "in ")
    await silence(conn, claim)
    assert "whose lease has expired; the next sweep rescues it" in await explain(conn, claim.id)


async def test_placeholder_row_is_not_a_live_worker(conn: Any) -> None:
    await hold(conn)
    waiting = await add(conn)
    await conn.execute(LOSE_ROWS)
    await rescue(conn)

    assert "no worker is alive" in await explain(conn, waiting)


async def test_an_operator_recovers_a_job_whose_worker_has_no_row(conn: Any) -> None:
    claim = await hold(conn)
    await conn.execute(LOSE_ROWS)

    await recover(conn, claim.id, actor="ada")

    assert await state_of(conn, claim.id) == "pending"
    assert await moves_of(conn, claim.id) == ["recover"]


async def test_recover_refuses_unheld_jobs_and_jobs_of_live_workers(conn: Any) -> None:
    held, waiting = await hold(conn), await add(conn)
    before = await everything(conn)

    with pytest.raises(NotStale, match="no worker holds it"):
        await recover(conn, waiting, actor="ada")
    with pytest.raises(NotStale, match="whose lease runs"):
        await recover(conn, held.id, actor="ada")

    assert await everything(conn) == before


async def test_every_unregistered_worker_is_found(conn: Any) -> None:
    workers = [await start_worker(conn) for _ in range(6)]
    claims = [await hold(conn, worker=worker) for worker in workers for _ in range(3)]
    lost = [*workers[::2]]
    await conn.execute("DELETE FROM holdfast.workers WHERE id = ANY (%s::uuid[])", [lost])

    await rescue(conn)

    made = await rows(conn, "SELECT id::text FROM holdfast.workers WHERE stopped_at IS NOT NULL")
    assert sorted(found for (found,) in made) == sorted(lost)
    await silence(conn, *claims[::6])
    assert len(await rescue(conn)) == 9


async def test_worker_that_claims_after_its_row_was_pruned_is_rescued(conn: Any) -> None:
    worker = await start_worker(conn)
    await conn.execute("UPDATE holdfast.workers SET lease_until = lease_until - interval '400 days'")
    await conn.execute(PRUNE_WORKERS, {"older_than": HOUR})
    claim = await take(conn, await add(conn), worker)

    assert await rescue(conn) == []
    await silence(conn, claim)

    assert await rescue(conn) == [claim.id]


async def test_search_reads_one_index_entry_per_worker(fresh_database: str) -> None:
    """Neither the table nor every held job, also with statistics that have seen no held job."""
    async with await psycopg.AsyncConnection.connect(fresh_database, autocommit=True) as conn:
        workers = [await start_worker(conn) for _ in range(3)]
        await conn.execute("ANALYZE holdfast.jobs")
        await conn.execute(
            "INSERT INTO holdfast.jobs (kind, queue, payload, state, attempt_id, attempt_no, fence_token, worker_id, "
            "claimed_at) "
            "SELECT 'k', 'default', '{}', 'running', gen_random_uuid(), 1, n, (%s::uuid[])[n %% 3 + 1], clock_timestamp() "
            "FROM generate_series(1, 3000) n",
            [workers],
        )
        (plan,) = await value(conn, f"EXPLAIN (ANALYZE, FORMAT JSON) {UNREGISTERED}")

    found: list[dict[str, Any]] = []

    def walk(node: dict[str, Any]) -> None:
        found.append(node)
        for child in node.get("Plans", ()):
            walk(child)

    walk(plan["Plan"])
    on_jobs = [node for node in found if node.get("Relation Name") == "jobs"]
    assert on_jobs, json.dumps(plan)
    assert {node["Node Type"] for node in on_jobs} <= {"Index Scan", "Index Only Scan"}, on_jobs
    assert {node["Index Name"] for node in on_jobs} == {"jobs_held"}
    assert sum(node["Actual Rows"] * node["Actual Loops"] for node in on_jobs) <= 10
