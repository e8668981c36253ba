"""A file becomes data entries, emissions and statistics; bad rows are left out and listed."""

from __future__ import annotations

import csv
from decimal import Decimal
from typing import Any

import pytest
from ingestion_factories import FLIGHTS, Back, entries_of, from_scratch, results, staging_tables, statistics_of

from factories import rows
from holdfast.errors import NotFound
from holdfast.services.ingestion.dispatch import FileOptions, YearNotProvisioned
from holdfast.services.ingestion.loading.accept import ErrorPolicy
from holdfast.services.ingestion.models.definitions import Column
from holdfast.services.ingestion.sources.dialect import Dialect
from holdfast.services.ingestion.staging import errors
from holdfast.services.ingestion.staging.checks import Checked, literal


async def test_a_file_becomes_entries_emissions_and_statistics(back: Back, conn: Any) -> None:
    """N-01: csv_ingest, emission_recalc and aggregation are jobs of one pipeline. N-06 by the same chain. K-45, K-46."""
    await back.provision()
    await back.factors()

    run = await back.ingest(FLIGHTS)

    assert (run.state, run.result, run.status_message) == ("FINISHED", "SUCCESS", "3 rows loaded")
    assert await entries_of(conn) == [
        ("T1", "U1", "economy", Decimal(1000)),
        ("T2", "U2", "business", Decimal("500.5")),
        ("T3", "U1", "economy", Decimal(2000)),
    ]
    assert results(await back.pipeline(run)) == [
        ("csv_ingest", "SUCCESS"),
        ("emission_recalc", "SUCCESS"),
        ("aggregation", "SUCCESS"),
    ]
    assert await statistics_of(conn) == {
        ("U1", "co2"): Decimal("600.0"),
        ("U1", "ch4"): Decimal("30.00"),
        ("U2", "co2"): Decimal("250.25"),
    }
    assert await statistics_of(conn) == await from_scratch(conn)
    assert await staging_tables(conn) == []


BAD = """trip_id,unit_id,date,cabin,distance,traveller
T1,U1,2024-01-31,economy,1000,Ada
,U1,2024-01-31,economy,1,
T3,U9,2024-01-31,economy,1,
T4,U1,2024-02-30,first class,-5,
T5,U1,2024-01-31,economy,many,
T6,U1,2024-01-31,economy
T1,U2,2024-01-31,economy,7,

T8,U2,31.01.2024,economy,99999999,
"""


async def test_bad_rows_are_left_out_and_listed_with_line_column_value_and_reason(back: Back, conn: Any) -> None:
    await back.provision()

    run = await back.ingest(BAD)

    assert (run.result, [key for key, *_ in await entries_of(conn)]) == ("WARNING", ["T1"])
    assert run.outcome is not None
    assert (run.outcome["rows_read"], run.outcome["rows_loaded"], run.outcome["rows_skipped"]) == (8, 1, 7)
    assert run.status_message == "1 of 8 rows loaded, 7 skipped; first error: line 3, trip_id: is required"
    found = [(one.line, one.column, one.value, one.reason) for one in await errors.listed(conn, run.job_id, limit=50)]
    assert found == [
        (3, "trip_id", None, "is required"),
        (4, "unit_id", "U9", "is not in the reference list units"),
        (5, "cabin", "first class", "must be one of: economy, premium, business, first"),
        (5, "date", "2024-02-30", "is not a date like YYYY-MM-DD"),
        (5, "distance", "-5", "must be at least 0"),
        (6, "distance", "many", "is not a decimal number"),
        (7, None, "T6,U1,2024-01-31,economy", "has 4 fields; the header has 6"),
        (8, "trip_id", "T1", "is a duplicate of line 2"),
        (10, "date", "31.01.2024", "is not a date like YYYY-MM-DD"),
        (10, "distance", "99999999", "must be at most 50000"),
    ]


async def test_the_file_of_bad_rows_can_be_corrected_and_uploaded_again(back: Back, conn: Any) -> None:
    await back.provision()
    run = await back.ingest(FLIGHTS.replace("1000", "a lot").replace("500.5", "-1"))
    assert run.outcome is not None
    async with back.here.store() as kept:
        bad = (await kept.get(run.outcome["bad_rows"])).decode()
    assert bad.splitlines()[1:] == [
        "T1,U1,2024-01-31,economy,a lot,Ada,2,distance: is not a decimal number",
        "T2,U2,2024-02-29,business,-1,,3,distance: must be at least 0",
    ]

    again = await back.ingest(bad.replace("a lot", "1000").replace(",-1,", ",500.5,"))

    assert again.result == "SUCCESS"
    assert [(key, amount) for key, _, _, amount in await entries_of(conn)] == [
        ("T1", Decimal(1000)),
        ("T2", Decimal("500.5")),
        ("T3", Decimal(2000)),
    ]


@pytest.mark.parametrize(
    ("policy", "result"),
    [
        (ErrorPolicy(max_errors=0), "ERROR"),
        (ErrorPolicy(max_errors=6), "ERROR"),
        (ErrorPolicy(max_errors=7), "WARNING"),
        (ErrorPolicy(max_error_percent=87), "ERROR"),
        (ErrorPolicy(max_error_percent=88), "WARNING"),
    ],
)
async def test_the_error_policy_decides_whether_good_rows_are_loaded(
    back: Back, conn: Any, policy: ErrorPolicy, result: str
) -> None:
    await back.provision()

    run = await back.ingest(BAD, options=FileOptions(policy=policy))

    assert run.result == result
    assert len(await entries_of(conn)) == (0 if result == "ERROR" else 1)
    assert len(await errors.listed(conn, run.job_id, limit=50)) == 10
    assert await staging_tables(conn) == []


@pytest.mark.parametrize(
    "content", ["trip_id,unit_id,date,cabin,distance\n", BAD.split("T1,U1")[0] + BAD[BAD.index(",U1,2024") :]]
)
async def test_no_row_to_load_is_an_error(back: Back, conn: Any, content: str) -> None:
    await back.provision()

    run = await back.ingest(content.replace("T1,U2,2024-01-31,economy,7,", ""))

    assert (run.state, run.result) == ("FINISHED", "ERROR")
    assert run.status_message is not None
    assert run.status_message.startswith("nothing loaded: ")
    assert results(await back.pipeline(run)) == [("csv_ingest", "ERROR")], "an error ends the chain"


async def test_a_dry_run_validates_and_loads_nothing(back: Back, conn: Any) -> None:
    await back.provision()

    run = await back.ingest(BAD, options=FileOptions(dry_run=True))

    assert (run.result, run.is_dry_run) == ("WARNING", True)
    assert run.status_message is not None
    assert run.status_message.startswith("1 of 8 rows would be loaded, 7 skipped")
    assert await entries_of(conn) == []
    assert results(await back.pipeline(run)) == [("csv_ingest", "WARNING")]
    assert await staging_tables(conn) == []


HEADER = "trip_id,unit_id,date,cabin,distance\n"


async def test_append_refuses_keys_that_exist_and_upsert_replaces_them(back: Back, conn: Any) -> None:
    await back.provision()
    await back.factors()
    await back.ingest(FLIGHTS)
    more = HEADER + "T3,U2,2024-03-01,business,10\nT4,U1,2024-03-01,economy,4\n"

    appended = await back.ingest(more, options=FileOptions(dry_run=True))
    upserted = await back.ingest(more, mode="upsert")

    listed = await errors.listed(conn, appended.job_id, limit=5)
    assert [(one.line, one.column, one.value) for one in listed] == [(2, "trip_id", "T3")]
    assert "use mode=upsert" in listed[0].reason
    assert upserted.result == "SUCCESS"
    assert (await entries_of(conn))[2:] == [("T3", "U2", "business", Decimal(10)), ("T4", "U1", "economy", Decimal(4))]
    assert await statistics_of(conn) == await from_scratch(conn)


async def test_replace_removes_the_entries_of_the_scope_and_their_emissions(back: Back, conn: Any) -> None:
    await back.provision()
    await back.factors()
    await back.ingest(FLIGHTS)

    await back.ingest(HEADER + "T3,U2,2024-03-01,business,10\n", mode="replace")

    assert await entries_of(conn) == [("T3", "U2", "business", Decimal(10))]
    assert await statistics_of(conn) == {("U2", "co2"): Decimal("5.0")} == await from_scratch(conn)


async def test_replace_of_one_unit_leaves_the_others(back: Back, conn: Any) -> None:
    await back.provision()
    await back.ingest(FLIGHTS)

    await back.ingest(HEADER + "T9,U1,2024-03-01,business,10\n", mode="replace", unit="U1")

    assert [(key, unit) for key, unit, *_ in await entries_of(conn)] == [("T2", "U2"), ("T9", "U1")]


async def test_the_detected_dialect_is_reported_and_can_be_overridden(back: Back, conn: Any) -> None:
    await back.provision()
    content = "Trip ID;Unit;date;cabin;distance\nT1;U1;2024-01-01;economy;1.234,5\nTä;U1;2024-01-01;economy;7,25\n"

    run = await back.ingest(content.encode("cp1252"))

    assert run.outcome is not None
    assert run.outcome["dialect"] == {"encoding": "cp1252", "delimiter": ";", "quote": '"', "decimal": ","}
    assert [(key, amount) for key, _, _, amount in await entries_of(conn)] == [
        ("T1", Decimal("1234.5")),
        ("Tä", Decimal("7.25")),
    ]
    wrong = await back.ingest(content.encode("cp1252"), options=FileOptions(dialect=Dialect(delimiter=",")))
    assert wrong.result == "ERROR"
    assert wrong.status_message is not None
    assert "the file has no column 'trip_id', 'unit_id'" in wrong.status_message


async def test_a_year_must_be_provisioned_and_the_scope_must_exist(back: Back, conn: Any) -> None:
    with pytest.raises(YearNotProvisioned, match="the units of 2024 are not known; sync them first"):
        await back.ingest(FLIGHTS)
    await back.provision()
    with pytest.raises(NotFound, match="no data entry type 'ships'; use one of: flights, trains"):
        await back.ingest(FLIGHTS, det="ships")
    with pytest.raises(NotFound, match="no module 'sport' in the data model; use one of: travel, purchases, buildings"):
        await back.ingest(FLIGHTS, "sport")
    assert await entries_of(conn) == []


async def test_formulas_in_the_file_of_bad_rows_are_harmless_and_survive_the_correction(back: Back, conn: Any) -> None:
    """A spreadsheet runs a field that begins with =, +, - or @. A number with a sign is none, and a phone number is data."""
    await back.provision()
    traveller = '=HYPERLINK("http://evil.example")'
    row = f'T1,U1,2024-01-31,economy,-5,"{traveller.replace(chr(34), chr(34) * 2)}"\n@T2,U1,2024-01-31,economy,many,+41 x\n'
    run = await back.ingest("trip_id,unit_id,date,cabin,distance,traveller\n" + row)
    assert run.outcome is not None
    async with back.here.store() as kept:
        bad = (await kept.get(run.outcome["bad_rows"])).decode()
    fields = [*csv.reader(bad.splitlines()[1:])]
    assert [(one[0], one[4], one[5]) for one in fields] == [("T1", "-5", f"'{traveller}"), ("'@T2", "many", "'+41 x")]

    again = await back.ingest(bad.replace(",-5,", ",5,").replace("many", "7"))

    assert again.result == "SUCCESS"
    found = await rows(conn, "SELECT key, attributes ->> 'traveller' FROM holdfast.data_entries ORDER BY key")
    assert found == [("@T2", "+41 x"), ("T1", traveller)]


async def test_a_job_of_one_unit_takes_no_rows_of_another(back: Back, conn: Any) -> None:
    await back.provision()

    run = await back.ingest(FLIGHTS, unit="U1", mode="replace")

    assert (run.result, [unit for _, unit, *_ in await entries_of(conn)]) == ("WARNING", ["U1", "U1"])
    (error,) = await errors.listed(conn, run.job_id, limit=5)
    assert str(error) == "line 3, unit_id: 'U2' must be one of: U1"


@pytest.mark.parametrize("form", ["YYYY-MM-DD", "DD.MM.YYYY", "MM/DD/YYYY"])
async def test_a_date_is_checked_in_the_same_way_near_its_year_and_far_from_it(conn: Any, form: str) -> None:
    """The dates around the year are looked up, all others are checked part by part."""
    written = form.replace("YYYY", "{0}").replace("MM", "{1}").replace("DD", "{2}")
    texts = [written.format(*day.split("-")) for day in ("2024-02-29", "2023-02-29", "1999-12-31", "2024-04-31", "2024-13-01")]

    for year in (None, 2024, 2000, 1, 9999):
        checked = Checked(Column(name="d", type="date", format=form), "given.text", year=year)
        given = f"unnest(ARRAY[{', '.join(map(literal, texts))}]) WITH ORDINALITY AS given(text, at)"
        found = [reason is None for (reason,) in await rows(conn, f"SELECT {checked.reason} FROM {given} ORDER BY at")]
        assert found == [True, False, True, False, False], year
