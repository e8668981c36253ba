"""The export jobs of document 002 over HTTP: claim, submit, poll, complete; every update fenced, every claim a lease."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from export_factories import mapping
from factories import rows, state_of, value
from holdfast.jobs.rescue import rescue

Client = httpx.AsyncClient


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


async def update(worker: Client, one: dict[str, Any], **said: Any) -> httpx.Response:
    return await worker.patch(f"/export-jobs/{one['id']}", json=said, headers={"If-Match": f'"{one["attempt_id"]}"'})


async def polled(worker: Client, conn: Any) -> list[dict[str, Any]]:
    await conn.execute("UPDATE holdfast.jobs SET next_poll_at = clock_timestamp() WHERE state = 'submitted'")
    data: list[dict[str, Any]] = (await worker.get("/export-jobs/pollable")).json()["data"]
    return data


async def test_claim_submit_poll_and_complete_as_the_document_writes_it(ops: Client, worker: Client, conn: Any) -> None:
    """W-03, W-04, W-07, K-02, K-35, K-40: nodes first, everything on the claim, backoff kept in the database."""
    jobs = await make(ops)
    claims = await claimed(worker)
    assert [(one["id"], one["job_type"], one["starburst_role"]) for one in claims] == [
        (jobs[0], "node", "risk"),
        (jobs[1], "node", "risk"),
        (jobs[2], "edge", "risk"),
    ]
    assert claims[2]["column_names"] == ["customer_id", "account_number", "since"]
    assert await claimed(worker) == [], "what is claimed is nobody else's"

    for one in claims[:2]:
        done = await update(worker, one, status="completed", row_count=5, size_bytes=50)
        assert (done.status_code, done.json()["data"]["status"]) == (200, "completed")
    edge = claims[2]
    submitted = await update(worker, edge, status="submitted", starburst_query_id="q1", next_uri="http://t/1")
    assert (submitted.json()["data"]["status"], submitted.json()["data"]["poll_count"]) == ("submitted", 1)
    assert (await worker.get("/export-jobs/pollable")).json()["data"] == [], "not before its time"

    (poll,) = await polled(worker, conn)
    assert (poll["starburst_query_id"], poll["next_uri"], poll["gcs_path"]) == ("q1", "http://t/1", edge["gcs_path"])
    going = await update(worker, poll, next_uri="http://t/2")
    assert (going.json()["data"]["next_uri"], going.json()["data"]["poll_count"]) == ("http://t/2", 2)
    (poll,) = await polled(worker, conn)
    await update(worker, poll, status="completed", row_count=9, size_bytes=90)

    snapshot = (await rows(conn, "SELECT state, node_counts, edge_counts, size_bytes FROM holdfast.snapshots"))[0]
    assert snapshot == ("ready", {"Customer": 5, "Account": 5}, {"OWNS": 9}, 190)


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
    assert (await update(worker, new, status="completed", row_count=1, size_bytes=1)).status_code == 200
    assert (await worker.patch(f"/export-jobs/{old['id']}", json={})).status_code == 428


async def test_an_update_renews_the_lease_so_a_long_export_is_never_taken(ops: Client, worker: Client, conn: Any) -> None:
    """E-01, K-22: ten minutes of silence, and not ten minutes of work."""
    await make(ops)
    (one,) = await claimed(worker, limit=1)
    await conn.execute("UPDATE holdfast.workers SET lease_until = clock_timestamp() + interval '1 s'")

    assert (await update(worker, one, progress=0.4, message="4 of 10 files")).status_code == 200

    assert await value(conn, "SELECT min(lease_until) > clock_timestamp() + interval '9 minutes' FROM holdfast.workers")
    assert await rows(conn, "SELECT progress::float8, message FROM holdfast.jobs WHERE id = %s", one["id"]) == [
        (pytest.approx(0.4, abs=0.01), "4 of 10 files")
    ]


async def test_an_update_that_is_not_whole_is_refused(ops: Client, worker: Client, analyst: Client) -> None:
    await make(ops)
    (one,) = await claimed(worker, limit=1)

    for said in ({"status": "submitted"}, {"status": "completed", "row_count": 1}, {"status": "failed"}, {"status": "done"}):
        assert (await update(worker, one, **said)).status_code == 422, said
    assert (await analyst.post("/export-jobs/claim", json={"worker_id": "me"})).status_code == 403
