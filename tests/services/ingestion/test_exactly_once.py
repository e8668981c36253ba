"""The property that counts: whatever the file, wherever a worker dies, and whoever races for a slot, every accepted row is
there exactly once, bad rows are listed exactly, and totals equal a computation from scratch.

The oracle is a second implementation of the rules in plain Python, row by row.
"""

from __future__ import annotations

import asyncio
import csv
import io
import os
import random
import re
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import nullcontext
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ingestion_factories import FLIGHTS, YEAR, Back, entries_of, from_scratch, staging_tables, statistics_of
from proof.processes.fork_server import Forked, ForkServer

from factories import rows, value
from holdfast.jobs.model import JobId
from holdfast.services.ingestion import dispatch
from holdfast.services.ingestion.dispatch import Dispatched, FileOptions
from holdfast.services.ingestion.kinds import KINDS
from holdfast.services.ingestion.loading.accept import Result
from holdfast.services.ingestion.names import CRASH_POINTS
from holdfast.services.ingestion.setup import Ingestion
from holdfast.services.ingestion.sources.dialect import Dialect
from holdfast.services.ingestion.staging import errors
from holdfast.services.ingestion.views import runs
from holdfast.testing import crash_at, harness
from workers import doomed, until_gone

EXAMPLES = 300 if os.environ.get("HOLDFAST_TEST_EVERYTHING") else 6
HEADER = ["trip_id", "unit_id", "date", "cabin", "distance"]
CABINS = ("economy", "premium", "business", "first")
NUMBER = re.compile(r"[+-]?([0-9]{1,30}([.][0-9]{0,30})?|[.][0-9]{1,30})([eE][+-]?[0-9]{1,2})?")
POINT = FileOptions(dialect=Dialect(decimal="."))  # 1,5 may be the only number, and would show a decimal comma
POINTS = [*CRASH_POINTS, "publish.in_tx_before", "complete.in_tx_after_child", "complete.after_commit_before_ack"]

# Mostly good values, and those that go wrong in files of people.
KEYS = st.one_of(st.integers(0, 12).map(lambda n: f"T{n}"), st.sampled_from(["", " T1", 'a"b', "ä,ö", "T\n1", "x" * 501]))
DATES = st.one_of(
    st.dates(date(1999, 1, 1), date(2030, 1, 1)).map(str),
    st.sampled_from(["2024-02-30", "2023-02-29", "2024-2-1", "01.02.2024", "0999-01-01", "2024-13-01", "2024-00-10", ""]),
)
AMOUNTS = st.one_of(
    st.decimals(0, 50000, places=2).map(str),
    st.sampled_from(["-1", "50000.01", "1e3", ".5", ".", "5-", "1,5", "NaN", "Infinity", "", "7.", "0x1F", "1_000", "+3"]),
)
ROWS = st.lists(
    st.one_of(
        st.tuples(KEYS, st.sampled_from(["U1", "U2", "U9", ""]), DATES, st.sampled_from([*CABINS, "Economy", ""]), AMOUNTS).map(
            list
        ),
        st.sampled_from([[], ["", "", "", "", ""], ["T1", "U1"], ["a", "b", "c", "d", "e", "f"]]),
    ),
    max_size=25,
)


def written(table: list[list[str]]) -> str:
    """A CSV file of these rows."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(HEADER)
    for row in table:
        if row:
            writer.writerow(row)
        else:
            out.write("\n")
    return out.getvalue()


def expected(table: list[list[str]]) -> tuple[dict[str, tuple[str, str, Decimal]], set[int]]:
    """The entries by key, and the lines of bad rows."""
    entries: dict[str, tuple[str, str, Decimal]] = {}
    bad: set[int] = set()
    line = 2
    for row in table:
        at, line = line, line + 1 + sum(field.count("\n") for field in row)
        if not any(field.strip() for field in row):
            continue
        if len(row) != len(HEADER) or not is_good(row) or row[0].strip(" ") in entries:
            bad.add(at)
        else:
            key, unit, _, cabin, amount = (field.strip(" ") for field in row)
            entries[key] = (unit, cabin, Decimal(amount))
    return entries, bad


def is_good(row: list[str]) -> bool:
    key, unit, day, cabin, amount = (field.strip(" ") for field in row)
    if not key or len(key.encode()) > 500 or unit not in ("U1", "U2") or cabin not in CABINS:
        return False
    try:
        if not re.fullmatch(r"[1-9]\d{3}-\d\d-\d\d", day):
            return False
        date.fromisoformat(day)
    except ValueError:
        return False
    return bool(NUMBER.fullmatch(amount)) and 0 <= Decimal(amount) <= 50000


async def empty(conn: Any) -> None:
    for table in ("data_entries", "data_entry_emissions", "emission_stats", "emission_scopes", "ingestion_errors"):
        await conn.execute(f"DELETE FROM holdfast.{table}")


@pytest.mark.more
async def test_every_accepted_row_is_there_exactly_once_wherever_a_worker_dies(back: Back, conn: Any) -> None:
    """E-38: data and end are one transaction. N-02: a killed job is run again by another worker. K-48."""
    await back.provision()
    loop = asyncio.get_running_loop()
    reached: set[str] = set()

    async def one(table: list[list[str]], point: str) -> None:
        await empty(conn)
        await back.factors("emission_type,classification,value\nco2,economy,0.2\nco2,business,0.5\n")
        entries, bad = expected(table)
        made = await back.dispatch(written(table), options=POINT)
        with crash_at(point, must_reach=False) as hits:
            await back.harness.drain()
            await back.harness.move_time(timedelta(hours=1))
            await back.harness.drain()
        reached.update(hits)
        run = await runs.get(conn, made.job_id)
        assert {key: tuple(rest) for key, *rest in await entries_of(conn)} == entries
        assert len(await entries_of(conn)) == len(entries)
        assert {one.line for one in await errors.listed(conn, run.job_id, limit=1000)} == bad
        assert run.result == (Result.ERROR if not entries else Result.WARNING if bad else Result.SUCCESS)
        assert await statistics_of(conn) == await from_scratch(conn)
        assert await staging_tables(conn) == []

    @settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(table=ROWS, point=st.sampled_from(POINTS))
    def examples(table: list[list[str]], point: str) -> None:
        asyncio.run_coroutine_threadsafe(one(table, point), loop).result()

    await asyncio.to_thread(examples)
    for point in CRASH_POINTS:
        await one([["T1", "U1", "2024-01-01", "economy", "10"], ["", "U1", "", "", ""]], point)
    assert set(CRASH_POINTS) <= reached


async def test_two_pods_that_race_for_a_slot_load_each_file_once(back: Back, conn: Any, database: str) -> None:
    """Z-07, K-70: a real Postgres, no mocks. K-28: one current job per slot. N-03, N-04: nobody runs without the claim."""
    await back.provision()
    await back.factors()
    await back.dispatch(FLIGHTS)
    async with harness(database, KINDS) as other:
        await asyncio.gather(back.harness.drain(), other.drain())
        more = await back.dispatch("trip_id,unit_id,date,cabin,distance\nT7,U1,2024-01-01,economy,70\n")
        await asyncio.gather(other.drain(), back.harness.drain())
    for _ in range(3):
        await back.harness.drain()

    assert [key for key, *_ in await entries_of(conn)] == ["T1", "T2", "T3", "T7"]
    assert await statistics_of(conn) == await from_scratch(conn)
    current = "SELECT slot_key, count(*) FROM holdfast.jobs WHERE is_current GROUP BY 1 HAVING count(*) > 1"
    assert await rows(conn, current) == []
    slot = await value(conn, "SELECT slot_key FROM holdfast.jobs WHERE id = %s", more.job_id)
    assert await rows(conn, "SELECT id FROM holdfast.jobs WHERE slot_key = %s AND is_current", slot) == [(more.job_id,)]


async def start_units(back: Back) -> Dispatched:
    file_id = await back.file("code,label\nU1,Maths\nU3,Biology\n")
    return await dispatch.dispatch_units(back.conn, year=YEAR, file_id=file_id, options=FileOptions(), by="test")


async def start_factors(back: Back) -> Dispatched:
    file_id = await back.file("emission_type,classification,value\nco2,economy,0.3\nch4,business,0.02\n")
    asked: dict[str, Any] = {"model": "co2", "year": YEAR, "module": "travel", "det": "flights"}
    return await dispatch.dispatch_factors(back.conn, **asked, file_id=file_id, options=FileOptions(), by="test")


async def start_recalculation(back: Back) -> Dispatched:
    await back.conn.execute("UPDATE holdfast.factors SET value = value * 2")
    return await dispatch.dispatch_recalculation(back.conn, model="co2", year=YEAR, module="travel", det="flights", by="test")


UNITS_NOW = "SELECT code, label FROM holdfast.reference_values WHERE list = 'units' ORDER BY code"
FACTORS_NOW = """
    SELECT emission_type, classification, value FROM holdfast.factors ORDER BY emission_type, classification
"""
STATISTICS_NOW = "SELECT unit_code, emission_type, sum(kg) FROM holdfast.emission_stats GROUP BY 1, 2 ORDER BY 1, 2"
RACED: dict[str, tuple[Callable[[Back], Awaitable[Dispatched]], str, list[tuple[Any, ...]]]] = {
    "units": (start_units, UNITS_NOW, [("U1", "Maths"), ("U2", "Chemistry"), ("U3", "Biology")]),
    "factors": (
        start_factors,
        FACTORS_NOW,
        [
            ("ch4", "business", Decimal("0.02")),
            ("ch4", "economy", Decimal("0.01")),
            ("co2", "business", Decimal("0.5")),
            ("co2", "economy", Decimal("0.3")),
        ],
    ),
    "recalculation": (
        start_recalculation,
        STATISTICS_NOW,
        [
            ("U1", "ch4", Decimal(60)),
            ("U1", "co2", Decimal(1200)),
            ("U2", "co2", Decimal("500.5")),
        ],
    ),
}


@pytest.mark.parametrize("point", [None, "complete.after_commit_before_ack"])
@pytest.mark.parametrize("what", RACED)
async def test_two_pods_that_race_for_a_job_run_it_once(
    back: Back, conn: Any, database: str, what: str, point: str | None
) -> None:
    """N-02: every kind is tracked as a job and claimed; a pod that dies after the commit is not followed by another attempt."""
    start, query, wanted = RACED[what]
    await back.provision()
    await back.factors()
    await back.ingest(FLIGHTS)
    made = await start(back)

    with crash_at(point) if point else nullcontext():
        async with harness(database, KINDS) as other:
            ran = await asyncio.gather(back.harness.drain(), other.drain())

    run = await runs.get(conn, made.job_id)
    assert (run.result, run.attempts) == ("SUCCESS", 1)
    assert [*ran[0], *ran[1]].count(JobId(made.job_id)) == 1
    assert await rows(conn, query) == wanted
    assert await statistics_of(conn) == await from_scratch(conn)


GOOD = ["first", "U1", "2024-01-01", "economy", "10"]
VALUES = (
    [*(f"T{number}" for number in range(12)), "", 'a"b', "ä,ö"],
    ["U1", "U1", "U2", "U9"],
    ["2024-01-31", "2024-02-29", "2023-02-29", "01.02.2024"],
    [*CABINS, "Economy"],
    ["1.5", "50000", "50000.01", "1e3", "-1", "1,5"],
)


def some_rows(chance: random.Random) -> list[list[str]]:
    """Rows by chance; the first one is good, so that every crash point is reached."""
    return [GOOD, *([chance.choice(column) for column in VALUES] for _ in range(chance.randint(1, 20)))]


async def is_as_expected(conn: Any, table: list[list[str]], job_id: int) -> None:
    entries, bad = expected(table)
    found = await entries_of(conn)
    assert ({key: tuple(rest) for key, *rest in found}, len(found)) == (entries, len(entries))
    assert {one.line for one in await errors.listed(conn, job_id, limit=1000)} == bad
    assert await statistics_of(conn) == await from_scratch(conn)


ALL_ENDED = "SELECT count(*) = 0 FROM holdfast.jobs WHERE state IN ('pending', 'blocked', 'running')"
EXPIRE = "UPDATE holdfast.workers SET lease_until = clock_timestamp() WHERE pid = %s"


@pytest.fixture
def forks(here: Ingestion, database: str, tmp_path: Path) -> Iterator[Callable[[str | None], Forked]]:
    """Starts worker processes; with a crash point, one that dies there by SIGKILL."""
    options: dict[str, Any] = {
        "modules": ["tests.services.ingestion.ingestion_workers"],
        "environment": {"HOLDFAST_INGESTION_TO": here.root},
        "lease": 60.0,
    }
    with ForkServer() as server:
        yield lambda point: server.start(doomed(database) if point else database, tmp_path, crash_at=point, **options)


@pytest.mark.more  # single crash points are below
@pytest.mark.processes
async def test_a_worker_that_is_killed_at_any_point_loads_no_row_twice_and_loses_none(
    back: Back, conn: Any, forks: Callable[[str | None], Forked]
) -> None:
    """N-02, E-38, K-48: a real process and SIGKILL, at every point; another pod goes on."""
    await back.provision()
    await back.factors("emission_type,classification,value\nco2,economy,0.2\nco2,business,0.5\n")
    chance = random.Random(7)

    for point in POINTS:
        table = some_rows(chance)
        made = await back.dispatch(written(table), options=POINT, mode="replace")
        assert await asyncio.to_thread(forks(point).wait) == -signal.SIGKILL, point
        await until_gone(conn)  # also because a rescue leaves out what their sessions still lock
        await back.harness.move_time(timedelta(hours=1))
        await back.harness.drain()
        await is_as_expected(conn, table, made.job_id)
    assert await staging_tables(conn) == []


@pytest.mark.more
@pytest.mark.processes
async def test_two_worker_processes_of_which_one_is_killed_race_for_the_slots(
    back: Back, conn: Any, forks: Callable[[str | None], Forked]
) -> None:
    """Z-07, K-28: both take what they get; the second file waits in the slot of the first."""
    await back.provision()
    await back.factors("emission_type,classification,value\nco2,economy,0.2\nco2,business,0.5\n")
    chance = random.Random(8)
    first, second = some_rows(chance), some_rows(chance)
    await back.dispatch(written(first), options=POINT, mode="replace")

    workers = [forks(chance.choice(POINTS)), forks(None)]
    async with asyncio.timeout(120):
        while not await value(conn, "SELECT is_current FROM holdfast.jobs WHERE kind = 'ingestion.csv_ingest'"):
            await asyncio.sleep(0.01)
        made = await back.dispatch(written(second), options=POINT, mode="replace", if_waiting="supersede")
        while not await value(conn, ALL_ENDED):
            if not workers[0].is_alive:
                await conn.execute(EXPIRE, [workers[0].pid])
            await asyncio.sleep(0.01)

    await is_as_expected(conn, second, made.job_id)
    assert await rows(conn, "SELECT slot_key FROM holdfast.jobs WHERE is_current GROUP BY 1 HAVING count(*) > 1") == []


@pytest.mark.parametrize("amount", ["1e3", "7.", ".5", "+3"])
async def test_numbers_in_all_their_forms_are_loaded(back: Back, conn: Any, amount: str) -> None:
    await back.provision()

    await back.ingest(f"{','.join(HEADER)}\nT1,U1,2024-01-01,economy,{amount}\n")

    assert [one[3] for one in await entries_of(conn)] == [Decimal(amount)]
