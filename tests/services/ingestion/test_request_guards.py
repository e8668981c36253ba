"""Requests that the routes of ingestion refuse before there is a job."""

from __future__ import annotations

from typing import Any

import pytest
from ingestion_factories import FLIGHTS, YEAR, Back, Client

from factories import value
from holdfast.services.ingestion.models.yaml_file import EXAMPLE, read_model

ENTRIES = {"module": "travel", "det": "flights", "year": YEAR, "file_id": 1}
UNITS = {"year": YEAR, "file_id": 1}


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("dispatch", {**ENTRIES, "file_id": None}),
        ("dispatch", {**ENTRIES, "path": "f.csv"}),
        ("dispatch", {**ENTRIES, "source_job_id": 1}),
        ("dispatch", {**ENTRIES, "api": True}),
        ("dispatch", {**ENTRIES, "mode": "merge"}),
        ("dispatch", {**ENTRIES, "if_waiting": "wait"}),
        ("dispatch", {**ENTRIES, "unit": ""}),
        ("dispatch", {**ENTRIES, "year": 1899}),
        ("dispatch", {**ENTRIES, "year": 2201}),
        ("dispatch", {**ENTRIES, "module": "Travel!"}),
        ("dispatch", {**ENTRIES, "policy": {"max_errors": -1}}),
        ("dispatch", {**ENTRIES, "policy": {"max_error_percent": 101}}),
        ("dispatch", {**ENTRIES, "dialect": {"decimal": ";"}}),
        ("dispatch", {**ENTRIES, "dialect": {"delimiter": ";;"}}),
        ("dispatch", {**ENTRIES, "dialect": {"encoding": "utf-99"}}),
        ("dispatch", {**ENTRIES, "colour": "red"}),
        ("factors", {**UNITS, "path": "f.csv"}),
        ("factors", {**UNITS, "det": "flights"}),
        ("units", {"year": YEAR}),
        ("units", {**UNITS, "source_job_id": 1}),
        ("references", {"name": "Countries", "file_id": 1}),
        ("recalculations", {"year": YEAR, "det": "flights"}),
    ],
)
async def test_a_request_that_cannot_be_done_is_refused_over_http(
    analyst: Client, back: Back, conn: Any, path: str, asked: dict[str, Any]
) -> None:
    await back.provision()
    assert await back.file(FLIGHTS) > 1, "the file 1 exists, so it is not the reason"
    before = await value(conn, "SELECT count(*) FROM holdfast.jobs")

    answer = await analyst.post(f"/api/ingestion/{path}", json=asked)

    assert answer.status_code in (400, 422), answer.text
    assert await value(conn, "SELECT count(*) FROM holdfast.jobs") == before


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("dispatch", {**ENTRIES, "file_id": 999}),
        ("dispatch", {**ENTRIES, "file_id": None, "source_job_id": 999}),
        ("dispatch", {**ENTRIES, "model": "none"}),
        ("factors", {**UNITS, "module": "sport"}),
        ("factors", {**UNITS, "module": "travel", "det": "ships"}),
        ("recalculations", {"year": YEAR, "module": "sport"}),
        ("recalculations", {"year": YEAR, "module": "travel", "det": "ships"}),
    ],
)
async def test_a_request_for_something_that_does_not_exist_is_not_found(
    analyst: Client, back: Back, conn: Any, path: str, asked: dict[str, Any]
) -> None:
    await back.provision()
    before = await value(conn, "SELECT count(*) FROM holdfast.jobs")

    answer = await analyst.post(f"/api/ingestion/{path}", json=asked)

    assert (answer.status_code, answer.json()["code"]) == (404, "NOT_FOUND")
    assert await value(conn, "SELECT count(*) FROM holdfast.jobs") == before


async def test_a_job_without_bad_rows_has_no_file_of_them(analyst: Client, back: Back) -> None:
    await back.provision()
    run = await back.ingest(FLIGHTS)

    answer = await analyst.get(f"/api/ingestion/jobs/{run.job_id}/bad-rows")

    assert (answer.status_code, answer.json()["detail"]) == (404, f"job {run.job_id} has no bad rows")


async def test_a_data_model_is_stored_under_its_own_name_only(ops: Client, conn: Any) -> None:
    answer = await ops.put("/api/ingestion/models/other", json={"definition": read_model(EXAMPLE)})

    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/name")
    assert await value(conn, "SELECT count(*) FROM holdfast.data_models") == 0


async def test_analysts_do_not_change_data_models(analyst: Client, conn: Any) -> None:
    answer = await analyst.put("/api/ingestion/models/co2", json={"definition": read_model(EXAMPLE)})

    assert answer.status_code == 403
    assert await value(conn, "SELECT count(*) FROM holdfast.data_models") == 0
