"""The tests that document 003 asks for, on the jobs of ingestion and a real Postgres."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from ingestion_factories import FLIGHTS, YEAR, Back, Client, entries_of, run_elsewhere

import holdfast
from factories import end, rows, state_of, value
from holdfast.jobs.claim import claim_by_id
from holdfast.jobs.model import JobId
from holdfast.services.ingestion import dispatch
from holdfast.services.ingestion.kinds import KINDS
from holdfast.services.ingestion.views import runs

BOTH_RECALCULATIONS = {"emission_recalc": "flights", "module_emission_recalc": None}


async def recalculation(conn: Any, det: str | None = "flights") -> JobId:
    """Of one type, or of its module."""
    asked: dict[str, Any] = {"model": "co2", "year": YEAR, "module": "travel", "det": det}
    return JobId((await dispatch.dispatch_recalculation(conn, **asked, by="t")).job_id)


@pytest.mark.parametrize("kind", BOTH_RECALCULATIONS)
async def test_a_claim_takes_a_waiting_job_once_and_no_other_job(back: Back, conn: Any, kind: str) -> None:
    """Z-06, N-04: success with the slot taken over from the previous job; duplicate; FINISHED; attempts used up."""
    await back.provision()
    await back.factors()
    await back.ingest(FLIGHTS)
    me = back.harness.worker_id
    previous = await recalculation(conn, BOTH_RECALCULATIONS[kind])
    await back.harness.drain()
    job_id = await recalculation(conn, BOTH_RECALCULATIONS[kind])
    slot = await value(conn, "SELECT slot_key FROM holdfast.jobs WHERE id = %s", job_id)
    before = await rows(conn, "SELECT id FROM holdfast.jobs WHERE slot_key = %s AND is_current", slot)

    assert await claim_by_id(conn, me, previous) is None, "it has completed"
    claimed = await claim_by_id(conn, me, job_id)
    assert claimed is not None
    assert (claimed.kind, before) == (f"ingestion.{kind}", [(previous,)])
    assert await rows(conn, "SELECT id FROM holdfast.jobs WHERE slot_key = %s AND is_current", slot) == [(job_id,)]
    assert (await runs.get(conn, job_id)).state == "RUNNING"

    shown = await rows(conn, "SELECT state, attempt_no, attempt_id FROM holdfast.jobs WHERE id = %s", job_id)
    assert await claim_by_id(conn, me, job_id) is None, "it is running"
    assert await rows(conn, "SELECT state, attempt_no, attempt_id FROM holdfast.jobs WHERE id = %s", job_id) == shown

    for _ in range(claimed.max_attempts):
        await end(conn, claimed, RuntimeError("boom"))
        await conn.execute("UPDATE holdfast.jobs SET run_after = NULL WHERE id = %s", [job_id])
        if (again := await claim_by_id(conn, me, job_id)) is not None:
            claimed = again
    assert await state_of(conn, job_id) == "failed", "every attempt was used"
    assert await claim_by_id(conn, me, job_id) is None


async def test_of_two_claims_that_race_for_a_slot_exactly_one_wins(back: Back, conn: Any, connect: Any) -> None:
    """Z-06, K-31: the follow-up of a slot, claimed by two pods at the same time, ten times."""
    await back.provision()
    others = [await connect(), await connect()]
    me = back.harness.worker_id
    for number in range(10):
        first = await back.dispatch(FLIGHTS, mode="replace")
        winner = await claim_by_id(conn, me, JobId(first.job_id))
        assert winner is not None
        second = await back.dispatch(FLIGHTS, mode="replace")
        await end(conn, winner)
        claims = await asyncio.gather(*(claim_by_id(one, me, JobId(second.job_id)) for one in others))
        assert sum(one is not None for one in claims) == 1, number
        await end(conn, next(one for one in claims if one is not None))


@pytest.mark.parametrize("kind", ["csv_ingest", *BOTH_RECALCULATIONS])
async def test_a_lost_claim_calls_no_handler_and_is_logged_as_information(
    back: Back, conn: Any, database: str, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """N-03, N-04, N-05, Z-06: the guards of ingest and of recalculation. Another pod has the job: INFO, and nothing is done."""
    await back.provision()
    if kind == "csv_ingest":
        job_id = JobId((await back.dispatch(FLIGHTS)).job_id)
    else:
        job_id = await recalculation(conn, BOTH_RECALCULATIONS[kind])
    claimed = await claim_by_id(conn, back.harness.worker_id, job_id)
    assert claimed is not None
    assert claimed.kind == f"ingestion.{kind}"
    before = await rows(conn, "SELECT * FROM holdfast.jobs WHERE id = %s", job_id)

    with caplog.at_level(logging.INFO, logger="holdfast"):
        assert not await run_elsewhere(conn, database, job_id)

    (lost,) = [record for record in caplog.records if "job_skipped" in record.getMessage()]
    assert (lost.levelno, str(job_id) in lost.getMessage()) == (logging.INFO, True)
    assert await rows(conn, "SELECT * FROM holdfast.jobs WHERE id = %s", job_id) == before
    assert await entries_of(conn) == []


async def test_recover_by_the_path_of_the_documents(ops: Client, back: Back, conn: Any) -> None:
    """Z-06, K-60, K-61: 409 while its worker is alive; afterwards it waits again, and its attempts stay on record."""
    await back.provision()
    made = await back.dispatch(FLIGHTS)
    await claim_by_id(conn, back.harness.worker_id, JobId(made.job_id))
    body = {"reason": "its pod is gone"}

    fresh = await ops.post(f"/sync/jobs/{made.job_id}/recover", json=body)
    await conn.execute("UPDATE holdfast.workers SET lease_until = clock_timestamp() - interval '1 s'")
    stale = await ops.post(f"/sync/jobs/{made.job_id}/recover", json=body)

    assert (fresh.status_code, stale.status_code) == (409, 200), stale.text
    run = await runs.get(conn, made.job_id)
    assert (run.state, run.attempts) == ("NOT_STARTED", 1)


@pytest.mark.more
async def test_the_poller_of_another_pod_takes_a_job_that_was_never_scheduled(back: Back, conn: Any, database: str) -> None:
    """Z-06, K-48: the worker starts after the job was inserted, so it hears of it only by looking."""
    await back.provision()
    made = await back.dispatch(FLIGHTS)
    worker = holdfast.Worker(database, KINDS)
    running = asyncio.create_task(worker.run())

    async with asyncio.timeout(60):
        while (await runs.get(conn, made.job_id)).state != "FINISHED":
            await asyncio.sleep(0.01)
    worker.stop()
    await running
    assert (await runs.get(conn, made.job_id)).result == "SUCCESS"
