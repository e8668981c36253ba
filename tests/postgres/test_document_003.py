"""The ten tests that document 003 demands, in its order and on a real Postgres. No mocks.

Its words and ours: `claim_job` is `claim_by_id` (True: a claim, False: None), the combination of module, type, target,
method and year is the slot's key, NOT_STARTED is pending, FINISHED is completed, `locked_by` is the attempt and its
worker, and the answer 409 is `NotStale`.
"""

from __future__ import annotations

import asyncio
from typing import Any

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
    make_due,
    rows,
    silence,
    start_worker,
    state_of,
    take,
)
from holdfast import job as kind
from holdfast.errors import NotStale
from holdfast.jobs.claim import claim, claim_by_id
from holdfast.jobs.enqueue import enqueue
from holdfast.jobs.model import NewJob
from holdfast.jobs.outcome import Fail, Retry
from holdfast.jobs.recover import recover
from holdfast.testing import harness

COMBINATION = "module=3|det=-|target=2|method=1|year=2024"


async def test_01_claim_job_success_path(conn: Any) -> None:
    """RUNNING + is_current = TRUE; previous current row unset; returns True. K-01, K-28, K-29."""
    previous = await hold(conn, slot_key=COMBINATION)
    await end(conn, previous)
    job_id = await add(conn, slot_key=COMBINATION)

    claimed = await claim_by_id(conn, await start_worker(conn), job_id)

    found = await job(conn, job_id)
    assert claimed is not None
    assert (found.state, found.is_current, found.attempt_no) == ("running", True, 1)
    assert not (await job(conn, previous.id)).is_current


async def test_02_claim_job_duplicate(conn: Any) -> None:
    """The second call returns False, no state change. K-08."""
    first = await hold(conn, slot_key=COMBINATION)
    worker = await start_worker(conn)
    before = await everything(conn)

    assert await claim_by_id(conn, worker, first.id) is None

    assert await everything(conn) == before


async def test_03_claim_job_exceeds_max_attempts(conn: Any) -> None:
    """Returns False. K-04."""
    job_id = await add(conn, slot_key=COMBINATION, max_attempts=2)
    for _ in range(2):
        await end(conn, await take(conn, job_id), ConnectionError("reset"))
        await make_due(conn, job_id)
    worker = await start_worker(conn)
    before = await everything(conn)

    assert await claim_by_id(conn, worker, job_id) is None

    assert await everything(conn) == before
    assert (await job(conn, job_id)).errors == 2


@pytest.mark.parametrize("ended_with", [None, Fail("no")])
async def test_04_claim_job_already_finished(conn: Any, ended_with: object) -> None:
    """Returns False, and demotes nobody. K-04, E-30."""
    finished = await hold(conn, slot_key=COMBINATION)
    await end(conn, finished, ended_with)
    worker = await start_worker(conn)
    before = await everything(conn)

    assert await claim_by_id(conn, worker, finished.id) is None

    assert await everything(conn) == before


async def test_05_concurrent_claim_race_of_two_triggers(connect: Any) -> None:
    """Two pods handle the same trigger: exactly one claim is True. K-09."""
    one, two = await connect(), await connect()
    workers = [await start_worker(one), await start_worker(one)]
    for turn in range(20):
        trigger = NewJob("k", slot_key=f"{COMBINATION}|{turn}")
        made = await asyncio.gather(enqueue(one, trigger), enqueue(two, trigger))

        claims = await asyncio.gather(claim_by_id(one, workers[0], made[0].id), claim_by_id(two, workers[1], made[1].id))

        assert sum(claimed is not None for claimed in claims) == 1
        current = "SELECT count(*) FROM holdfast.jobs WHERE slot_key = %s AND state = 'running' AND is_current"
        assert await rows(one, current, trigger.slot_key) == [(1,)]


async def test_05_concurrent_claim_race_of_two_rows_of_one_combination(connect: Any) -> None:
    """j1 waits for its next attempt, j2 was triggered meanwhile: gather(claim(j1), claim(j2)), never both are True.

    A claim never waits, so j1 may be passed by while the claim of j2 looks at it: then the next look gets it.
    """
    one, two = await connect(), await connect()
    workers = [await start_worker(one), await start_worker(one)]
    for turn in range(20):
        slot = f"{COMBINATION}|{turn}"
        j1 = await hold(one, slot_key=slot)
        await end(one, j1, Retry("busy"))
        await make_due(one, j1.id)
        j2 = await add(one, slot_key=slot)

        claims = await asyncio.gather(claim_by_id(one, workers[0], j1.id), claim_by_id(two, workers[1], j2))

        assert claims[1] is None, "the follow-up waits for the holder"
        assert claims[0] or await claim_by_id(one, workers[0], j1.id)
        current = "SELECT id FROM holdfast.jobs WHERE slot_key = %s AND state = 'running' AND is_current"
        assert await rows(one, current, slot) == [(j1.id,)]
        assert await state_of(one, j2) in ("blocked", "pending")


@pytest.mark.parametrize(("number", "task"), [(6, "run_sync_task"), (7, "run_recalculation_task")])
async def test_06_and_07_claim_guard(database: str, conn: Any, number: int, task: str) -> None:
    """The claim fails: the task returns without invoking its provider. K-49."""
    invoked: list[int] = []

    async def provider(year: int) -> None:
        invoked.append(year)

    registered = kind(f"document_003.{task}.{number}")(provider)
    async with harness(database, [registered]) as runner:
        elsewhere = await take(conn, (await enqueue(conn, registered.new(year=2024))).id)
        ran = await runner.drain()
        guarded = (list(ran), list(invoked))
        await end(conn, elsewhere, Retry("given up", HOUR))
        await make_due(conn, elsewhere.id)
        await runner.drain()

    assert guarded == ([], []), "somebody else has it"
    assert invoked == [2024], "and with the claim it is invoked, once"


async def test_08_recover_stale(conn: Any) -> None:
    """Resets state and attempts, sets run_after = now. K-60; attempts are granted on record and never reset (E-35)."""
    stale = await hold(conn, slot_key=COMBINATION, max_attempts=3)
    await conn.execute("UPDATE holdfast.jobs SET errors = 2 WHERE id = %s", [stale.id])
    await silence(conn, stale)

    await recover(conn, stale.id, actor="operator", grant=3)

    found = await job(conn, stale.id)
    assert (found.state, found.attempt_id, found.worker_id, found.run_after) == ("pending", None, None, None)
    assert found.max_attempts - found.errors == 3
    assert (await take(conn, stale.id)).attempt_no == 2


async def test_09_recover_not_stale(conn: Any) -> None:
    """Returns 409. K-61."""
    healthy = await hold(conn, slot_key=COMBINATION)
    before = await everything(conn)

    with pytest.raises(NotStale, match="wait until its lease expires, or cancel the job"):
        await recover(conn, healthy.id, actor="operator")

    assert await everything(conn) == before


async def test_10_poller_picks_up_an_orphan_job(conn: Any) -> None:
    """A row that was made and that nobody was ever told of. K-48, K-53."""
    orphan = (await enqueue(conn, NewJob("k", slot_key=COMBINATION), hint=False)).id

    claims = await claim(conn, await start_worker(conn), kinds=["k"])

    assert [claimed.id for claimed in claims] == [orphan]
    assert await column(conn, orphan, "claimed_at") <= await clock(conn)
