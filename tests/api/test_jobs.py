"""Jobs over HTTP: made, listed, looked at, stopped, run again, taken from the silent."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from factories import add, end, hold, moves_of, rows, silence, state_of, take, value
from holdfast.jobs import control
from holdfast.jobs.cancel import cancel
from holdfast.jobs.model import JobId, NewJob
from holdfast.jobs.outcome import Done, Fail

Client = httpx2.AsyncClient


async def test_enqueue_returns_202_with_the_location(analyst: Client, conn: Any) -> None:
    answer = await analyst.post("/api/jobs", json={"kind": "invoice.render", "payload": {"invoice_id": 7}})

    assert answer.status_code == 202, answer.text
    made = answer.json()["data"]
    assert answer.headers["Location"] == f"/api/jobs/{made['id']}"
    assert answer.headers["Retry-After"] == "1"
    assert made["created"] is True
    assert made["job"]["payload"] == {"invoice_id": 7}
    shown = await analyst.get(answer.headers["Location"])
    assert shown.json()["data"] == made["job"]
    assert await rows(conn, "SELECT actor, role, action, object, outcome FROM holdfast.audit") == [
        ("token:analyst", "analyst", "jobs.enqueue", f"job/{made['id']}", "done")
    ]


async def test_busy_lock_with_reject_returns_409_with_the_holder(analyst: Client, conn: Any) -> None:
    """K-26: 409, and nothing was written."""
    asked = {"kind": "k", "locks": [{"key": "table:orders", "when_busy": "reject"}]}
    first = (await analyst.post("/api/jobs", json=asked)).json()["data"]["id"]

    refused = await analyst.post("/api/jobs", json=asked)

    problem = refused.json()
    assert (refused.status_code, problem["code"]) == (409, "LOCK_BUSY")
    assert (problem["lock_key"], problem["holder_job_id"]) == ("table:orders", first)
    assert f"job {first}" in problem["detail"]
    assert await rows(conn, "SELECT id FROM holdfast.jobs") == [(first,)]
    await cancel(conn, JobId(first), actor="ada")
    assert (await analyst.post("/api/jobs", json=asked)).status_code == 202


async def test_caller_cannot_make_a_job_current(analyst: Client, conn: Any) -> None:
    """K-32."""
    refused = await analyst.post("/api/jobs", json={"kind": "k", "slot_key": "s", "is_current": True})

    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/body/is_current")
    assert await rows(conn, "SELECT id FROM holdfast.jobs") == []


@pytest.mark.parametrize("waits", [{"slot_key": "s"}, {"after": [1]}])
async def test_reject_lock_with_parents_is_refused(analyst: Client, conn: Any, waits: Any) -> None:
    asked = {"kind": "k", "locks": [{"key": "t", "when_busy": "reject"}], **waits}

    refused = await analyst.post("/api/jobs", json=asked)

    assert (refused.status_code, await rows(conn, "SELECT id FROM holdfast.jobs")) == (422, [])
    assert "when_busy='wait'" in refused.json()["detail"]


async def test_viewer_does_not_see_payloads(viewer: Client, conn: Any) -> None:
    job_id = await add(conn, payload={"salary": 1})

    shown = (await viewer.get(f"/api/jobs/{job_id}")).json()["data"]

    assert (shown["kind"], shown["payload"], shown["result"]) == ("k", None, None)
    listed = (await viewer.get("/api/jobs")).json()["data"]
    assert [job["payload"] for job in listed] == [None]


async def test_jobs_are_filtered_by_time_failure_and_text(viewer: Client, conn: Any) -> None:
    failed = await hold(conn, kind="invoice.render", max_attempts=1)
    await end(conn, failed, Fail("no ink"))
    await add(conn, kind="other")
    (alike,) = (await viewer.get("/api/failures")).json()["data"]

    async def found(**asked: str) -> list[int]:
        answer = await viewer.get("/api/jobs", params=asked)
        assert answer.status_code == 200, answer.text
        return [job["id"] for job in answer.json()["data"]]

    assert await found(fingerprint=alike["fingerprint"]) == [failed.id] == await found(q="no INK")
    assert len(await found(created_after="2026-01-01T00:00:00Z")) == 2
    assert await found(created_before="2026-01-01T00:00:00+02:00") == []
    assert (await viewer.get("/api/jobs", params={"created_after": "yesterday"})).status_code == 422


async def test_unknown_job_returns_a_problem_with_advice(viewer: Client) -> None:
    answer = await viewer.get("/api/jobs/4711", headers={"X-Request-Id": "mine-1"})

    assert answer.status_code == 404
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.headers["X-Request-Id"] == "mine-1"
    assert answer.json() == {
        "type": "/problems/not-found",
        "title": "Not found",
        "status": 404,
        "detail": "there is no job 4711",
        "code": "NOT_FOUND",
        "what_to_do": "Check the path and the id; ended jobs are removed after the retention time.",
        "instance": "/api/jobs/4711",
        "request_id": "mine-1",
    }
    meaning = await viewer.get(answer.json()["type"])
    assert meaning.json()["data"]["code"] == "NOT_FOUND"


async def test_k_62_waiting_job_is_cancelled_and_an_ended_one_is_not(ops: Client, conn: Any) -> None:
    job_id = await add(conn)

    answer = await ops.post(f"/api/jobs/{job_id}/cancel", json={"reason": "wrong year"})

    assert answer.status_code == 202
    assert answer.json()["data"]["state"] == "cancelled"
    assert await rows(conn, "SELECT actor, reason FROM holdfast.history") == [("token:ops", "wrong year")]
    again = await ops.post(f"/api/jobs/{job_id}/cancel", json={"reason": "wrong year"})
    assert (again.status_code, again.json()["code"]) == (409, "WRONG_STATE")
    assert await value(conn, "SELECT count(*) FROM holdfast.audit WHERE action = 'jobs.cancel'") == 1


@pytest.mark.parametrize("act", ["cancel", "retry"])
async def test_operator_needs_a_reason_for_jobs_of_others(act: str, ops: Client, analyst: Client, conn: Any) -> None:
    """Q-05: the audit is there to be asked why."""

    async def ready(job_id: int) -> int:
        if act == "retry":
            await cancel(conn, JobId(job_id), actor="test")
        return job_id

    own = await ready((await ops.post("/api/jobs", json={"kind": "k"})).json()["data"]["id"])
    foreign = await ready((await analyst.post("/api/jobs", json={"kind": "k"})).json()["data"]["id"])
    before = await state_of(conn, foreign)

    refused = await ops.post(f"/api/jobs/{foreign}/{act}")

    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/body/reason")
    assert await state_of(conn, foreign) == before, "nothing was done"
    assert (await ops.post(f"/api/jobs/999/{act}")).status_code == 404, "that there is no such job counts more"
    assert (await ops.post(f"/api/jobs/{own}/{act}")).status_code == 202, "of one's own nobody asks"
    assert (await ops.post(f"/api/jobs/{foreign}/{act}", json={"reason": "source is back"})).status_code == 202
    audited = await rows(conn, "SELECT object, reason FROM holdfast.audit WHERE action = %s ORDER BY id", f"jobs.{act}")
    assert audited == [(f"job/{own}", None), (f"job/{foreign}", "source is back")]


async def test_compatibility_path_records_a_missing_reason(ops: Client, conn: Any) -> None:
    """Who wrote a client by the document has no field for it."""
    job_id = await add(conn)

    assert (await ops.post(f"/jobs/{job_id}/cancel")).status_code == 202

    assert await rows(conn, "SELECT actor, reason FROM holdfast.audit") == [("token:ops", "no reason was given")]


async def test_analyst_controls_only_its_own_jobs(analyst: Client, conn: Any) -> None:
    own = (await analyst.post("/api/jobs", json={"kind": "k"})).json()["data"]["id"]
    foreign = await add(conn)

    assert (await analyst.post(f"/api/jobs/{own}/cancel")).status_code == 202
    refused = await analyst.post(f"/api/jobs/{foreign}/cancel")

    assert (refused.status_code, refused.json()["required_roles"]) == (403, ["admin", "ops"])
    assert await state_of(conn, foreign) == "pending"
    denied = await rows(conn, "SELECT actor, action, object FROM holdfast.audit WHERE outcome = 'denied'")
    assert denied == [("token:analyst", "jobs.cancel", f"job/{foreign}")]


@pytest.mark.parametrize("key", [{"unique_key": "u"}, {"unique_key": "u", "unique_while": "live"}, {"slot_key": "s"}])
@pytest.mark.parametrize("act", ["cancel", "retry"])
async def test_enqueue_that_finds_the_job_of_another_owner_does_not_own_it(
    key: dict[str, str], act: str, as_role: Any, conn: Any
) -> None:
    """Keys are shown to everybody who may read jobs: naming one must not give the right to act on its job."""
    first, second = await as_role("analyst", "analyst-1"), await as_role("analyst", "analyst-2")
    job_id = (await first.post("/api/jobs", json={"kind": "k", **key})).json()["data"]["id"]

    found = (await second.post("/api/jobs", json={"kind": "k", **key})).json()["data"]
    again = (await second.post("/api/jobs", json={"kind": "k", **key}, headers={"Idempotency-Key": "i"})).json()["data"]
    if act == "retry":
        await cancel(conn, JobId(job_id), actor="test")
    before = await state_of(conn, job_id)
    refused = await second.post(f"/api/jobs/{job_id}/{act}")

    assert (found["id"], found["created"], again["id"], again["created"]) == (job_id, False, job_id, False)
    assert (refused.status_code, await state_of(conn, job_id)) == (403, before)
    assert found["job"]["owner"] == "token:analyst-1"
    assert (await first.post(f"/api/jobs/{job_id}/{act}")).status_code == 202


async def test_idempotency_key_is_scoped_to_its_principal(as_role: Any) -> None:
    first, second = await as_role("analyst", "analyst-1"), await as_role("analyst", "analyst-2")
    made = [
        (await client.post("/api/jobs", json={"kind": "k"}, headers={"Idempotency-Key": "i"})).json()["data"]
        for client in (first, second)
    ]

    assert made[0]["id"] != made[1]["id"]
    assert (await second.post(f"/api/jobs/{made[0]['id']}/cancel")).status_code == 403


async def test_jobs_from_python_and_children_have_no_owner(analyst: Client, conn: Any) -> None:
    """An analyst acts on what it asked for; what a handler made of it is for operators."""
    parent = (await analyst.post("/api/jobs", json={"kind": "k", "unique_key": "u"})).json()["data"]["id"]
    await end(conn, await take(conn, parent), Done(then=[NewJob("k", unique_key="u", step="s")]))
    child = await value(conn, "SELECT id FROM holdfast.jobs WHERE parent_id = %s", parent)

    found = (await analyst.post("/api/jobs", json={"kind": "k", "unique_key": "u"})).json()["data"]

    assert (found["id"], found["created"], found["job"]["owner"]) == (child, False, None)
    assert (await analyst.post(f"/api/jobs/{child}/cancel")).status_code == 403


async def test_failed_job_is_rerun(ops: Client, conn: Any) -> None:
    claim = await hold(conn)
    await end(conn, claim, Fail("broken"))

    answer = await ops.post(f"/api/jobs/{claim.id}/retry", json={"reason": "mended", "grant": 2})

    assert (answer.status_code, answer.json()["data"]["state"]) == (202, "pending")
    assert (await moves_of(conn, claim.id))[-1] == "rerun"


async def test_k_60_and_k_61_only_a_job_of_a_silent_worker_is_recovered(ops: Client, conn: Any) -> None:
    """K-60, K-61: under the path of the document as well."""
    claim = await hold(conn)

    early = await ops.post(f"/sync/jobs/{claim.id}/recover")
    assert (early.status_code, early.json()["code"]) == (409, "NOT_STALE")
    await silence(conn, claim)
    answer = await ops.post(f"/sync/jobs/{claim.id}/recover", json={"reason": "its node is gone"})

    assert answer.status_code == 200
    found = answer.json()["data"]
    assert (found["state"], found["attempt_id"], found["worker_id"]) == ("pending", None, None)
    assert (await ops.post("/sync/jobs/4711/recover")).status_code == 404


async def test_k_63_drained_system_accepts_no_new_jobs(analyst: Client, conn: Any) -> None:
    """K-63"""
    await control.drain(conn, actor="ada", reason="upgrade")

    answer = await analyst.post("/api/jobs", json={"kind": "k"})

    assert (answer.status_code, answer.json()["code"], answer.headers["Retry-After"]) == (503, "DRAINING", "30")
    assert "upgrade" in answer.json()["detail"]
    assert await value(conn, "SELECT count(*) FROM holdfast.jobs") == 0


async def test_write_with_an_outdated_etag_is_refused(ops: Client, conn: Any) -> None:
    job_id = await add(conn)
    seen = (await ops.get(f"/api/jobs/{job_id}")).headers["ETag"]
    assert (await ops.get(f"/api/jobs/{job_id}", headers={"If-None-Match": seen})).status_code == 304
    await conn.execute("UPDATE holdfast.jobs SET priority = 5 WHERE id = %s", [job_id])

    late = await ops.post(f"/api/jobs/{job_id}/cancel", headers={"If-Match": seen}, json={"reason": "r"})
    assert (late.status_code, late.json()["code"]) == (412, "CHANGED_MEANWHILE")
    assert await state_of(conn, job_id) == "pending"
    timely = await ops.post(f"/api/jobs/{job_id}/cancel", headers={"If-Match": late.headers["ETag"]}, json={"reason": "r"})
    assert timely.status_code == 202


async def test_internal_kinds_cannot_be_enqueued(admin: Client) -> None:
    """Else whoever may enqueue could do in bulk what they may not do once."""
    answer = await admin.post("/api/jobs", json={"kind": "holdfast.bulk", "payload": {}})

    assert (answer.status_code, answer.json()["code"]) == (403, "RESERVED_KIND")


async def test_explain_and_history_of_one_job(viewer: Client, conn: Any) -> None:
    claim = await hold(conn)
    await end(conn, claim)

    explained = (await viewer.get(f"/api/jobs/{claim.id}/explain")).json()["data"]
    assert explained["sentence"].startswith("Completed")
    attempts = (await viewer.get(f"/api/jobs/{claim.id}/attempts")).json()["data"]
    assert [(one["move"], one["attempt_id"]) for one in attempts] == [("complete", claim.attempt_id)]
    assert (await viewer.get("/api/jobs/4711/history")).status_code == 404
