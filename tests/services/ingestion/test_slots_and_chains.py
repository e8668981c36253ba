"""Slots and chains as users of the service meet them: one job at a time, one follow-up, exactly one aggregation."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from ingestion_factories import FLIGHTS, YEAR, Back, entries_of, from_scratch, kg_of, results, statistics_of

from factories import rows, state_of, value
from holdfast import crashpoints
from holdfast.errors import NotStale
from holdfast.jobs.cancel import abort
from holdfast.jobs.pipelines import read_pipeline
from holdfast.jobs.recover import recover
from holdfast.jobs.states import State
from holdfast.services.ingestion import dispatch
from holdfast.services.ingestion.dispatch import FileOptions, SlotWaiting
from holdfast.services.ingestion.loading import factors, scopes
from holdfast.services.ingestion.scope import JOB_TYPES, slot_of
from holdfast.services.ingestion.staging import tables
from holdfast.services.ingestion.views import due, runs

TRAINS = "trip_id,unit_id,country,distance\nR1,U1,CH,100\n"


async def test_a_slot_has_one_waiting_job_and_no_upload_is_merged_away(back: Back, conn: Any) -> None:
    """K-31: who loses the race for a slot changes nothing, and is told."""
    await back.provision()
    first = await back.dispatch(FLIGHTS)
    before = await value(conn, "SELECT count(*) FROM holdfast.pipelines")

    with pytest.raises(SlotWaiting, match=f"job {first.job_id} waits in the slot ingestion.csv_ingest"):
        await back.dispatch(FLIGHTS)

    assert await value(conn, "SELECT count(*) FROM holdfast.pipelines") == before


async def test_a_newer_upload_can_supersede_the_one_that_waits(back: Back, conn: Any) -> None:
    await back.provision()
    first = await back.dispatch(FLIGHTS)

    second = await back.dispatch("trip_id,unit_id,date,cabin,distance\nT9,U1,2024-01-01,first,1\n", if_waiting="supersede")
    await back.harness.drain()

    assert [key for key, *_ in await entries_of(conn)] == ["T9"]
    assert await state_of(conn, first.job_id) == "cancelled"
    assert (await runs.get(conn, first.job_id)).result == "ERROR"
    assert (await runs.get(conn, second.job_id)).result == "SUCCESS"


async def test_supersede_leaves_a_job_that_is_retried_and_the_jobs_of_other_slots(back: Back, conn: Any) -> None:
    """A job between two attempts is pending and keeps its slot."""

    def fail() -> None:
        raise RuntimeError("the first attempt fails")

    await back.provision()
    crashpoints.arm("ingest.staged", fail)
    try:
        retried = await back.dispatch(FLIGHTS)
        await back.harness.drain()
    finally:
        crashpoints.disarm("ingest.staged")
    other = await back.dispatch("trip_id,unit_id,country,distance\n", det="trains")

    first, second = [await back.dispatch(FLIGHTS, if_waiting="supersede") for _ in range(2)]

    states = [await state_of(conn, one.job_id) for one in (retried, other, first)]
    assert states == ["pending", "pending", "cancelled"]
    assert await state_of(conn, second.job_id) in ("pending", "blocked")


async def test_jobs_of_one_unit_take_no_slot(back: Back, conn: Any) -> None:
    await back.provision()
    header = "trip_id,unit_id,date,cabin,distance\n"

    made = [await back.dispatch(f"{header}T{n},U{n},2024-01-01,first,1\n", unit=f"U{n}") for n in (1, 2)]
    await back.harness.drain()

    assert [(await runs.get(conn, one.job_id)).result for one in made] == ["SUCCESS", "SUCCESS"]


async def test_a_trigger_during_a_recalculation_causes_exactly_one_follow_up(back: Back, conn: Any) -> None:
    """E-40: a change that comes while a recalculation runs, past its read, is not lost."""
    await back.provision()
    await back.factors()
    await back.ingest(FLIGHTS)
    first = await dispatch.dispatch_recalculation(conn, model="co2", year=YEAR, module="travel", det="flights", by="t")
    claim = await back.harness._next()
    assert claim is not None
    assert claim.id == first.job_id

    made = [
        await dispatch.dispatch_recalculation(conn, model="co2", year=YEAR, module="travel", det="flights", by="t")
        for _ in range(3)
    ]

    assert len({one.job_id for one in made}) == 1
    assert made[0].job_id != first.job_id
    await conn.execute("UPDATE holdfast.data_entries SET amount = 1")
    await back.harness._attempt(claim)
    await back.harness.drain()
    slot = slot_of("emission_recalc", model="co2", module="travel", det="flights", year=YEAR)
    found = await rows(conn, "SELECT id, state, is_current FROM holdfast.jobs WHERE slot_key = %s ORDER BY id", slot)
    assert found[-2:] == [(first.job_id, "completed", False), (made[0].job_id, "completed", True)]
    assert await statistics_of(conn) == await from_scratch(conn)


@pytest.mark.more
async def test_a_factor_upload_recalculates_only_what_it_changes_and_aggregates_once(back: Back, conn: Any) -> None:
    """N-06: factors and their recalculations are one pipeline; fan-in runs one aggregation over the union."""
    await back.provision()
    await conn.execute("INSERT INTO holdfast.reference_values VALUES ('countries', 'CH', 'Switzerland', NULL, 0)")
    await back.ingest(FLIGHTS)
    await back.ingest(TRAINS, det="trains")
    both = "det,emission_type,classification,value\nflights,co2,economy,0.2\ntrains,co2,CH,0.01\nflights,co2,business,1\n"

    first = await back.factors(both, module="travel", det=None)
    again = await back.factors(both, module="travel", det=None)
    changed = await back.factors(both.replace("0.01", "0.02"), module="travel", det=None)

    assert results(await back.pipeline(first)) == [
        ("factor_ingest", "SUCCESS"),
        ("emission_recalc", "SUCCESS"),
        ("emission_recalc", "SUCCESS"),
        ("aggregation", "SUCCESS"),
    ]
    assert results(await back.pipeline(again)) == [("factor_ingest", "SUCCESS")]
    assert [one.det for one in await back.pipeline(changed) if one.job_type == "emission_recalc"] == ["trains"]
    assert await statistics_of(conn) == await from_scratch(conn)
    assert await kg_of(conn) == Decimal("1102.5")


async def test_stale_factors_are_listed_and_never_deleted(back: Back, conn: Any) -> None:
    await back.provision()
    await back.factors()

    await back.factors("emission_type,classification,value\nco2,economy,0.3\n")

    found = await factors.stale(conn, YEAR)
    assert [(one.det, one.emission_type, one.classification) for one in found] == [
        ("flights", "co2", "business"),
        ("flights", "ch4", "economy"),
    ]
    assert await value(conn, "SELECT count(*) FROM holdfast.factors") == 3


async def test_entries_without_a_factor_are_a_warning_and_the_chain_goes_on(back: Back, conn: Any) -> None:
    await back.provision()

    run = await back.ingest(FLIGHTS)

    jobs = await back.pipeline(run)
    assert results(jobs) == [("csv_ingest", "SUCCESS"), ("emission_recalc", "WARNING"), ("aggregation", "SUCCESS")]
    assert jobs[1].status_message is not None
    assert "3 entries have no factor, for the classifications 'business', 'economy'" in jobs[1].status_message
    assert (await read_pipeline(conn, str(run.pipeline_id))).status == "completed"


async def test_recalculating_a_module_takes_the_types_that_are_due(back: Back, conn: Any) -> None:
    await back.provision()
    await back.factors()
    await back.ingest(FLIGHTS)
    async with conn.transaction():
        await scopes.changed(conn, [1], YEAR, structure=False)
    assert [one.status for one in await due.recalculations(conn)] == ["due"]
    assert [one.reason for one in await due.stale_statistics(conn, older_than=timedelta(hours=-1))] == [
        "last_aggregation_too_old"
    ]

    made = await dispatch.dispatch_recalculation(conn, model="co2", year=YEAR, module="travel", only_due=True, by="t")
    assert [one.phase for one in await due.active_pipelines(conn)] == ["emissions"]
    await back.harness.drain()

    run = await runs.get(conn, made.job_id)
    assert [one.det for one in await back.pipeline(run) if one.job_type == "emission_recalc"] == ["flights"]
    assert [one.status for one in await due.recalculations(conn)] == ["up_to_date"]
    assert await due.active_pipelines(conn) == []


async def test_abort_stops_the_handler_before_the_slot_is_free(back: Back, conn: Any) -> None:
    """E-44: a running job is asked to stop; its slot is free when it has ended, and nothing of it is loaded."""
    await back.provision()
    made = await back.dispatch(FLIGHTS)
    claim = await back.harness._next()
    assert claim is not None

    await abort(conn, made.pipeline_id, actor="t", reason="wrong file")
    waiting = await back.dispatch(FLIGHTS)
    assert await back.harness._next() is None, "the slot is held until the handler has stopped"
    assert await state_of(conn, waiting.job_id) == "blocked"
    await back.harness._attempt(claim)

    assert await state_of(conn, made.job_id) == "cancelled"
    assert (await runs.get(conn, made.job_id)).result == "ERROR"
    assert await entries_of(conn) == []
    await back.harness.drain()
    assert (await runs.get(conn, waiting.job_id)).result == "SUCCESS"


async def test_recover_takes_only_jobs_of_silent_workers_and_keeps_the_attempts_on_record(back: Back, conn: Any) -> None:
    """K-60, K-61, E-35, as an ingestion job meets them."""
    await back.provision()
    made = await back.dispatch(FLIGHTS)
    claim = await back.harness._next()
    assert claim is not None
    with pytest.raises(NotStale):
        await recover(conn, claim.id, actor="t")
    await conn.execute("UPDATE holdfast.workers SET lease_until = clock_timestamp() - interval '1 s'")

    await recover(conn, claim.id, actor="t", grant=1)
    await conn.execute("UPDATE holdfast.workers SET lease_until = clock_timestamp() + interval '1 h'")
    await back.harness.drain()

    run = await runs.get(conn, made.job_id)
    assert (run.result, run.attempts) == ("SUCCESS", 2)
    assert len(await entries_of(conn)) == 3


async def test_what_a_killed_attempt_left_is_dropped_by_the_loop(back: Back, conn: Any) -> None:
    await back.provision()
    made = await back.dispatch(FLIGHTS)
    claim = await back.harness._next()
    assert claim is not None
    for fence in (claim.fence_token, 0):
        await conn.execute(tables.create_statement(tables.Staging(made.job_id, fence, 1), 2))

    assert await tables.drop_unneeded(conn) == (2, [])
    assert len(await tables.names_of_all(conn)) == 2, "those of the running attempt stay"
    for _, job_id, fence in await tables.names_of_all(conn):
        await conn.execute(tables.drop_statement(tables.Staging(job_id, fence, 1)))


def test_the_slot_key_has_every_part_and_is_never_null() -> None:
    """K-28, K-30: a job without a module, type or year has a slot, too. E-31."""
    whole = slot_of("csv_ingest", model="co2", module="travel", det="flights", year=2024)
    assert whole == "ingestion.csv_ingest|model=co2|module=travel|det=flights|target=DATA_ENTRIES|method=csv|year=2024"
    key = slot_of("module_emission_recalc", model="co2")
    assert key == "ingestion.module_emission_recalc|model=co2|module=-|det=-|target=DATA_ENTRIES|method=computed|year=-"
    assert len({slot_of(job_type, model="co2", module="m", det="d", year=1) for job_type in JOB_TYPES}) == len(JOB_TYPES)


async def test_one_table_maps_every_state_of_the_kernel_to_the_words_of_the_documents(conn: Any) -> None:
    found = await rows(conn, "SELECT job_state, state, result FROM holdfast.ingestion_states")
    types = await rows(conn, "SELECT job_type, target, method FROM holdfast.ingestion_job_types")

    assert {state for state, _, _ in found} == {str(state) for state in State}
    assert {word for _, word, _ in found} == {"NOT_STARTED", "RUNNING", "FINISHED"}
    assert {job_type: (target, method) for job_type, target, method in types} == JOB_TYPES


async def test_units_and_lists_are_upserted(back: Back, conn: Any) -> None:
    """N-02: unit_sync is a tracked job."""
    await back.provision()
    file_id = await back.file("code;name\nU2;Alchemy\nU3;Botany\n")
    made = await dispatch.dispatch_units(conn, year=YEAR, file_id=file_id, options=FileOptions(), by="t")
    listed = await dispatch.dispatch_reference(
        conn, name="countries", file_id=await back.file("code\nCH\nDE\nCH\n"), options=FileOptions(), by="t"
    )
    await back.harness.drain()

    assert (await runs.get(conn, made.job_id)).result == "SUCCESS"
    assert (await runs.get(conn, listed.job_id)).status_message == (
        "2 of 3 rows loaded, 1 skipped; first error: line 4, code: 'CH' is a duplicate of line 2"
    )
    found = await rows(conn, "SELECT list, code, label FROM holdfast.reference_values ORDER BY 1, 2")
    assert found == [
        ("countries", "CH", None),
        ("countries", "DE", None),
        ("units", "U1", "Physics"),
        ("units", "U2", "Alchemy"),
        ("units", "U3", "Botany"),
    ]
