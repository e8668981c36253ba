"""Requests and files that are refused, with the reason and the way out; and a load that is not what was validated."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ingestion_factories import FLIGHTS, YEAR, Back, Client, entries_of

from factories import rows, value
from holdfast import crashpoints
from holdfast.errors import NotFound, UsageError
from holdfast.services.ingestion import dispatch
from holdfast.services.ingestion.dispatch import EntriesAsked, FileOptions
from holdfast.services.ingestion.loading import emissions
from holdfast.services.ingestion.loading.accept import ErrorPolicy
from holdfast.services.ingestion.models import store
from holdfast.services.ingestion.models.definitions import Api, Column
from holdfast.services.ingestion.models.rules import model_of
from holdfast.services.ingestion.models.yaml_file import EXAMPLE, read_model
from holdfast.services.ingestion.sources.dialect import UnreadableFile
from holdfast.services.ingestion.sources.files import of_job
from holdfast.services.ingestion.sources.opening import LONGEST_HEADER, open_rows
from holdfast.services.ingestion.sources.pages import PagedApi, SourceRefused
from holdfast.services.ingestion.staging.columns import match

ASKED = {"model": "co2", "module": "travel", "det": "flights", "year": YEAR}


async def without_key_and_unit(back: Back) -> None:
    """The CO2 model, with flights that have neither a key nor a column of units."""
    definition = read_model(EXAMPLE)
    flights = definition["modules"][0]["data_entry_types"][0]
    flights["key"] = []
    del flights["unit"]
    flights["columns"] = [column for column in flights["columns"] if column["name"] != "unit_id"]
    async with back.conn.transaction():
        await store.apply(back.conn, model_of(definition), by="test")


async def upsert(back: Back) -> Any:
    await without_key_and_unit(back)
    return await dispatch.dispatch_file(back.conn, EntriesAsked(**ASKED, mode="upsert"), 1, FileOptions(), by="t")


async def one_unit(back: Back) -> Any:
    await without_key_and_unit(back)
    return await dispatch.dispatch_file(back.conn, EntriesAsked(**ASKED, unit="U1"), 1, FileOptions(), by="t")


async def no_api(back: Back) -> Any:
    return await dispatch.dispatch_api(back.conn, EntriesAsked(**ASKED), ErrorPolicy(), by="t")


async def no_module(back: Back) -> Any:
    return await dispatch.dispatch_factors(
        back.conn, model="co2", year=YEAR, file_id=1, det="flights", options=FileOptions(), by="t"
    )


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (upsert, "flights has no key in the data model, so entries cannot be upserted; use append or replace"),
        (one_unit, "flights has no column for units in the data model; leave out `unit`"),
        (no_api, "travel/flights has no `api` in the data model; add it, or upload a file"),
        (no_module, "give the module of the data entry type, too"),
    ],
)
async def test_a_request_that_cannot_be_done_is_refused_before_there_is_a_job(
    back: Back, conn: Any, ask: Callable[[Back], Awaitable[Any]], says: str
) -> None:
    await back.provision()
    before = await value(conn, "SELECT count(*) FROM holdfast.jobs")

    with pytest.raises(UsageError, match=says):
        await ask(back)

    assert await value(conn, "SELECT count(*) FROM holdfast.jobs") == before


async def test_a_job_without_a_file_is_no_source(back: Back, conn: Any) -> None:
    made = await dispatch.dispatch_recalculation(conn, model="co2", year=YEAR, by="t")

    with pytest.raises(NotFound, match=f"job {made.job_id} has no file; give the id of a job that ingested one"):
        await of_job(conn, made.job_id)


def test_two_columns_of_a_file_that_are_the_same_of_the_model_are_refused() -> None:
    with pytest.raises(UnreadableFile, match="two columns of the file are 'unit'; remove one of them"):
        match(["unit", "OE"], [Column(name="unit", headers=("oe",))])


def test_a_parquet_file_with_nested_columns_and_one_with_too_many_are_refused(tmp_path: Path) -> None:
    nested, wide = tmp_path / "nested", tmp_path / "wide"
    pq.write_table(pa.table({"a": [[1, 2]]}), nested)
    wide.write_text(",".join(f"c{number}" for number in range(LONGEST_HEADER + 1)) + "\n")

    with pytest.raises(UnreadableFile, match="column 'a' has the type list.*; only plain columns can be ingested"):
        open_rows(nested)
    with pytest.raises(UnreadableFile, match="the file has 1,001 columns; at most 1,000"):
        open_rows(wide)


@pytest.mark.parametrize("content", [b"[]", b'{"data": 5}', b'{"data": [1]}', b"no JSON"])
async def test_an_answer_that_is_no_page_is_refused(content: bytes) -> None:
    async with PagedApi(Api(url="http://127.0.0.1"), YEAR, None) as api:
        with pytest.raises(SourceRefused, match="answers without a list of objects in 'data'"):
            api._page(content)


async def test_a_load_of_another_number_of_rows_than_were_validated_is_rolled_back(
    back: Back, conn: Any, database: str
) -> None:
    """Whatever has changed the staging table: the rows that were judged are loaded, or none."""
    await back.provision()

    def lose_a_row() -> None:
        with psycopg.connect(database, autocommit=True) as other:
            for (name,) in other.execute("SELECT relname FROM pg_class WHERE relname ~ '^rows_[0-9]+_[0-9]+$'").fetchall():
                other.execute(f"DELETE FROM holdfast_staging.{name} WHERE line = 2".encode())

    crashpoints.arm("ingest.validated", lose_a_row)
    try:
        made = await back.dispatch(FLIGHTS)
        await back.harness.drain()
    finally:
        crashpoints.disarm("ingest.validated")

    ((state, error),) = await rows(conn, "SELECT state, error FROM holdfast.jobs WHERE id = %s", made.job_id)
    assert state in ("pending", "failed")
    assert "2 rows were loaded, but 3 were validated; nothing is committed" in error
    assert await entries_of(conn) == []


async def test_a_pipeline_with_a_failed_step_is_partial_and_one_without_rows_has_failed(
    back: Back, conn: Any, analyst: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pipeline of an ingestion whose recalculation fails, and of one that loads nothing."""

    async def broken(*_: object) -> None:
        raise UsageError("no recalculation today")

    await back.provision()
    monkeypatch.setattr(emissions, "recalculate", broken)

    some, none = await back.ingest(FLIGHTS), await back.ingest("trip_id,unit_id,date,cabin,distance\n,,,,x\n")

    statuses = [(await analyst.get(f"/sync/pipelines/{one.pipeline_id}")).json()["data"]["status"] for one in (some, none)]
    assert statuses == ["partial", "failed"]
