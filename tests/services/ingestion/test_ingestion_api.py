"""Ingestion over HTTP: uploads, dispatch, the paths of the documents, permissions, bad rows, streams, data models."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from ingestion_factories import FACTORS, FLIGHTS, UNITS, YEAR, Back, Client, entries_of

from factories import rows, state_of, value
from holdfast.api.policy import Role
from holdfast.services.ingestion import dispatch
from holdfast.services.ingestion.models.yaml_file import EXAMPLE, read_model
from holdfast.services.ingestion.policy import ACTIONS, SYNC, VIEW
from holdfast.services.ingestion.setup import Ingestion


async def upload(client: Client, content: str | bytes, name: str = "rows.csv") -> int:
    data = content.encode() if isinstance(content, str) else content
    answer = await client.post("/api/ingestion/files", files={"file": (name, data)})
    assert answer.status_code == 201, answer.text
    return int(answer.json()["data"]["id"])


async def provisioned(client: Client, back: Back) -> None:
    asked = {"year": YEAR, "file_id": await upload(client, UNITS)}
    assert (await client.post("/sync/units", json=asked)).status_code == 202
    await back.harness.drain()


async def test_an_upload_is_streamed_to_the_store_with_its_hash(analyst: Client, here: Ingestion, conn: Any) -> None:
    content = b"a,b\n" + b"1,2\n" * 100_000

    multipart = await analyst.post("/api/ingestion/files", files={"file": ("../../tä.csv", content, "text/csv")})
    raw = await analyst.post("/api/ingestion/files?name=raw.csv", content=content)

    for answer, name in ((multipart, "tä.csv"), (raw, "raw.csv")):
        found = answer.json()["data"]
        assert (answer.status_code, found["name"], found["bytes"]) == (201, name, len(content))
        assert found["sha256"] == hashlib.sha256(content).hexdigest()
        async with here.store() as store:
            assert await store.get(found["path"]) == content
        shown = await analyst.get(answer.headers["location"])
        assert shown.json()["data"] == found
    assert multipart.json()["data"]["sha256"] == raw.json()["data"]["sha256"]


async def test_an_upload_that_is_too_large_is_refused_and_leaves_no_file(analyst: Client, app: Any, tmp_path: Path) -> None:
    app.state.plane.services["ingestion"].largest_upload = 1000

    answer = await analyst.post("/api/ingestion/files", files={"file": ("f.csv", b"x" * 1001)})

    assert (answer.status_code, answer.json()["code"]) == (413, "TOO_LARGE")
    assert "the file has more than 1,000 bytes" in answer.json()["detail"]
    assert [path for path in (tmp_path / "uploads").rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("content_type", "body", "says"),
    [
        ("multipart/form-data", b"x", "no boundary"),
        ("multipart/form-data; boundary=b", b"--b\r\nContent-Disposition: form-data; name=file\r\n\r\nx", "last boundary"),
        (
            "multipart/form-data; boundary=b",
            b"--b\r\nContent-Disposition: form-data; name=other\r\n\r\nx\r\n--b--\r\n",
            "no file in the field 'file'",
        ),
        ("multipart/form-data; boundary=b", b"garbage", "not multipart/form-data"),
    ],
)
async def test_a_body_that_is_no_upload_is_refused(analyst: Client, content_type: str, body: bytes, says: str) -> None:
    answer = await analyst.post("/api/ingestion/files", content=body, headers={"Content-Type": content_type})

    assert answer.status_code == 400
    assert says in answer.json()["detail"]


@pytest.mark.more
async def test_a_pipeline_by_the_paths_of_the_documents(analyst: Client, back: Back, conn: Any) -> None:
    """N-01, N-06, K-46, K-51: dispatch, factors, units and recalculation by the documents' paths, with the status of each."""
    await provisioned(analyst, back)
    factors = {"year": YEAR, "module": "travel", "det": "flights", "file_id": await upload(analyst, FACTORS)}
    assert (await analyst.post("/sync/factors", json=factors)).status_code == 202
    await back.harness.drain()

    asked = {"module": "1", "det": "10", "year": YEAR, "file_id": await upload(analyst, FLIGHTS)}
    made = await analyst.post("/sync/dispatch", json=asked)
    first = made.json()["data"]
    waiting = await analyst.post("/sync/dispatch", json=asked)
    active = await analyst.get("/sync/active-pipelines")
    await back.harness.drain()

    assert (made.status_code, made.headers["location"]) == (202, f"/api/ingestion/jobs/{first['job_id']}")
    assert (waiting.status_code, waiting.json()["code"]) == (409, "SLOT_WAITING")
    assert [one["pipeline_id"] for one in active.json()["data"]] == [first["pipeline_id"]]
    shown = (await analyst.get(f"/api/ingestion/jobs/{first['job_id']}")).json()["data"]
    assert (shown["state"], shown["result"], shown["is_current"]) == ("FINISHED", "SUCCESS", True)
    stored = await value(conn, "SELECT pipeline_id::text FROM holdfast.jobs WHERE id = %s", first["job_id"])
    assert stored == first["pipeline_id"]
    assert (shown["module"], shown["det"], shown["target_type"], shown["ingestion_method"]) == (
        "travel",
        "flights",
        "DATA_ENTRIES",
        "csv",
    )
    assert (await analyst.get(f"/sync/pipelines/{first['pipeline_id']}")).json()["data"]["status"] == "completed"
    by_status = await analyst.get("/sync/jobs/by-status", params={"state": "FINISHED", "job_type": "csv_ingest"})
    assert [one["job_id"] for one in by_status.json()["data"]] == [first["job_id"]]
    latest = await analyst.get(f"/sync/jobs/year/{YEAR}/latest")
    assert {one["job_type"] for one in latest.json()["data"]} == {
        *("unit_sync", "factor_ingest", "csv_ingest", "emission_recalc", "aggregation")
    }
    for path in (f"/sync/recalculate-emissions/travel?year={YEAR}", f"/sync/recalculate-emissions/travel/flights?year={YEAR}"):
        assert (await analyst.post(path)).status_code == 202
        await back.harness.drain()
    status = (await analyst.get("/sync/recalculation-status")).json()["data"]
    assert [(one["det"], one["status"]) for one in status] == [("flights", "up_to_date")]
    assert (await analyst.get("/sync/health/stale-stats?older_than_minutes=0")).json()["data"] == []
    stats = (await analyst.get(f"/api/ingestion/stats?year={YEAR}")).json()["data"]
    assert sum(float(one["kg"]) for one in stats) == pytest.approx(880.25)
    assert (await analyst.get("/sync/workers")).status_code == 200


async def test_a_year_that_is_not_provisioned_is_a_conflict(analyst: Client, back: Back) -> None:
    asked = {"module": "travel", "det": "flights", "year": YEAR, "file_id": await upload(analyst, FLIGHTS)}

    answer = await analyst.post("/api/ingestion/dispatch", json=asked)

    assert (answer.status_code, answer.json()["code"]) == (409, "YEAR_NOT_PROVISIONED")


async def test_the_source_is_a_file_of_the_store_or_of_an_earlier_job(
    analyst: Client, back: Back, conn: Any, here: Ingestion
) -> None:
    await provisioned(analyst, back)
    async with here.store() as store:
        await store.put("incoming/flights.csv", FLIGHTS.encode())
    scope = {"module": "travel", "det": "flights", "year": YEAR}

    dry = (await analyst.post("/sync/dispatch", json={**scope, "path": "incoming/flights.csv", "dry_run": True})).json()["data"]
    await back.harness.drain()
    again = await analyst.post("/sync/dispatch", json={**scope, "source_job_id": dry["job_id"]})
    await back.harness.drain()
    missing = await analyst.post("/sync/dispatch", json={**scope, "path": "incoming/none.csv"})
    outside = await analyst.post("/sync/dispatch", json={**scope, "path": "../../etc/passwd"})
    two = await analyst.post("/sync/dispatch", json={**scope, "file_id": 1, "api": True})

    assert again.status_code == 202
    assert len(await entries_of(conn)) == 3
    assert (missing.status_code, missing.json()["code"]) == (422, "UNREADABLE_FILE")
    assert outside.status_code == 422
    assert two.status_code == 422
    assert "give exactly one of file_id, path, source_job_id and api" in two.text


@pytest.mark.parametrize(
    ("path", "asked", "content"),
    [
        ("dispatch", {"module": "travel", "det": "flights", "year": YEAR}, FLIGHTS),
        ("factors", {"module": "travel", "det": "flights", "year": YEAR}, FACTORS),
        ("units", {"year": YEAR}, UNITS),
        ("references", {"name": "places"}, "code\nP1\n"),
    ],
    ids=["entries", "factors", "units", "references"],
)
async def test_only_the_owner_and_operators_supersede_or_cancel_a_waiting_job(
    as_role: Any, analyst: Client, ops: Client, back: Back, conn: Any, path: str, asked: dict[str, Any], content: str
) -> None:
    await provisioned(analyst, back)
    other = await as_role("analyst", "bob")
    asked = {**asked, "file_id": await upload(analyst, content), "if_waiting": "supersede"}

    async def superseded(client: Client, job_id: int) -> int:
        """Supersede the waiting job; the id of the one that waits then."""
        answer = await client.post(f"/api/ingestion/{path}", json=asked)
        assert (answer.status_code, await state_of(conn, job_id)) == (202, "cancelled"), answer.text
        return int(answer.json()["data"]["job_id"])

    first = (await analyst.post(f"/api/ingestion/{path}", json=asked)).json()["data"]["job_id"]
    before = await rows(conn, "SELECT id, state FROM holdfast.jobs ORDER BY id")
    refused = await other.post(f"/api/ingestion/{path}", json=asked)
    assert (refused.status_code, refused.json()["code"], refused.json()["job_id"]) == (409, "SLOT_WAITING", first)
    assert f"job {first} of token:analyst waits" in refused.json()["detail"]
    assert (await other.post(f"/api/jobs/{first}/cancel")).status_code == 403
    assert await rows(conn, "SELECT id, state FROM holdfast.jobs ORDER BY id") == before

    second = await superseded(analyst, first)
    of_ops = await superseded(ops, second)
    assert (await analyst.post(f"/api/ingestion/{path}", json=asked)).status_code == 409
    await ops.post(f"/api/jobs/{of_ops}/cancel")
    last = (await analyst.post(f"/api/ingestion/{path}", json=asked)).json()["data"]["job_id"]
    assert (await analyst.post(f"/api/jobs/{last}/cancel")).status_code == 202
    assert await state_of(conn, last) == "cancelled"


async def test_a_recalculation_belongs_to_who_started_it_and_not_to_who_joins_it(
    as_role: Any, analyst: Client, back: Back, conn: Any
) -> None:
    await dispatch.dispatch_recalculation(conn, model="co2", year=YEAR, module="travel", by="a program")
    path = "/api/ingestion/recalculations"

    for asked in ({"module": "travel"}, {"module": "travel", "det": "flights"}):
        for client in (analyst, await as_role("analyst", f"bob{len(asked)}")):
            assert (await client.post(path, json={**asked, "year": YEAR})).status_code == 202

    owners = await rows(conn, "SELECT kind, owner FROM holdfast.jobs ORDER BY id")
    assert owners == [
        ("ingestion.module_emission_recalc", None),
        ("ingestion.emission_recalc", "token:analyst"),
        ("ingestion.aggregation", "token:analyst"),
    ]


async def test_bad_rows_are_listed_page_by_page_and_downloaded(analyst: Client, back: Back) -> None:
    await provisioned(analyst, back)
    content = FLIGHTS + "".join(f"X{n},U1,2024-01-01,economy,many,\n" for n in range(3))
    asked = {"module": "travel", "det": "flights", "year": YEAR, "file_id": await upload(analyst, content)}
    job_id = (await analyst.post("/sync/dispatch", json=asked)).json()["data"]["job_id"]
    await back.harness.drain()

    page = (await analyst.get(f"/api/ingestion/jobs/{job_id}/errors?limit=2")).json()
    rest = (await analyst.get(f"/api/ingestion/jobs/{job_id}/errors?limit=2&cursor={page['page']['next_cursor']}")).json()
    file = await analyst.get(f"/api/ingestion/jobs/{job_id}/bad-rows")

    assert [one["line"] for one in page["data"] + rest["data"]] == [5, 6, 7]
    assert page["data"][0] == {"line": 5, "column": "distance", "value": "many", "reason": "is not a decimal number"}
    assert file.headers["content-type"].startswith("text/csv")
    assert file.text.splitlines()[1] == "X0,U1,2024-01-01,economy,many,,5,distance: is not a decimal number"


async def test_a_stream_ends_with_the_job_and_is_not_repeated(analyst: Client, back: Back) -> None:
    """K-50, K-51: progress by server-sent events, with Last-Event-ID, without a database session per subscriber."""
    await provisioned(analyst, back)
    asked = {"module": "travel", "det": "flights", "year": YEAR, "file_id": await upload(analyst, FLIGHTS)}
    job_id = (await analyst.post("/sync/dispatch", json=asked)).json()["data"]["job_id"]
    await back.harness.drain()

    text = (await analyst.get(f"/api/ingestion/jobs/{job_id}/events")).text
    last = next(line.removeprefix("id: ") for line in text.splitlines() if line.startswith("id: "))
    again = await analyst.get(f"/api/ingestion/jobs/{job_id}/events", headers={"Last-Event-ID": last})
    by_document = await analyst.get(f"/sync/jobs/{job_id}/stream")

    names = [line.removeprefix("event: ") for line in text.splitlines() if line.startswith("event: ")]
    data = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]
    assert names == ["ingestion", "stream_closed"]
    assert (data[0]["state"], data[1]["result"]) == ("FINISHED", "SUCCESS")
    assert again.status_code == 204
    assert "event: stream_closed" in by_document.text
    assert (await analyst.get("/api/ingestion/jobs/999/events")).status_code == 404


async def test_the_roles_and_the_permissions_of_the_documents(viewer: Client, ops: Client, back: Back) -> None:
    asked = {"module": "travel", "det": "flights", "year": YEAR, "file_id": 1}

    assert (await viewer.get("/api/ingestion/jobs")).status_code == 200
    assert (await viewer.post("/sync/dispatch", json=asked)).status_code == 403
    assert (await viewer.post("/api/ingestion/files", content=b"x")).status_code == 403
    assert ACTIONS["ingestion.dispatch"].permission == SYNC
    assert ACTIONS["ingestion.read"].permission == VIEW
    assert Role.VIEWER not in ACTIONS["ingestion.dispatch"].roles


async def test_data_models_have_versions(ops: Client, conn: Any) -> None:
    definition = read_model(EXAMPLE)
    put = {"definition": definition, "change_description": "first"}

    first = (await ops.put("/api/ingestion/models/co2", json=put)).json()["data"]
    same = (await ops.put("/api/ingestion/models/co2", json=put)).json()["data"]
    definition["modules"][0]["data_entry_types"][0]["columns"].append({"name": "purpose"})
    second = (await ops.put("/api/ingestion/models/co2", json={"definition": definition})).json()["data"]

    assert (first["version"], same["version"], second["version"]) == (1, 1, 2)
    versions = (await ops.get("/api/ingestion/models/co2/versions")).json()["data"]
    assert [one["version"] for one in versions] == [2, 1]
    old = (await ops.get("/api/ingestion/models/co2?version=1")).json()["data"]
    assert old["definition"] == first["definition"]
    assert (await ops.get("/api/ingestion/models/none")).status_code == 404
    assert len((await ops.get("/api/ingestion/models")).json()["data"]) == 1
    assert await value(conn, "SELECT count(*) FROM holdfast.data_entry_types") == 4


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"key": ["nothing"]}, "there is no column 'nothing'"),
        ({"key": ["distance"]}, "column 'distance' is decimal; a key has the types"),
        ({"key": ["traveller"]}, "column 'traveller' is part of the key and must have `required: true`"),
        ({"amount": "cabin"}, "column 'cabin' must be integer or decimal"),
        ({"columns": [{"name": "a", "min": 1}]}, "column 'a' is text; only numbers have min and max"),
        ({"columns": [{"name": "a", "type": "date", "format": "YY"}]}, "format 'YY' is not supported"),
        ({"columns": [{"name": "a"}, {"name": "b", "headers": ["A"]}]}, "'a' is a duplicate of"),
        ({"colour": "red"}, "Extra inputs are not permitted"),
    ],
)
async def test_mistakes_in_a_data_model_are_listed(ops: Client, change: dict[str, Any], says: str) -> None:
    definition = read_model(EXAMPLE)
    definition["modules"][0]["data_entry_types"][0] |= change

    answer = await ops.put("/api/ingestion/models/co2", json={"definition": definition})

    assert (answer.status_code, answer.json()["code"]) == (422, "VALIDATION_FAILED")
    assert says in json.dumps(answer.json(), ensure_ascii=False).replace("\\\\", "\\")


async def test_metrics_and_inventory(ops: Client, back: Back) -> None:
    await provisioned(ops, back)

    metrics = (await ops.get("/metrics")).text
    state = (await ops.get("/api/ops/state")).json()["data"]

    assert 'ingestion_jobs{job_type="unit_sync",result="SUCCESS"} 1.0' in metrics
    assert 'ingestion_jobs{job_type="csv_ingest",result="ERROR"} 0.0' in metrics  # an alert sees the first error as an increase
    assert "ingestion_statistics_lag_seconds 0.0" in metrics
    assert state["ingestions"] == {"SUCCESS": {"value": 1, "capped": False}}, state["ingestions"]
