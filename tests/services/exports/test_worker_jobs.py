"""The export jobs of document 002 over HTTP: claim, submit, poll, complete; every update fenced, every claim a lease."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx2
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from export_factories import OWNS, mapping
from factories import clock, rows, state_of, value
from holdfast.jobs.rescue import rescue
from holdfast.services.exports.setup import Exports
from holdfast.settings import settings

Client = httpx2.AsyncClient
NOW = "2026-01-01T00:00:00+00:00"
TEN_MINUTES_SINCE = """
    SELECT every(lease_until - interval '10 minutes' BETWEEN %s AND clock_timestamp()) FROM holdfast.workers
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The API may look at what is written there."""
    monkeypatch.setenv("HOLDFAST_EXPORT_DIRS", str(tmp_path))
    settings.cache_clear()
    yield
    settings.cache_clear()


@pytest.fixture
async def worker(as_role: Any) -> Client:
    client: Client = await as_role("worker")
    return client


async def make(ops: Client, use_case: str = "risk") -> list[int]:
    made = (await ops.post("/api/mappings", json=mapping())).json()["data"]
    answer = await ops.post("/api/snapshots", json={"mapping_id": made["id"]}, headers={"X-Use-Case-Id": use_case})
    return [one["id"] for one in answer.json()["data"]["exports"]]


async def claimed(worker: Client, limit: int = 10) -> list[dict[str, Any]]:
    answer = await worker.post("/export-jobs/claim", json={"worker_id": "pod-1", "limit": limit})
    assert answer.status_code == 200, answer.text
    data: list[dict[str, Any]] = answer.json()["data"]
    return data


async def update(worker: Client, one: dict[str, Any], **said: Any) -> httpx2.Response:
    return await worker.patch(f"/export-jobs/{one['id']}", json=said, headers={"If-Match": f'"{one["attempt_id"]}"'})


def write(one: dict[str, Any], rows: int) -> int:
    """What the engine writes to the place of a claim; how large it is."""
    file = Path(one["location"]) / "part-0.parquet"
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"a": list(range(rows))}), file)
    return file.stat().st_size


async def complete(worker: Client, one: dict[str, Any], rows: int = 1) -> httpx2.Response:
    """As the worker of the document does it, which names no file."""
    size = write(one, rows)
    return await update(worker, one, status="completed", row_count=rows, size_bytes=size, completed_at="2026-01-01T00:00:00Z")


async def polled(worker: Client, conn: Any) -> list[dict[str, Any]]:
    await conn.execute("UPDATE holdfast.jobs SET next_poll_at = clock_timestamp() WHERE state = 'submitted'")
    data: list[dict[str, Any]] = (await worker.get("/export-jobs/pollable")).json()["data"]
    return data


async def test_claim_submit_poll_and_complete_as_the_document_writes_it(ops: Client, worker: Client, conn: Any) -> None:
    """W-03, W-04, W-07, K-02, K-11, K-35, K-40, Z-05: nodes first, everything on the claim, backoff kept in the database."""
    jobs = await make(ops)
    await conn.execute("UPDATE holdfast.jobs SET payload = payload || %s::jsonb", ['{"catalog": "shop"}'])
    claims = await claimed(worker)
    assert [(one["id"], one["job_type"], one["starburst_role"]) for one in claims] == [
        (jobs[0], "node", "risk"),
        (jobs[1], "node", "risk"),
        (jobs[2], "edge", "risk"),
    ]
    assert claims[2]["column_names"] == ["customer_id", "account_number", "since"]
    assert {one["starburst_catalog"] for one in claims} == {"shop"}
    assert claims[2]["sql"] == OWNS["sql"]
    assert all(one["gcs_path"] == one["location"] for one in claims)
    assert all(one["gcs_path"].endswith(f"/attempt-{one['attempt_id']}") for one in claims)
    other = await worker.post("/export-jobs/claim", json={"worker_id": "pod-2"})
    assert other.json()["data"] == [], "what is claimed is nobody else's"

    for one in claims[:2]:
        done = await complete(worker, one, rows=5)
        assert (done.status_code, done.json()["data"]["status"]) == (200, "completed"), done.text
    edge = claims[2]
    submission = {
        "starburst_query_id": "q1",
        "next_uri": "http://t/1",
        "next_poll_at": NOW,
        "poll_count": 1,
        "submitted_at": NOW,
    }
    submitted = await update(worker, edge, status="submitted", **submission)
    assert (submitted.json()["data"]["status"], submitted.json()["data"]["poll_count"]) == ("submitted", 1)
    kept = (await ops.get(f"/api/export-jobs/{edge['id']}")).json()["data"]
    submitted_at, next_poll_at = [datetime.fromisoformat(kept[name]) for name in ("submitted_at", "next_poll_at")]
    assert submitted_at > datetime.fromisoformat(NOW), "the database has its own clock"
    assert (next_poll_at - submitted_at).total_seconds() == pytest.approx(2, abs=0.5)
    await conn.execute("UPDATE holdfast.jobs SET next_poll_at = next_poll_at + interval '1 hour' WHERE id = %s", [edge["id"]])
    assert (await worker.get("/export-jobs/pollable")).json()["data"] == [], "not before its time"

    (poll,) = await polled(worker, conn)
    assert (poll["starburst_query_id"], poll["next_uri"], poll["gcs_path"]) == ("q1", "http://t/1", edge["location"])
    going = await update(worker, poll, next_uri="http://t/2", next_poll_at=NOW, poll_count=2)
    assert (going.json()["data"]["next_uri"], going.json()["data"]["poll_count"]) == ("http://t/2", 2)
    (poll,) = await polled(worker, conn)
    assert (await complete(worker, poll, rows=9)).status_code == 200

    snapshot = (await rows(conn, "SELECT state, node_counts, edge_counts FROM holdfast.snapshots"))[0]
    assert snapshot == ("ready", {"Customer": 5, "Account": 5}, {"OWNS": 9})


async def test_w_04_a_claim_without_a_limit_takes_ten_jobs(ops: Client, worker: Client) -> None:
    """W-04."""
    await make(ops)
    for _ in range(3):
        await ops.post("/api/snapshots", json={"mapping_id": 1})

    claims = (await worker.post("/export-jobs/claim", json={"worker_id": "pod-1"})).json()["data"]

    assert len(claims) == 10, "of twelve"


async def test_the_failure_of_the_document_is_taken_with_its_time(ops: Client, worker: Client) -> None:
    await make(ops)
    (one,) = await claimed(worker, limit=1)

    failed = await update(worker, one, status="failed", error_message="no such table", completed_at=NOW)

    assert (failed.status_code, failed.json()["data"]["status"]) == (200, "failed"), failed.text


async def test_what_is_submitted_again_goes_where_the_first_went(ops: Client, worker: Client, conn: Any) -> None:
    """The engine was told a place once; a poll that says `submitted` again does not move it."""
    await make(ops)
    (one,) = await claimed(worker, limit=1)
    await update(worker, one, status="submitted", starburst_query_id="q1", next_uri="http://t/1")
    (poll,) = await polled(worker, conn)

    await update(worker, poll, status="submitted", starburst_query_id="q1", next_uri="http://t/2")

    (again,) = await polled(worker, conn)
    assert (again["gcs_path"], again["next_uri"]) == (one["gcs_path"], "http://t/2")


async def test_rows_have_files_or_are_not_taken(ops: Client, worker: Client, conn: Any, here: Exports) -> None:
    """Else a snapshot is ready whose files nobody could find, or remove."""
    await make(ops)
    (one,) = await claimed(worker, limit=1)
    said = {"status": "completed", "row_count": 3, "size_bytes": 1}

    empty = await update(worker, one, **said)
    assert (empty.status_code, "is empty; send `files`" in empty.json()["detail"]) == (422, True), empty.text
    write(one, 3)
    stores, here.stores = here.stores, replace(here.stores, allowed=(Path("/nowhere"),))
    closed = await update(worker, one, **said)
    here.stores = stores
    assert (closed.status_code, "the server cannot list" in closed.json()["detail"]) == (422, True), closed.text
    (Path(one["gcs_path"]) / "broken.parquet").write_bytes(b"not Parquet at all, and no footer either")
    assert (await update(worker, one, **said)).status_code == 422
    assert await state_of(conn, one["id"]) == "running"
    (Path(one["gcs_path"]) / "broken.parquet").unlink()

    done = await update(worker, one, **said)

    (file,) = done.json()["data"]["files"]
    assert (file["path"], file["rows"]) == (f"attempt-{one['attempt_id']}/part-0.parquet", 3)


async def test_everything_at_the_place_of_a_snapshot_goes_with_it(ops: Client, worker: Client, conn: Any) -> None:
    """Also what is named by no export: it has failed, or had no rows."""
    await make(ops)
    claims = await claimed(worker)
    for one in claims:
        await update(worker, one, status="completed", row_count=0, size_bytes=0)
    ((snapshot_id, place),) = await rows(conn, "SELECT id, location FROM holdfast.snapshots")

    assert (await ops.delete(f"/api/snapshots/{snapshot_id}")).status_code == 200

    removed = await rows(conn, "SELECT kind, detail FROM holdfast.effects WHERE kind = 'export.files'")
    assert removed == [("export.files", {"to": place})]


async def test_a_replaced_attempt_changes_nothing(ops: Client, worker: Client, conn: Any) -> None:
    """E-04, K-18."""
    await make(ops)
    (old,) = await claimed(worker, limit=1)
    await conn.execute("UPDATE holdfast.workers SET lease_until = clock_timestamp() - interval '1 s'")
    await rescue(conn)
    (new,) = [one for one in await claimed(worker) if one["id"] == old["id"]]

    late = await update(worker, old, status="failed", error_message="I was slow")

    assert (late.status_code, late.json()["code"]) == (412, "STALE_ATTEMPT")
    assert await state_of(conn, old["id"]) == "running"
    assert (await complete(worker, new)).status_code == 200
    assert (await worker.patch(f"/export-jobs/{old['id']}", json={})).status_code == 428


async def test_an_update_renews_the_lease_so_a_long_export_is_never_taken(ops: Client, worker: Client, conn: Any) -> None:
    """X-01, E-01, K-22: ten minutes of silence, and not ten minutes of work."""
    await make(ops)
    before = await clock(conn)
    (one,) = await claimed(worker, limit=1)
    assert one["lease_seconds"] == 600
    assert await value(conn, TEN_MINUTES_SINCE, before)
    await conn.execute("UPDATE holdfast.workers SET lease_until = clock_timestamp() + interval '1 s'")
    before = await clock(conn)

    assert (await update(worker, one, progress=0.4, message="4 of 10 files")).status_code == 200

    assert await value(conn, TEN_MINUTES_SINCE, before)
    assert await rows(conn, "SELECT progress::float8, message FROM holdfast.jobs WHERE id = %s", one["id"]) == [
        (pytest.approx(0.4, abs=0.01), "4 of 10 files")
    ]


async def test_an_update_that_is_not_whole_is_refused(ops: Client, worker: Client, analyst: Client) -> None:
    await make(ops)
    (one,) = await claimed(worker, limit=1)

    for said in ({"status": "submitted"}, {"status": "completed", "row_count": 1}, {"status": "failed"}, {"status": "done"}):
        assert (await update(worker, one, **said)).status_code == 422, said
    assert (await analyst.post("/export-jobs/claim", json={"worker_id": "me"})).status_code == 403


LEADS_AWAY = [
    "../../../other/secret.parquet",
    "%2e%2e/secret.parquet",
    "a/%2E%2E/b.parquet",
    "/etc/passwd",
    "gs://other-bucket/a.parquet",
    "a\\..\\b.parquet",
    "a\u0001.parquet",
    "a\u202eb.parquet",
    "a//b.parquet",
    "./a.parquet",
    "/".join(["n" * 204] * 5) + "/abcde",
    "n" * 256,
    "\u2025/secret.parquet",  # each of these becomes `..` or a slash when it is normalised
    "\uff0e\uff0e/secret.parquet",
    "a\uff0fb.parquet",
    "a\uff05b.parquet",
    "attempt-6b8a2ad4-8a4a-4b6e-9d5c-0f8d5a1a2b3c/of-another.parquet",
]


@pytest.mark.parametrize("path", LEADS_AWAY)
async def test_f_74_a_path_that_leaves_its_prefix_is_refused_and_nothing_is_stored(
    ops: Client, worker: Client, conn: Any, path: str
) -> None:
    await make(ops)
    (one,) = await claimed(worker, limit=1)

    answer = await update(worker, one, status="completed", row_count=1, size_bytes=1, files=[{"path": path}])

    assert answer.status_code == 422, answer.text
    assert await state_of(conn, one["id"]) == "running"


async def test_files_are_kept_below_the_attempt_that_wrote_them(ops: Client, worker: Client, conn: Any) -> None:
    await make(ops)
    first, second, third = await claimed(worker)
    mine = f"attempt-{first['attempt_id']}"
    files = [{"path": "part-0.parquet"}, {"path": f"{mine}/part-1.parquet"}]
    done = await update(worker, first, status="completed", row_count=1, size_bytes=1, files=files)
    assert [file["path"] for file in done.json()["data"]["files"]] == [f"{mine}/part-0.parquet", f"{mine}/part-1.parquet"]

    await update(worker, second, status="failed", error_message="no")
    await update(worker, third, status="submitted", starburst_query_id="q1", next_uri="http://t/1")
    (poll,) = await polled(worker, conn)
    done = await update(worker, poll, status="completed", row_count=1, size_bytes=1, files=[{"path": "part-0.parquet"}])
    written_by = f"attempt-{third['attempt_id']}"
    assert poll["gcs_path"].endswith(written_by)
    assert [file["path"] for file in done.json()["data"]["files"]] == [f"{written_by}/part-0.parquet"]


async def alive(conn: Any) -> int:
    return int(await value(conn, "SELECT count(*) FROM holdfast.workers WHERE stopped_at IS NULL"))


async def test_who_claims_nothing_is_no_worker_and_who_holds_nothing_any_more_is_none_either(
    ops: Client, worker: Client, conn: Any
) -> None:
    """Else each look of an idle pod would be one more worker, for ten minutes."""
    for _ in range(3):
        assert await claimed(worker) == []
        assert (await worker.get("/export-jobs/pollable")).json()["data"] == []
    assert await value(conn, "SELECT count(*) FROM holdfast.workers") == 0

    await make(ops)
    *claims, last = await claimed(worker)
    for one in claims:
        assert await alive(conn) == 1
        await complete(worker, one)
    assert await alive(conn) == 1, "it holds one more"
    await update(worker, last, status="submitted", starburst_query_id="q1", next_uri="http://t/1")
    assert await alive(conn) == 0


async def test_who_only_looks_sees_neither_the_sql_nor_where_the_engine_hands_out_rows(
    ops: Client, worker: Client, viewer: Client, analyst: Client, as_role: Any, conn: Any
) -> None:
    made = (await analyst.post("/api/mappings", json=mapping())).json()["data"]
    asked = {"mapping_id": made["id"]}
    snapshot = (await ops.post("/api/snapshots", json=asked, headers={"X-Use-Case-Id": "risk"})).json()["data"]["snapshot"]
    await conn.execute("UPDATE holdfast.snapshots SET owner = 'token:analyst'")
    claims = await claimed(worker)
    for one in claims:
        await update(worker, one, status="submitted", starburst_query_id="q1", next_uri="http://trino/v1/q1/slug")
    one_of_them = f"/api/export-jobs/{claims[0]['id']}"
    other = await as_role("analyst", "bob")

    async def seen(client: Client) -> set[tuple[bool, bool]]:
        listed = (await client.get("/api/export-jobs")).json()["data"]
        of_snapshot = (await client.get(f"/api/snapshots/{snapshot['id']}")).json()["data"]["exports"]
        single = await client.get(one_of_them)
        found = [*listed, *of_snapshot, *([single.json()["data"]] if single.status_code == 200 else [])]
        return {(one["sql"] is not None, one["next_uri"] is not None) for one in found}

    assert await seen(viewer) == {(False, False)}
    assert await seen(analyst) == await seen(ops) == {(True, True)}
    assert await seen(other) == {(False, False)}
    assert (await other.get(one_of_them)).status_code == 404
    assert (await other.get("/api/export-jobs")).json()["data"] == []


async def test_w_04_a_worker_asks_how_a_snapshot_stands_and_ends_none_that_has_not(
    ops: Client, worker: Client, analyst: Client, conn: Any
) -> None:
    """W-04, W-05, W-17: status if pending, the completeness check and finalise, by what the exports say."""
    await make(ops)
    (snapshot_id,) = (await rows(conn, "SELECT id FROM holdfast.snapshots"))[0]
    place = f"/api/internal/snapshots/{snapshot_id}"
    assert (await worker.get(f"{place}/status")).json()["data"]["status"] == "pending"
    claims = await claimed(worker)
    said = (await worker.patch(f"{place}/status", json={"status": "creating"})).json()["data"]
    assert (said["status"], said["all_complete"]) == ("creating", False)
    early = await worker.post(f"{place}/finalize", json={"success": True, "size_bytes": 7})
    assert (early.status_code, early.json()["code"]) == (409, "WRONG_STATE")

    for one in claims[:2]:
        await update(worker, one, status="completed", row_count=5, size_bytes=50, files=[{"path": "a.parquet"}])
    await update(worker, claims[2], status="failed", error_message="no such table")

    listed = (await worker.get(f"{place}/export-jobs")).json()["data"]
    assert [(one["id"], one["status"]) for one in listed] == [
        (one["id"], status) for one, status in zip(claims, ["completed", "completed", "failed"], strict=True)
    ]
    seen = (await worker.get(f"{place}/status")).json()["data"]
    assert (seen["status"], seen["all_complete"], seen["any_failed"]) == ("failed", True, True)
    assert (seen["first_error"], seen["total_size"]) == ("edge OWNS: no such table", 100)
    assert (await worker.post(f"{place}/finalize", json={"success": True})).status_code == 409
    assert (await worker.post(f"{place}/finalize", json={"success": False})).json()["data"] == seen
    assert (await worker.get("/api/internal/snapshots/99999/status")).status_code == 404
    assert (await analyst.get(f"{place}/status")).status_code == 403


async def test_w_17_a_snapshot_whose_last_end_went_unseen_is_ended_by_a_worker_that_asks(
    ops: Client, worker: Client, conn: Any
) -> None:
    """The trigger was switched off, as for a restore: the document's own finalise is a safety net, too."""
    await make(ops)
    claims = await claimed(worker)
    (snapshot_id,) = (await rows(conn, "SELECT id FROM holdfast.snapshots"))[0]
    await conn.execute("ALTER TABLE holdfast.jobs DISABLE TRIGGER USER")
    try:
        for one in claims:
            await conn.execute(
                "UPDATE holdfast.jobs SET state = 'completed', attempt_id = NULL, worker_id = NULL, deadline_at = NULL, "
                "finished_at = clock_timestamp(), result = %s WHERE id = %s",
                ['{"rows": 3, "bytes": 30, "files": [], "columns": []}', one["id"]],
            )
    finally:
        await conn.execute("ALTER TABLE holdfast.jobs ENABLE TRIGGER USER")

    ended = await worker.post(f"/api/internal/snapshots/{snapshot_id}/finalize", json={"success": True})

    assert ended.status_code == 200, ended.text
    assert (ended.json()["data"]["status"], ended.json()["data"]["total_size"]) == ("ready", 90)
