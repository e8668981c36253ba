"""Staging tables and lists of errors belong to one attempt: what another attempt has left or writes late does no harm."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from ingestion_factories import FLIGHTS, Back, entries_of, staging_tables

from factories import rows
from holdfast import crashpoints
from holdfast.database.pool import pool
from holdfast.errors import UsageError
from holdfast.schedule.context import Held, Pass
from holdfast.services.ingestion.loops import drop_staging, loops
from holdfast.services.ingestion.setup import ingestion_settings
from holdfast.services.ingestion.staging import errors, tables
from holdfast.services.ingestion.staging.tables import Staging
from loop_factories import LONG, taken


async def made(conn: Any, job_id: int, fence_token: int, *reasons: str) -> Staging:
    """The tables of an attempt, with errors."""
    staging = Staging(job_id, fence_token, 1)
    await conn.execute(tables.create_statement(staging, 2))
    for line, reason in enumerate(reasons, start=2):
        await conn.execute(f"INSERT INTO {staging.errors} VALUES ({line}, 'c', 'x', '{reason}')")
    return staging


async def test_errors_that_a_replaced_attempt_writes_late_are_not_listed(conn: Any) -> None:
    older, newer = await made(conn, 7, 1, "older", "older"), await made(conn, 7, 2, "newer")

    await errors.keep(conn, newer, 10)
    await errors.keep(conn, older, 10)

    assert [one.reason for one in await errors.listed(conn, 7, limit=10)] == ["newer"]


async def test_errors_of_an_attempt_replace_those_of_earlier_attempts_of_its_job(conn: Any) -> None:
    other, older, newer = await made(conn, 8, 1, "other"), await made(conn, 7, 1, "older"), await made(conn, 7, 2, "newer")

    for staging in (other, older, newer):
        await errors.keep(conn, staging, 10)

    found = await rows(conn, "SELECT job_id, fence_token FROM holdfast.ingestion_errors ORDER BY 1, 2")
    assert found == [(7, 2), (8, 1)]


async def test_an_attempt_drops_the_tables_of_earlier_attempts_of_its_job_only(conn: Any) -> None:
    for job_id, fence_token in ((7, 1), (7, 2), (7, 3), (8, 1)):
        await made(conn, job_id, fence_token)

    await tables.drop_older(conn, Staging(7, 2, 1))

    assert await staging_tables(conn) == [f"{name}_{one}" for name in ("errors", "rows") for one in ("7_2", "7_3", "8_1")]


async def test_a_file_that_is_refused_while_it_is_read_leaves_no_tables(back: Back, conn: Any) -> None:
    """The first pieces are in the database when the byte is found that is not UTF-8."""
    await back.provision()
    good = "".join(f"T{number},U1,2024-01-31,first,1\n" for number in range(40_000)).encode()

    run = await back.ingest(b"trip_id,unit_id,date,cabin,distance\n" + good + "Ä,U1,2024-01-31,first,1\n".encode("cp1252"))

    assert run.result == "ERROR"
    assert "is not utf-8" in str(run.status_message)
    assert (await entries_of(conn), await staging_tables(conn)) == ([], [])


async def test_an_attempt_that_fails_after_its_rows_are_staged_leaves_no_tables(back: Back, conn: Any) -> None:
    def fail() -> None:
        raise UsageError("no validation today")

    await back.provision()
    crashpoints.arm("ingest.staged", fail)
    try:
        run = await back.ingest(FLIGHTS)
    finally:
        crashpoints.disarm("ingest.staged")

    assert run.result == "ERROR"
    assert "no validation today" in str(run.status_message)
    assert await staging_tables(conn) == []


async def test_the_loop_leaves_a_table_that_is_in_use_for_the_next_time(conn: Any, connect: Any) -> None:
    await made(conn, 7, 1)
    other = await connect()

    async with other.transaction(), asyncio.timeout(30):
        await other.execute("SELECT FROM holdfast_staging.rows_7_1")
        dropped = await tables.drop_unneeded(conn, lock_timeout="10ms")

    assert (dropped, await staging_tables(conn)) == ((1, []), ["rows_7_1"])
    assert await tables.drop_unneeded(conn) == (1, [])


async def test_a_table_that_cannot_be_dropped_does_not_keep_the_tables_after_it(
    conn: Any, database: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged and counted, and the next pass tries again. Here a view needs it; another role may own it."""
    await made(conn, 7, 1)
    first, _ = [name for name, *_ in await tables.names_of_all(conn)]
    await conn.execute(f"CREATE VIEW holdfast_staging.needs_it AS SELECT line FROM holdfast_staging.{first}")
    (loop,) = loops(ingestion_settings())
    term = await taken(conn, replace(loop, first_run="at_once"))

    async with pool(database, most=1) as connections:
        result = await drop_staging(Pass(term, Held(LONG), connections.connection, database))

    assert (result.items, result.failed) == (1, 1)
    assert await staging_tables(conn) == [first]
    (line,) = [one for one in caplog.records if "ingestion_staging_not_dropped" in one.getMessage()]
    assert (line.levelname, first in line.getMessage()) == ("ERROR", True)
    await conn.execute("DROP VIEW holdfast_staging.needs_it")
    assert await tables.drop_unneeded(conn) == (1, [])
