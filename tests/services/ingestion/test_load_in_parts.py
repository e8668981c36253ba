"""A long load or recalculation reports its progress, can be aborted, and makes no other request wait. The worker is a real one;
the load stands still because the test holds a row that it needs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from ingestion_factories import YEAR, Back, entries_of, kg_of

import holdfast
from factories import never_wait, rows, state_of, value
from holdfast.jobs.cancel import abort
from holdfast.services.ingestion import dispatch
from holdfast.services.ingestion.dispatch import FileOptions
from holdfast.services.ingestion.jobs import flow, progress
from holdfast.services.ingestion.kinds import KINDS
from holdfast.services.ingestion.loading import emissions
from holdfast.services.ingestion.staging import tables
from holdfast.services.ingestion.views import runs
from holdfast.worker.kinds import Job

COUNT = 600
CONTENT = "trip_id,unit_id,date,cabin,distance\n" + "".join(f"T{n:03},U1,2024-01-01,first,{n}\n" for n in range(COUNT))
HOLD = """
    INSERT INTO holdfast.data_entries (det_id, year, key, classification, job_id, line)
    SELECT id, 2024, 'T599', '', 0, 0 FROM holdfast.data_entry_types WHERE name = 'flights'
"""


@pytest.fixture
async def working(back: Back, database: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """A worker that reports progress often, and loads a few blocks at a time; the year is provisioned."""
    await back.provision()
    monkeypatch.setattr(progress, "PROGRESS_SECONDS", 0.01)
    monkeypatch.setattr(flow, "LOADED_AT_ONCE", 50)
    kinds: list[Job[..., Any]] = [Job(one.kind, one.function, replace(one.policy, run_in=None, nice=0)) for one in KINDS]
    options = holdfast.WorkerOptions(concurrency=1, grace=timedelta(seconds=0.1))
    worker = asyncio.create_task(holdfast.Worker(database, kinds, options).run())
    yield
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)


@asynccontextmanager
async def stopped_load(back: Back, connect: Callable[[], Any], *, commits: bool = False) -> AsyncIterator[dispatch.Dispatched]:
    """A load that waits for the last row of its file, as long as the block lasts; `commits`: then somebody else has it."""
    other = await connect()
    async with other.transaction(force_rollback=not commits):
        await other.execute(HOLD)
        made = await back.dispatch(CONTENT)
        async with asyncio.timeout(60):
            while not re.match("loading rows: [1-9]", str(await message_of(back.conn, made.job_id))):
                await asyncio.sleep(0.01)
        yield made


async def message_of(conn: Any, job_id: int) -> str | None:
    return (await runs.get(conn, job_id)).status_message


async def until_ended(conn: Any, job_id: int) -> None:
    async with asyncio.timeout(60):
        while await state_of(conn, job_id) == "running":
            await asyncio.sleep(0.01)


async def test_progress_moves_while_rows_are_loaded_and_other_requests_do_not_wait(
    back: Back, conn: Any, connect: Any, working: None
) -> None:
    """K-50: the message and the part that is done, without touching the state. E-38: nothing is visible before the end."""
    await never_wait(conn)

    async with stopped_load(back, connect) as made:
        run = await runs.get(conn, made.job_id)
        loaded = int(str(run.status_message).split()[2])
        assert 0 < loaded < COUNT, run.status_message
        assert run.progress == pytest.approx(0.7 + 0.3 * loaded / COUNT, abs=0.001)
        assert (run.state, await entries_of(conn)) == ("RUNNING", [])
        await dispatch.dispatch_recalculation(conn, model="co2", year=YEAR, module="travel", det="flights", by="t")

    await until_ended(conn, made.job_id)
    assert (await runs.get(conn, made.job_id)).status_message == f"{COUNT} rows loaded"
    assert len(await entries_of(conn)) == COUNT


async def test_a_load_that_is_aborted_stops_its_statement_and_leaves_nothing(
    back: Back, conn: Any, connect: Any, working: None
) -> None:
    """E-44: the statement is cancelled first, then the slot is free."""
    async with stopped_load(back, connect) as made:
        await abort(conn, made.pipeline_id, actor="t", reason="wrong file")
        await until_ended(conn, made.job_id)
        running = "SELECT 1 FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%%INTO holdfast.data_entries AS d%%'"
        assert await rows(conn, f"{running} AND pid <> pg_backend_pid()") == []

    assert await state_of(conn, made.job_id) == "cancelled"
    assert await entries_of(conn) == []
    assert await value(conn, "SELECT count(*) FROM holdfast.emission_scopes") == 0
    assert await tables.drop_unneeded(conn) == (2, [])


@pytest.mark.more
async def test_an_append_that_loses_a_race_for_a_key_lists_the_row_as_existing(
    back: Back, conn: Any, connect: Any, working: None
) -> None:
    """The other row was committed after the validation: the load fails as a whole, and the next attempt sees the row."""
    async with stopped_load(back, connect, commits=True) as made:
        pass

    async with asyncio.timeout(60):
        while (run := await runs.get(conn, made.job_id)).state != "FINISHED":
            await conn.execute("UPDATE holdfast.jobs SET run_after = NULL WHERE state = 'pending' AND run_after IS NOT NULL")
            await asyncio.sleep(0.01)
    assert (run.result, run.attempts, len(await entries_of(conn))) == ("WARNING", 2, COUNT)
    assert "first error: line 601, trip_id: 'T599' exists already" in str(run.status_message)


async def test_what_an_application_writes_itself_neither_waits_for_a_load_nor_becomes_a_job(
    back: Back, conn: Any, connect: Any, working: None
) -> None:
    """N-07: an interactive edit and its emission are written by the request, in one transaction, while a load of the same type
    and year runs."""
    await never_wait(conn)
    flights = await value(conn, "SELECT id FROM holdfast.data_entry_types WHERE name = 'flights'")

    async with stopped_load(back, connect) as made:
        jobs = await value(conn, "SELECT count(*) FROM holdfast.jobs")
        async with conn.transaction():
            await conn.execute(HOLD.replace("T599", "by hand"))
            await conn.execute("UPDATE holdfast.data_entries SET amount = 3 WHERE key = 'by hand'")
            await conn.execute("INSERT INTO holdfast.emission_stats VALUES (%s, 2025, 'U1', 'co2', 1, 3)", [flights])
        assert await value(conn, "SELECT count(*) FROM holdfast.jobs") == jobs
        assert await value(conn, "SELECT amount FROM holdfast.data_entries WHERE key = 'by hand'") == 3

    await until_ended(conn, made.job_id)
    assert len(await entries_of(conn)) == COUNT + 1, "the load has left it alone"


AN_EMISSION = """
    SELECT FROM holdfast.data_entry_emissions
    WHERE entry_id = (SELECT entry_id FROM holdfast.data_entry_emissions ORDER BY entry_id OFFSET %s LIMIT 1) FOR UPDATE
"""


async def recalculate_with(back: Back, factor: int) -> None:
    """Upload a factor; the worker recalculates what it changes."""
    file_id = await back.file(f"emission_type,classification,value\nco2,first,{factor}\n")
    await dispatch.dispatch_factors(
        back.conn, model="co2", year=YEAR, module="travel", det="flights", file_id=file_id, options=FileOptions(), by="t"
    )


async def until_idle(conn: Any) -> None:
    async with asyncio.timeout(60):
        while await value(conn, "SELECT count(*) FROM holdfast.jobs WHERE state IN ('pending', 'blocked', 'running')"):
            await asyncio.sleep(0.01)


async def test_progress_moves_while_emissions_are_recalculated(
    back: Back, conn: Any, connect: Any, working: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K-50: the part that is done, while nothing is committed and one statement runs."""
    monkeypatch.setattr(emissions, "STEP", 20)
    await back.dispatch(CONTENT)
    await recalculate_with(back, 1)
    await until_idle(conn)
    before = await kg_of(conn)
    other = await connect()

    async with other.transaction():
        await other.execute(AN_EMISSION, [COUNT // 2])
        await recalculate_with(back, 2)
        async with asyncio.timeout(60):
            while (
                not (found := await runs.listed(conn, limit=1, state="RUNNING", job_type="emission_recalc"))
                or not found[0].progress
            ):
                await asyncio.sleep(0.01)
        (run,) = found
        done = int(str(run.status_message).split(": ")[1].split()[0])
        assert 0 < done < COUNT
        assert run.progress == pytest.approx(done / COUNT, abs=0.001)
        assert await kg_of(conn) == before

    await until_idle(conn)
    assert await kg_of(conn) == 2 * before
