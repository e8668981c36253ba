"""POST /tables/{db}/{table}/maintenance: what is refused, in which order, and what a submission writes."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from factories import everything, holders_of, rows, state_of, take, value
from holdfast.jobs import control
from holdfast.services.maintenance.setup import Maintenance
from maintenance_factories import ORDERS, PATH, actions_of, know, run_of

Conn = psycopg.AsyncConnection[Any]
BOTH = pytest.mark.parametrize("path", [PATH, PATH.removeprefix("/api")])
REWRITE = {"actions": ["rewrite_data_files"]}


@BOTH
async def test_submission_answers_202_with_the_location_of_a_readable_run(ops: Any, conn: Conn, path: str):
    """T-01, T-07: job, lock and run are written before the answer, and the Location has them."""
    await know(conn)

    answer = await ops.post(path, json={"actions": ["expire_snapshots", "rewrite_data_files"]})
    shown = (await ops.get(answer.headers["location"])).json()["data"]

    assert answer.status_code == 202
    job_id = answer.json()["data"]["id"]
    assert answer.headers["location"] == f"/api/maintenance-runs/{job_id}"
    assert await holders_of(conn, f"table:{ORDERS}") == [job_id]
    assert [one["action"] for one in shown["actions"]] == ["rewrite_data_files", "expire_snapshots"], "in the fixed order"
    assert (shown["state"], shown["outcome"], shown["requested_by"]) == ("pending", "pending", "token:ops")
    assert (await ops.get(f"/jobs/{job_id}")).json()["data"]["kind"] == "maintenance.run"


async def test_audit_entry_commits_with_the_job(ops: Any, conn: Conn):
    """T-02, Q-05: who asked for what and why is in the audit log."""
    await know(conn)

    made = await ops.post(PATH, json={**REWRITE, "reason": "slow queries"})

    (entry,) = await rows(
        conn, "SELECT action, object, actor, reason, detail FROM holdfast.audit WHERE action = 'tables.maintain'"
    )
    assert entry[:4] == ("tables.maintain", f"maintenance-run/{made.json()['data']['id']}", "token:ops", "slow queries")
    assert entry[4]["table"] == str(ORDERS)


async def test_submission_without_its_audit_entry_is_rolled_back(ops: Any, conn: Conn):
    """T-02: stronger than best effort; an entry that cannot be written leaves neither job, lock nor run."""
    await know(conn)
    await conn.execute(
        """CREATE FUNCTION public.fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$;
           CREATE TRIGGER fail BEFORE INSERT ON holdfast.audit FOR EACH ROW EXECUTE FUNCTION public.fail()"""
    )
    before = await everything(conn)

    answer = await ops.post(PATH, json=REWRITE)

    assert (answer.status_code, answer.json()["code"]) == (500, "INTERNAL")
    assert await everything(conn) == before
    assert await value(conn, "SELECT count(*) FROM holdfast.maintenance_runs") == 0


async def test_draining_comes_before_every_other_refusal(ops: Any, conn: Conn):
    """T-01, K-63, Z-08: while the plane drains, even a request with mistakes gets 503 with Retry-After; nothing is written."""
    await control.drain(conn, actor="test", reason="upgrade")
    before = await everything(conn)

    answer = await ops.post("/tables/no/such/maintenance", json={"actions": ["nonsense"]})

    assert (answer.status_code, answer.json()["code"]) == (503, "DRAINING")
    assert int(answer.headers["retry-after"]) > 0
    assert await everything(conn) == before


async def test_every_mistake_is_reported_at_once(ops: Any, conn: Conn):
    """T-01: 422 with all mistakes of the request, and nothing is written."""
    await know(conn)
    asked = {
        "actions": ["nonsense", {"action": "expire_snapshots", "retain_last": 0, "older": 1}, "compute_statistics"],
        "engine": "hive",
    }

    answer = await ops.post(PATH, json=asked)

    assert (answer.status_code, answer.json()["code"]) == (422, "VALIDATION_FAILED")
    assert {one["pointer"] for one in answer.json()["errors"]} == {
        "/body/engine",
        "/body/actions/0/action",
        "/body/actions/1/retain_last",
        "/body/actions/1/older",
    }
    assert await value(conn, "SELECT count(*) FROM holdfast.jobs") == 0


async def test_engine_without_the_action_is_refused_with_those_that_have_it(ops: Any, conn: Conn):
    await know(conn)

    answer = await ops.post(PATH, json={"actions": ["compute_statistics"]})

    assert answer.status_code == 422
    assert "use the engine trino or spark" in answer.json()["errors"][0]["message"]


async def test_parameters_that_an_engine_does_not_have_are_mistakes_of_the_request(ops: Any, conn: Conn, here: Maintenance):
    """T-01: all of them at once, and not a job that fails later."""
    here.engine_names = ("pyiceberg", "trino", "spark")
    await know(conn)
    here.catalogs = ("default", "of_trino")
    asked = {
        "actions": [
            {"action": "rewrite_data_files", "strategy": "sort", "sort_by": ["id"], "min_input_files": 2},
            "remove_orphan_files",
        ],
        "engine": "trino",
        "dry_run": True,
    }

    answer = await ops.post(PATH, params={"catalog": "of_trino"}, json=asked)

    said = [one["message"] for one in answer.json()["errors"]]
    assert answer.status_code == 422
    assert len(said) == 3
    assert all(any(word in one for one in said) for word in ("sort_by", "min_input_files", "dry_run"))
    assert all("the engine trino has no " in one for one in said)


async def test_locked_table_answers_409_with_holder_action_and_age(ops: Any, conn: Conn):
    """T-01, K-26, Z-08: the second job is refused, and the answer names the first, what it does, since when and where."""
    await know(conn)
    first = (await ops.post(PATH, json=REWRITE)).json()["data"]["id"]
    await take(conn, first)
    await conn.execute("UPDATE holdfast.maintenance_actions SET status = 'running' WHERE job_id = %s", [first])

    answer = await ops.post(PATH, json={"actions": ["expire_snapshots"]})
    problem = answer.json()

    assert (answer.status_code, problem["code"]) == (409, "TABLE_LOCKED")
    assert (problem["holder_job_id"], problem["holder_action"]) == (first, "rewrite_data_files")
    assert (problem["holder_state"], problem["holder_worker"]) == ("running", "worker")
    assert problem["age_seconds"] >= 0
    assert problem["lock_key"] == f"table:{ORDERS}"
    assert f"job {first} (rewrite_data_files, for " in problem["detail"]
    assert await value(conn, "SELECT count(*) FROM holdfast.maintenance_runs") == 1, "the refusal left nothing behind"


@pytest.mark.parametrize("how", ["body", "query"])
async def test_wait_queues_behind_the_holder(ops: Any, conn: Conn, how: str):
    await know(conn)
    first = (await ops.post(PATH, json=REWRITE)).json()["data"]["id"]

    waiting = (
        await ops.post(PATH, json={**REWRITE, "wait": True})
        if how == "body"
        else await ops.post(f"{PATH}?wait=true", json=REWRITE)
    )

    assert waiting.status_code == 202
    assert await holders_of(conn, f"table:{ORDERS}") == [first]
    assert await state_of(conn, waiting.json()["data"]["id"]) == "pending", "it waits for the lock when a worker claims it"


async def test_repeated_request_with_its_key_returns_the_same_job(ops: Any, conn: Conn):
    await know(conn)
    key = {"Idempotency-Key": "once"}

    first, again = [await ops.post(PATH, json=REWRITE, headers=key) for _ in range(2)]

    assert (first.status_code, again.status_code) == (202, 202)
    assert first.json() == again.json()
    assert await value(conn, "SELECT count(*) FROM holdfast.maintenance_runs") == 1


async def test_viewers_may_read_and_not_maintain(viewer: Any, conn: Conn):
    await know(conn)

    refused = await viewer.post(PATH, json=REWRITE)

    assert refused.status_code == 403
    assert (await viewer.get("/tables/sales/orders")).status_code == 200


async def test_young_orphan_files_need_force_an_admin_and_a_reason(ops: Any, admin: Any, conn: Conn):
    """Below 7 days, remove_orphan_files is refused unless an admin forces it with a reason."""
    await know(conn)
    young = {"action": "remove_orphan_files", "older_than": "1d"}
    forced = {"actions": [{**young, "force": True}]}

    plain = await ops.post(PATH, json={"actions": [young]})
    by_ops = await ops.post(PATH, json={**forced, "reason": "disk is full"})
    silent = await admin.post(PATH, json=forced)
    by_admin = await admin.post(PATH, json={**forced, "reason": "disk is full"})

    assert (plain.status_code, plain.json()["errors"][0]["pointer"]) == (422, "/body/actions/0/older_than")
    assert (by_ops.status_code, by_ops.json()["code"]) == (403, "ORPHAN_AGE_TOO_LOW")
    assert (silent.status_code, silent.json()["errors"][0]["pointer"]) == (422, "/body/reason")
    assert by_admin.status_code == 202
    assert (
        await value(conn, "SELECT reason FROM holdfast.audit WHERE outcome = 'done' AND action = 'tables.maintain'")
        == "disk is full"
    )


async def test_cancel_of_a_waiting_run_frees_the_table(ops: Any, conn: Conn):
    """K-62, T-06: the run and its actions are cancelled in the transaction that cancels the job, and the lock is free."""
    await know(conn)
    first = (await ops.post(PATH, json=REWRITE)).json()["data"]["id"]

    await ops.post(f"/api/jobs/{first}/cancel", json={"reason": "not now"})

    assert await run_of(conn, first) == "cancelled"
    assert await actions_of(conn, first) == {"rewrite_data_files": "cancelled"}
    assert (await ops.post(PATH, json=REWRITE)).status_code == 202


async def test_dry_run_needs_no_lock(ops: Any, conn: Conn):
    await know(conn)
    await ops.post(PATH, json=REWRITE)

    planned = await ops.post(PATH, json={**REWRITE, "dry_run": True})

    assert planned.status_code == 202
    assert await value(conn, "SELECT count(*) FROM holdfast.lock_wants WHERE job_id = %s", planned.json()["data"]["id"]) == 0


async def test_unknown_catalog_is_a_mistake_of_the_request(ops: Any, conn: Conn):
    answer = await ops.post(f"{PATH}?catalog=elsewhere", json=REWRITE)

    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/query/catalog"
