"""Maintenance jobs with the embedded engine, on real tables: results, order, partial success, dry runs, retries."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from factories import end, holders_of, job, replace, rows, take, value, waits
from holdfast.errors import ClaimLost
from holdfast.jobs.cancel import cancel
from holdfast.jobs.model import Claim
from holdfast.jobs.outcome import Snooze
from holdfast.services.maintenance.engines.interface import ActionResult
from holdfast.services.maintenance.kinds import KINDS
from holdfast.services.maintenance.run import record
from holdfast.services.maintenance.setup import Maintenance
from holdfast.testing import crash_at, harness
from maintenance_factories import ORDERS, PATH, STATS, actions_of, know, make_table, read_ids, run_of

Conn = psycopg.AsyncConnection[Any]


@pytest.mark.more
async def test_every_action_has_its_figures_before_and_after(ops: Any, conn: Conn, here: Maintenance, database: str):
    """T-03, T-04, T-05: actions run in their order, each result is stored, and the end frees the table."""
    count = await asyncio.to_thread(make_table, here, database)
    asked = {"actions": [{"expire_snapshots": {"older_than": 0}}, "rewrite_manifests", "rewrite_data_files"]}
    made = await ops.post(PATH, json=asked)

    async with harness(database, KINDS) as runner:
        await runner.drain()

    run = (await ops.get(made.headers["location"])).json()["data"]
    assert (run["state"], run["outcome"], run["error"]) == ("completed", "completed", None)
    rewrite, manifests, expire = run["actions"]
    assert (rewrite["before"]["data_files"], rewrite["after"]["data_files"]) == (12, 1)
    assert rewrite["after"]["average_file_bytes"] > rewrite["before"]["average_file_bytes"]
    assert manifests["before"]["data_files"] == 1, "manifests follow files"
    assert expire["after"]["snapshots"] == 1 < expire["before"]["snapshots"]
    assert run["saved"]["data_files"] == 11
    assert run["saved"]["engine_seconds"] > 0
    assert run["saved"]["deleted_bytes"] >= rewrite["before"]["data_bytes"], "the small files were deleted"
    assert run["saved"]["money"] is None, "there is no price"
    assert (await job(conn, run["job_id"])).result["partial"] is False
    assert await holders_of(conn, f"table:{ORDERS}") == []
    assert await asyncio.to_thread(read_ids, here, database) == list(range(count))


async def test_dry_run_has_numbers_and_changes_nothing(ops: Any, conn: Conn, here: Maintenance, database: str):
    await asyncio.to_thread(make_table, here, database)
    asked = {"actions": ["rewrite_data_files", {"expire_snapshots": {"older_than": 0}}], "dry_run": True}
    made = await ops.post(PATH, json=asked)

    async with harness(database, KINDS) as runner:
        await runner.drain()

    run = (await ops.get(made.headers["location"])).json()["data"]
    rewrite, expire = run["actions"]
    assert (run["outcome"], run["saved"]) == ("completed", None)
    assert (rewrite["before"]["data_files"], rewrite["after"]["data_files"]) == (12, 1), "an estimate"
    assert expire["details"]["expired_snapshots"] == 11
    engine = await here.engine_at("pyiceberg", conn)
    assert (await asyncio.to_thread(engine.stats, ORDERS)).data_files == 12


@pytest.mark.more
async def test_failed_action_does_not_stop_the_others_and_a_retry_repeats_only_it(
    ops: Any, conn: Conn, here: Maintenance, database: str
):
    """T-04: partial success is shown, per action and as the outcome of the run."""
    await asyncio.to_thread(make_table, here, database)
    wrong = {"action": "rewrite_data_files", "strategy": "sort", "sort_by": ["no_such_column"]}
    made = await ops.post(PATH, json={"actions": [wrong, "rewrite_manifests"]})
    job_id = made.json()["data"]["id"]

    async with harness(database, KINDS) as runner:
        await runner.drain()
        run = (await ops.get(made.headers["location"])).json()["data"]
        await ops.post(f"/api/jobs/{job_id}/retry", json={"reason": "again"})
        between = await actions_of(conn, job_id)
        await runner.drain()

    assert (run["state"], run["outcome"]) == ("failed", "partial")
    assert [one["status"] for one in run["actions"]] == ["failed", "completed"]
    assert "no_such_column" in run["actions"][0]["error"]
    assert "1 of 2 actions failed (completed: rewrite_manifests)" in run["error"]
    assert between == {"rewrite_data_files": "pending", "rewrite_manifests": "completed"}
    attempts = await rows(conn, "SELECT count(DISTINCT attempt_id) FROM holdfast.maintenance_actions WHERE job_id = %s", job_id)
    assert attempts == [(2,)], "the completed action was not run again"


async def test_table_that_is_gone_fails_without_a_retry(ops: Any, conn: Conn, database: str):
    await know(conn)
    made = await ops.post(PATH, json={"actions": ["rewrite_data_files"]})

    async with harness(database, KINDS) as runner:
        await runner.drain()

    run = (await ops.get(made.headers["location"])).json()["data"]
    assert (run["state"], run["actions"][0]["error_code"]) == ("failed", "table_not_found")
    assert (await job(conn, run["job_id"])).attempt_no == 1


@pytest.mark.parametrize("point", ["maintenance.action.started", "maintenance.action.done", "maintenance.action.recorded"])
async def test_attempt_after_a_crash_goes_on_and_keeps_the_figures_from_before(
    ops: Any, conn: Conn, here: Maintenance, database: str, point: str
):
    """T-04: a crash around an action loses no result, and a recorded action is not repeated."""
    count = await asyncio.to_thread(make_table, here, database)
    made = await ops.post(PATH, json={"actions": ["rewrite_data_files", "rewrite_manifests"]})

    async with harness(database, KINDS) as runner:
        with crash_at(point) as reached:
            await runner.drain()

    run = (await ops.get(made.headers["location"])).json()["data"]
    assert reached == [point]
    assert (run["state"], run["outcome"], run["attempt_no"]) == ("completed", "completed", 2)
    rewrite = run["actions"][0]
    assert (rewrite["before"]["data_files"], rewrite["after"]["data_files"]) == (12, 1)
    by_first = await value(
        conn,
        """SELECT count(*) FROM holdfast.maintenance_actions a JOIN holdfast.history h USING (attempt_id)
           WHERE a.job_id = %s AND a.position = 1 AND h.attempt_no = 1""",
        run["job_id"],
    )
    assert bool(by_first) is (point == "maintenance.action.recorded")
    assert await asyncio.to_thread(read_ids, here, database) == list(range(count))


# ---------------------------------------------------------------------------------------------------------------------
# The fence of the records
# ---------------------------------------------------------------------------------------------------------------------


async def begun(conn: Conn, ops: Any) -> Claim:
    """A run whose first action has begun."""
    await know(conn)
    made = await ops.post(PATH, json={"actions": ["rewrite_data_files"]})
    claim = await take(conn, made.json()["data"]["id"])
    await record.begin(conn, claim, 1, STATS)
    return claim


RESULT = ActionResult("rewrite_data_files", STATS, STATS, 1.0)
WRITES: dict[str, Callable[[Conn, Claim], Awaitable[Any]]] = {
    "begin": lambda conn, claim: record.begin(conn, claim, 1, STATS),
    "finish": lambda conn, claim: record.finish(conn, claim, 1, status="completed", result=RESULT),
}


@pytest.mark.parametrize("write", WRITES)
async def test_replaced_attempt_records_nothing(ops: Any, conn: Conn, write: str):
    """T-05, K-14, K-17, K-18, Z-08: after a rotation of the fence, a write of the old attempt is refused and changes no row."""
    old = await begun(conn, ops)
    await replace(conn, old)
    before = await rows(conn, "SELECT t::text FROM holdfast.maintenance_actions t")

    with pytest.raises(ClaimLost):
        await WRITES[write](conn, old)

    assert await rows(conn, "SELECT t::text FROM holdfast.maintenance_actions t") == before


async def test_record_that_meets_a_replacement_is_refused(ops: Any, connect: Any):
    """Z-08: an attempt that is replaced between the start of its write and its commit writes nothing."""
    conn, other, observer = await connect(), await connect(), await connect()
    claim = await begun(conn, ops)

    async with other.transaction():
        await cancel(other, claim.id, actor="test", force=True)
        recording = asyncio.create_task(record.finish(conn, claim, 1, status="completed", result=RESULT))
        await waits(observer, conn)

    with pytest.raises(ClaimLost):
        await recording
    assert await actions_of(conn, claim.id) == {"rewrite_data_files": "cancelled"}


async def test_replacement_waits_for_a_record_that_is_being_written(ops: Any, connect: Any):
    """Z-08: a result whose fence was checked is committed before its attempt can be replaced."""
    conn, other, observer = await connect(), await connect(), await connect()
    claim = await begun(conn, ops)

    async with conn.transaction():
        await record.finish(conn, claim, 1, status="completed", result=RESULT)
        cancelling = asyncio.create_task(cancel(other, claim.id, actor="test", force=True))
        await waits(observer, other)
    await cancelling

    assert await actions_of(conn, claim.id) == {"rewrite_data_files": "completed"}
    assert await run_of(conn, claim.id) == "cancelled"


async def test_released_job_keeps_its_lock_and_its_action_is_pending(ops: Any, conn: Conn):
    """E-49, E-51: a worker that must end gives the job back: the table stays locked, and nobody else gets in."""
    claim = await begun(conn, ops)

    await end(conn, claim, Snooze(timedelta(0), "shutdown"))

    assert await actions_of(conn, claim.id) == {"rewrite_data_files": "pending"}
    assert await run_of(conn, claim.id) == "pending"
    assert (await ops.post(PATH, json={"actions": ["rewrite_manifests"]})).status_code == 409
