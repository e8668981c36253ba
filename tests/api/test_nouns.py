"""Everything beside the jobs themselves: failures, bulk, pipelines, locks, workers, kinds, loops, drain, config."""

from __future__ import annotations

import asyncio
import re
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import httpx2
import psycopg
import pytest

from factories import add, end, hold, holders_of, rows, start_worker, state_of, value
from holdfast.api.ops import OpsState
from holdfast.apps.control_jobs import act_in_bulk
from holdfast.jobs.cancel import cancel
from holdfast.jobs.config_keys import KEYS
from holdfast.jobs.declare import Declaration, as_json
from holdfast.jobs.kinds import publish
from holdfast.jobs.model import Lock, NewJob
from holdfast.jobs.outcome import Fail
from holdfast.jobs.periodic.schedule import Schedule
from holdfast.jobs.pipelines import Pipeline
from holdfast.schedule.kernel import kernel_loops
from holdfast.schedule.scheduler import Scheduler, SchedulerOptions
from holdfast.schedule.term import ensure
from holdfast.telemetry.names import METRICS, PLANE_METRICS
from holdfast.testing import harness

Client = httpx2.AsyncClient


async def fail(conn: Any, error: str, kind: str = "k") -> int:
    claim = await hold(conn, kind)
    await end(conn, claim, Fail(error))
    return claim.id


# ---------------------------------------------------------------------------------------------------------------------
# Failures and bulk
# ---------------------------------------------------------------------------------------------------------------------


async def test_failures_that_differ_only_in_numbers_are_grouped(viewer: Client, conn: Any) -> None:
    alike = [await fail(conn, f"Traceback …\nTimeout: row {n} of 9f8e7d6c5b4a took {n * 7} s") for n in range(3)]
    await fail(conn, "Traceback …\nKeyError: 'price'")
    await fail(conn, "Traceback …\nKeyError: 'price'", kind="other")

    found = (await viewer.get("/api/failures")).json()["data"]

    assert sorted((one["kind"], one["jobs"]) for one in found) == [("k", 1), ("k", 3), ("other", 1)]
    (timeout,) = [one for one in found if one["jobs"] == 3]
    assert timeout["error"].startswith("Timeout: row ")
    assert timeout["newest"] == alike[::-1]
    one = (await viewer.get(f"/api/failures/{timeout['fingerprint']}")).json()["data"]
    assert one == timeout
    assert (await viewer.get(f"/api/failures/{'0' * 16}")).status_code == 404


async def test_retry_of_a_failure_group_affects_only_its_jobs(ops: Client, conn: Any, database: str) -> None:
    alike = [await fail(conn, f"Timeout: {n}") for n in range(3)]
    other = await fail(conn, "KeyError: 'price'")
    fingerprint = next(one for one in (await ops.get("/api/failures")).json()["data"] if one["jobs"] == 3)["fingerprint"]

    dry = await ops.post(f"/api/failures/{fingerprint}/retry", json={"reason": "the warehouse is back"})
    assert (dry.status_code, dry.json()["data"]["matched"]) == (200, 3)
    started = await ops.post(
        f"/api/failures/{fingerprint}/retry", json={"reason": "the warehouse is back", "dry_run": False, "expected_count": 3}
    )
    assert started.status_code == 202
    async with harness(database, [act_in_bulk]) as h:
        await h.drain()

    assert [await state_of(conn, job_id) for job_id in (*alike, other)] == ["pending", "pending", "pending", "failed"]


async def test_bulk_action_previews_its_count_and_affects_no_more(ops: Client, conn: Any, database: str) -> None:
    jobs = [await add(conn, kind) for kind in ("a", "a", "b")]
    spared = await add(conn, "a", queue="other")
    asked = {"action": "cancel", "filter": "state:pending queue:default", "reason": "wrong import"}

    dry = (await ops.post("/api/jobs/bulk", json=asked)).json()["data"]
    assert (dry["matched"], dry["by_kind"], [job["id"] for job in dry["sample"]]) == (3, {"a": 2, "b": 1}, jobs[::-1])
    assert await state_of(conn, jobs[0]) == "pending", "a dry run changes nothing"

    jobs.append(await add(conn, "b"))
    refused = await ops.post("/api/jobs/bulk", json=asked | {"dry_run": False, "expected_count": 3})
    assert (refused.status_code, refused.json()["matched"], refused.json()["expected"]) == (409, 4, 3)
    without = await ops.post("/api/jobs/bulk", json=asked | {"dry_run": False})
    assert without.status_code == 422

    started = await ops.post("/api/jobs/bulk", json=asked | {"dry_run": False, "expected_count": 4})
    assert started.status_code == 202
    place = started.headers["Location"]
    late = await add(conn, "a")
    assert (await ops.get(place)).json()["data"]["state"] == "pending"
    async with harness(database, [act_in_bulk]) as h:
        await h.drain()

    operation = (await ops.get(place)).json()["data"]
    assert (operation["state"], operation["done"], operation["failed"], operation["progress"]) == ("completed", 4, 0, 1.0)
    assert {await state_of(conn, job_id) for job_id in jobs} == {"cancelled"}
    assert [await state_of(conn, job_id) for job_id in (spared, late)] == ["pending", "pending"], "what came later is spared"
    audited = await rows(conn, "SELECT object, reason, detail->'expected' FROM holdfast.audit WHERE action = 'jobs.bulk'")
    assert audited == [(place.removeprefix("/api/").replace("operations", "operation"), "wrong import", 4)]
    acted = await rows(conn, "SELECT DISTINCT actor, reason FROM holdfast.history WHERE move = 'cancel'")
    assert acted == [("token:ops", "wrong import")]


async def test_bulk_action_continues_after_a_refused_job(ops: Client, conn: Any, database: str) -> None:
    first, second = await fail(conn, "x"), await fail(conn, "x")
    await conn.execute("UPDATE holdfast.jobs SET slot_key = 's' WHERE id = %s", [first])
    await add(conn, slot_key="s")
    asked = {"action": "retry", "filter": {"state": "failed"}, "reason": "r", "dry_run": False, "expected_count": 2}
    place = (await ops.post("/api/jobs/bulk", json=asked)).headers["Location"]
    async with harness(database, [act_in_bulk]) as h:
        await h.drain()

    operation = (await ops.get(place)).json()["data"]
    assert (operation["done"], operation["failed"]) == (1, 1)
    assert operation["failures"][0]["job_id"] == first
    assert await state_of(conn, second) == "pending"


@pytest.mark.parametrize(
    "filters", [{}, "nonsense", "state:gone", "colour:blue", {"pipeline_id": "x"}, "state:failed fingerprint:zz"]
)
async def test_unknown_filter_is_refused(ops: Client, filters: Any) -> None:
    answer = await ops.post("/api/jobs/bulk", json={"action": "cancel", "filter": filters, "reason": "r"})

    assert answer.status_code == 422, answer.text


# ---------------------------------------------------------------------------------------------------------------------
# Pipelines, locks, workers, kinds
# ---------------------------------------------------------------------------------------------------------------------


async def test_pipelines_are_listed_shown_and_aborted(ops: Client, conn: Any) -> None:
    made = []
    for name in ("first", "second", "third"):
        pipeline = Pipeline(name)
        start = pipeline.add(NewJob("k", {"secret": name}))
        pipeline.add(NewJob("k"), after=start)
        await pipeline.enqueue(conn)
        made.append(pipeline.id)

    page = (await ops.get("/api/pipelines", params={"limit": 2})).json()
    rest = (await ops.get("/sync/pipelines", params={"limit": 2})).json()
    assert [one["id"] for one in page["data"]] == [one["id"] for one in rest["data"]] == made[:0:-1]
    more = (await ops.get("/api/pipelines", params={"limit": 2, "cursor": page["page"]["next_cursor"]})).json()
    assert [one["id"] for one in more["data"]] == made[:1]

    shown = (await ops.get(f"/api/pipelines/{made[0]}")).json()["data"]
    assert (shown["status"], shown["counts"]) == ("running", {"pending": 1, "blocked": 1})
    stopped = await ops.post(f"/sync/pipelines/{made[0]}/abort", json={"reason": "not needed"})
    assert (stopped.status_code, stopped.json()["data"]["stopped"]) == (202, 2)
    assert (await ops.get(f"/api/pipelines/{made[0]}")).json()["data"]["status"] == "cancelled"


async def test_a_lock_is_released_only_when_its_holder_has_ended(ops: Client, conn: Any) -> None:
    claim = await hold(conn, locks=(Lock("tables/sales"),))
    waiting = await add(conn, locks=(Lock("tables/sales"),))
    listed = (await ops.get("/api/locks")).json()["data"]
    assert [(one["key"], one["jobs"]) for one in listed] == [("tables/sales", [claim.id])]

    refused = await ops.request("DELETE", "/api/locks/tables/sales", params={"reason": "in the way"})
    assert (refused.status_code, refused.json()["holder_job_id"]) == (409, claim.id)
    assert await holders_of(conn, "tables/sales") == [claim.id]

    await conn.execute(
        "INSERT INTO holdfast.lock_holders (key, permit, job_id) SELECT 'left', 1, id FROM holdfast.jobs WHERE id = %s",
        [waiting],
    )
    await cancel(conn, waiting, actor="ada")  # type: ignore[arg-type]
    await conn.execute(
        "INSERT INTO holdfast.lock_holders (key, permit, job_id) VALUES ('left', 1, %s) ON CONFLICT DO NOTHING", [waiting]
    )
    freed = await ops.request("DELETE", "/api/locks/left", params={"reason": "left behind"})
    assert (freed.status_code, freed.json()["data"]["jobs"]) == (200, [waiting])
    assert await holders_of(conn, "left") == []
    assert (await ops.request("DELETE", "/api/locks/left", params={"reason": "again"})).status_code == 404


async def test_workers_are_listed_with_their_jobs(viewer: Client, conn: Any) -> None:
    worker = await start_worker(conn, "pod-1")
    await hold(conn, worker=worker)
    await start_worker(conn, "pod-2", lease=timedelta(seconds=-1))

    alive = (await viewer.get("/sync/workers", params={"alive": True})).json()["data"]

    assert [(one["name"], one["holds"], one["alive"]) for one in alive] == [("pod-1", 1, True)]
    assert len((await viewer.get("/api/workers")).json()["data"]) == 2
    assert (await viewer.get(f"/api/workers/{worker}")).json()["data"]["name"] == "pod-1"


async def test_a_kind_is_paused_and_resumed(ops: Client, conn: Any) -> None:
    for _ in range(3):
        await add(conn, "mail.send")

    paused = await ops.post("/api/job-kinds/mail.send/pause", json={"reason": "the server is down"})
    assert paused.status_code == 200
    (kind,) = [one for one in (await ops.get("/api/kinds")).json()["data"] if one["kind"] == "mail.send"]
    assert (kind["kind"], kind["waiting"], kind["paused"], kind["actor"]) == ("mail.send", 3, True, "token:ops")
    assert (await ops.get("/api/stats/queue-depth")).json()["data"]["value"] == 0, "nobody needs to come for what is paused"
    resumed = (await ops.post("/api/job-kinds/mail.send/resume", json={"reason": "back"})).json()["data"]
    assert resumed == {"kind": "mail.send", "changed": True}
    assert (await ops.get("/api/stats/queue-depth")).json()["data"]["value"] == 3


# ---------------------------------------------------------------------------------------------------------------------
# Operators
# ---------------------------------------------------------------------------------------------------------------------


async def test_drain_is_independent_of_a_pause(ops: Client, conn: Any) -> None:
    await ops.post("/api/job-kinds/*/pause", json={"reason": "also"})
    on = await ops.put("/api/ops/drain", json={"enabled": True, "reason": "upgrade"})
    assert on.json()["data"] == {"enabled": True, "reason": "upgrade", "actor": "token:ops"}
    assert (await ops.post("/api/jobs", json={"kind": "k"})).status_code == 503
    assert (await ops.get("/ready")).json()["data"]["draining"] is True

    off = await ops.put("/api/ops/drain", json={"enabled": False, "reason": "done"})

    assert off.json()["data"]["enabled"] is False
    assert (await ops.post("/api/jobs", json={"kind": "k"})).status_code == 202
    assert await rows(conn, "SELECT kind, paused_at IS NOT NULL FROM holdfast.controls") == [("*", True)]


async def test_p_08_overview_has_all_counts(ops: Client, conn: Any) -> None:
    """I-07, P-08, R-14, V-06: inventory is asked of the API, and not of the metrics."""
    await hold(conn, locks=(Lock("a"),))
    await add(conn)

    state = (await ops.get("/api/ops/state")).json()["data"]

    assert state["jobs"]["pending"] == {"value": 1, "capped": False}
    assert (state["running"], state["locks_held"], state["draining"]) == (1, 1, False)
    assert state["workers"] == [{"version": "1", "runner": "remote", "workers": 1}]
    none = {"value": 0, "capped": False}
    assert state["snapshots"] == dict.fromkeys(("pending", "creating", "ready", "failed", "cancelled"), none)
    statuses = ("pending", "claimed", "submitted", "completed", "failed", "cancelled")
    assert state["export_jobs"] == dict.fromkeys(statuses, none)
    instances = ("waiting_for_snapshot", "starting", "running", "suspended", "resuming", "stopping", "failed")
    assert state["instances"] == dict.fromkeys(instances, none)
    assert state["tables"] == dict.fromkeys(("good", "fair", "poor", "unknown"), none)
    assert state["maintenance_runs"] == dict.fromkeys(("pending", "blocked", "running", "submitted"), none)
    assert state["ingestions"] == {}, "by result, of those that were requested"
    assert set(state) == set(OpsState.model_fields), "the OpenAPI document describes all of it"
    assert not {name for name in METRICS | PLANE_METRICS if re.match("(instances|snapshots)_by_status", name)}


async def registered(ops: Client) -> list[dict[str, Any]]:
    """The loops, as soon as the scheduler has written down all of them."""
    async with asyncio.timeout(60):
        while True:
            found: list[dict[str, Any]] = (await ops.get("/api/ops/jobs/status")).json()["data"]
            if {loop.name for loop in kernel_loops()} <= {one["job_name"] for one in found}:
                return found
            await asyncio.sleep(0.02)


async def test_p_09_loop_status_includes_its_health(ops: Client, conn: Any) -> None:
    """P-09"""
    await ensure(conn, kernel_loops())
    await conn.execute("UPDATE holdfast.loops SET failures = 3, last_outcome = 'failed', last_error = 'E' WHERE name = 'prune'")
    await conn.execute("UPDATE holdfast.loops SET paused_at = now(), paused_by = 'ops' WHERE name = 'rescue'")

    found = {one["job_name"]: one for one in (await ops.get("/api/ops/jobs/status")).json()["data"]}

    assert {name: (one["status"], one["healthy"]) for name, one in found.items()} == {
        **dict.fromkeys(found, ("waiting", True)),
        "prune": ("unhealthy", False),
        "rescue": ("paused", True),
    }
    shown = found["prune"]
    assert (shown["consecutive_failures"], shown["last_outcome"], shown["last_error"]) == (3, "failed", "E")
    assert all(one["next_run"] and one["interval_seconds"] for name, one in found.items() if name != "rescue")


async def test_p_01_trigger_of_a_loop_is_audited_and_limited_to_once_a_minute(ops: Client, conn: Any, database: str) -> None:
    """P-01, P-03, P-04, P-06, P-07, Q-05"""
    async with Scheduler(database, kernel_loops(), SchedulerOptions(look=timedelta(hours=1))):
        listed = await registered(ops)
    assert {one["job_name"] for one in listed} == {one["job_name"] for one in (await ops.get("/api/periodic")).json()["data"]}

    answer = await ops.post("/api/ops/jobs/trigger", json={"job_name": "prune", "reason": "smoke test after a deploy"})
    assert answer.status_code == 200
    data = answer.json()["data"]
    assert (data["job_name"], data["status"], data["triggered_by"], data["reason"]) == (
        "prune",
        "queued",
        "token:ops",
        "smoke test after a deploy",
    )
    queued = (
        "SELECT r.queued_at FROM holdfast.loops l JOIN holdfast.loop_runs r ON r.id = l.queued_run_id WHERE l.name = 'prune'"
    )
    assert datetime.fromisoformat(data["triggered_at"]) == await value(conn, queued)
    assert {"job_name", "status", "triggered_at", "triggered_by", "reason"} <= set(data)
    again = await ops.post("/api/periodic/prune/trigger", json={"reason": "impatience"})
    assert (again.status_code, again.json()["code"]) == (429, "RATE_LIMITED")
    assert 1 <= int(again.headers["Retry-After"]) <= 60
    unknown = await ops.post("/api/ops/jobs/trigger", json={"job_name": "nothing", "reason": "r"})
    assert unknown.status_code == 404
    audited = await rows(conn, "SELECT actor, object, reason FROM holdfast.audit WHERE action = 'periodic.trigger'")
    assert audited == [("token:ops", "periodic/prune", "smoke test after a deploy")]
    runs = (await ops.get("/api/periodic/prune/runs")).json()["data"]
    assert [(run["trigger"], run["actor"]) for run in runs if run["trigger"] == "manual"] == [("manual", "token:ops")]


async def test_a_loop_is_paused_and_resumed(ops: Client, database: str) -> None:
    async with Scheduler(database, kernel_loops(), SchedulerOptions(look=timedelta(hours=1))):
        await registered(ops)
    paused = await ops.post("/api/periodic/prune/pause", json={"reason": "keep everything for now"})
    assert (paused.json()["data"]["paused"], paused.json()["data"]["next_run"]) == (True, None)
    resumed = await ops.post("/api/periodic/prune/resume", json={"reason": "done"})
    assert (resumed.json()["data"]["paused"], resumed.json()["data"]["paused_by"]) == (False, None)


async def test_a_periodic_job_is_listed_run_paused_and_resumed(ops: Client, conn: Any, database: str) -> None:
    schedule = Schedule(cron="0 2 * * *", timezone="Europe/Zurich")
    await publish(conn, [as_json(Declaration("report.daily", periodic=schedule))], worker="a worker")

    (listed,) = [one for one in (await ops.get("/api/periodic")).json()["data"] if one["type"] == "job"]
    assert (listed["job_name"], listed["cron"], listed["timezone"], listed["catch_up"], listed["status"]) == (
        "report.daily",
        "0 2 * * *",
        "Europe/Zurich",
        "last",
        "no worker",
    )
    assert len(listed["next_runs"]) == 5

    run = (await ops.post("/api/periodic/report.daily/trigger", json={"reason": "a test"})).json()["data"]
    assert (run["job_name"], run["status"]) == ("report.daily", "queued")
    (line,) = (await ops.get("/api/periodic/report.daily/runs")).json()["data"]
    assert (line["id"], line["trigger"], line["outcome"]) == (run["run_id"], "manual", "pending")

    paused = (await ops.post("/api/periodic/report.daily/pause", json={"reason": "a holiday"})).json()["data"]
    assert (paused["status"], paused["paused_reason"], paused["next_runs"]) == ("paused", "a holiday", [])
    resumed = (await ops.post("/api/periodic/report.daily/resume", json={"reason": "done"})).json()["data"]
    assert (resumed["paused"], resumed["last_job_id"]) == (False, run["run_id"])

    unknown = await ops.post("/api/periodic/report.nightly/pause", json={"reason": "r"})
    assert unknown.status_code == 404
    actions = await rows(conn, "SELECT action FROM holdfast.audit WHERE object = 'periodic/report.daily' ORDER BY id")
    assert [action for (action,) in actions] == ["periodic.trigger", "periodic.control", "periodic.control"]


async def test_g_05_config_is_changed_within_bounds_with_if_match(admin: Client, ops: Client, conn: Any) -> None:
    """G-05, X-03, C-03: an export may take 3,600 seconds, and a catalog that is gone is known for 24 hours."""
    place = "/api/config/export.max_duration_seconds"
    first = await ops.get(place)
    assert (first.json()["data"]["value"], first.json()["data"]["version"]) == (3600, 0)
    listed = {one["key"]: one["value"] for one in (await ops.get("/api/config")).json()["data"]}
    assert listed == {key: one.default for key, one in KEYS.items()}
    assert (listed["export.max_duration_seconds"], listed["cache.metadata.ttl_hours"]) == (3600, 24)

    changed = await admin.put(place, json={"value": 7200, "reason": "long tables"}, headers={"If-Match": first.headers["ETag"]})
    assert (changed.status_code, changed.json()["data"]["value"]) == (200, 7200)
    late = await admin.put(place, json={"value": 60, "reason": "no"}, headers={"If-Match": first.headers["ETag"]})
    assert (late.status_code, late.json()["code"]) == (412, "CHANGED_MEANWHILE")
    assert (await admin.put(place, json={"value": 59, "reason": "too short"})).status_code == 422
    assert (await ops.put(place, json={"value": 60, "reason": "not mine"})).status_code == 403
    assert (await admin.put("/api/config/nothing", json={"value": 1, "reason": "r"})).status_code == 404
    assert (await ops.get(place)).headers["ETag"] == changed.headers["ETag"]
    assert await value(conn, "SELECT value FROM holdfast.config") == 7200


# ---------------------------------------------------------------------------------------------------------------------
# When the database is away
# ---------------------------------------------------------------------------------------------------------------------


async def test_ready_names_what_is_missing_and_health_uses_no_database(app: Any, anyone: Client, conn: Any) -> None:
    """Y-03: a process without its database is up, and not ready."""
    app.state.plane.wanted_revision = "9999"
    behind = await anyone.get("/ready")
    assert (behind.status_code, behind.json()["code"], behind.json()["database"]) == (503, "NOT_READY", "ok")
    assert "holdfast db migrate" in behind.json()["detail"]

    await app.state.plane.pool.close()
    away = await anyone.get("/ready")
    assert (away.status_code, away.json()["database"]) == (503, "unreachable")
    assert (await anyone.get("/health")).status_code == 200
    assert (await anyone.get("/api/health")).json()["data"]["status"] == "ok"


async def test_locked_job_returns_busy_instead_of_waiting(
    app: Any, ops: Client, conn: psycopg.AsyncConnection[Any], connect: Any
) -> None:
    job_id = await add(conn)
    other = await connect()
    async with app.state.plane.pool.connection() as pooled:
        await pooled.execute("ALTER DATABASE " + conn.info.dbname + " SET lock_timeout = '50ms'")
    await app.state.plane.pool.drain()
    async with other.transaction():
        await other.execute("SELECT FROM holdfast.jobs WHERE id = %s FOR UPDATE", [job_id])
        answer = await ops.post(f"/api/jobs/{job_id}/cancel", json={"reason": "r"})

    assert (answer.status_code, answer.json()["code"], answer.headers["Retry-After"]) == (409, "BUSY", "1")


# ---------------------------------------------------------------------------------------------------------------------
# Quiet workers
# ---------------------------------------------------------------------------------------------------------------------


async def test_quiet_needs_a_reason_and_is_audited(ops: Client, viewer: Client, conn: Any) -> None:
    worker = await start_worker(conn, "pod-a")
    path = f"/api/workers/{worker}/quiet"

    quiet = await ops.post(path, json={"reason": "the node goes"})
    awake = await ops.post(path, json={"reason": "it stays", "quiet": False})

    assert quiet.json()["data"]["quiet_at"] is not None
    assert awake.json()["data"]["quiet_at"] is None
    assert (await ops.post(path, json={})).status_code == 422
    assert (await ops.post(f"/api/workers/{uuid4()}/quiet", json={"reason": "r"})).status_code == 404
    assert (await viewer.post(path, json={"reason": "r"})).status_code == 403
    assert await rows(
        conn, "SELECT object, reason, detail->>'quiet' FROM holdfast.audit WHERE outcome = 'done' ORDER BY id"
    ) == [
        (f"worker/{worker}", "the node goes", "true"),
        (f"worker/{worker}", "it stays", "false"),
    ]
