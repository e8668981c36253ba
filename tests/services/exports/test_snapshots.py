"""Snapshots: made in one transaction, ended by the last end of their exports, whoever writes it; never stuck, never half."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from itertools import permutations, product
from typing import Any

import httpx2
import psycopg
import pytest

from export_factories import ACCOUNT, CUSTOMER, OWNS, mapping
from factories import end, hold, rows, silence, start_worker, take, value, waits
from holdfast.jobs.cancel import cancel
from holdfast.jobs.model import Claim
from holdfast.jobs.outcome import Done, Fail, Retry, Submitted
from holdfast.jobs.poll import fail_overdue
from holdfast.jobs.rescue import rescue
from holdfast.services.exports.snapshots.settle import read_open, settle, stop_siblings
from holdfast.services.exports.snapshots.states import LEGAL_MOVES, SnapshotState

Client = httpx2.AsyncClient
COLUMNS = [{"name": "id", "type": "BIGINT", "arrow": "int64"}]


def written(rows: int = 7, size: int = 70) -> Done:
    """What an export ends with that went well."""
    files = [{"path": "attempt=1/part-00000.parquet", "rows": rows, "bytes": size}]
    return Done({"rows": rows, "bytes": size, "files": files, "columns": COLUMNS, "runtime": "direct"})


async def make(ops: Client, **asked: Any) -> dict[str, Any]:
    """A mapping and a snapshot of it."""
    made = (await ops.post("/api/mappings", json=mapping())).json()["data"]
    answer = await ops.post("/api/snapshots", json={"mapping_id": made["id"], **asked})
    assert answer.status_code == 202, answer.text
    data: dict[str, Any] = answer.json()["data"]
    return data


async def jobs_of(ops: Client, made: dict[str, Any]) -> list[int]:
    return [one["id"] for one in made["exports"]]


async def look(ops: Client, made: dict[str, Any]) -> dict[str, Any]:
    data: dict[str, Any] = (await ops.get(f"/api/snapshots/{made['snapshot']['id']}")).json()["data"]
    return data


async def status(ops: Client, made: dict[str, Any]) -> str:
    return str((await look(ops, made))["snapshot"]["status"])


# ---------------------------------------------------------------------------------------------------------------------
# Making one
# ---------------------------------------------------------------------------------------------------------------------


async def test_a_snapshot_comes_with_one_self_sufficient_job_per_node_and_edge_nodes_first(ops: Client, conn: Any) -> None:
    """W-16, W-20, K-11."""
    made = await make(ops)
    found = await rows(conn, "SELECT kind, priority, payload FROM holdfast.jobs ORDER BY priority, id")

    assert [(one["job_type"], one["entity_name"]) for one in made["exports"]] == [
        ("node", "Customer"),
        ("node", "Account"),
        ("edge", "OWNS"),
    ]
    assert [(kind, priority) for kind, priority, _ in found] == [("exports.export", 0)] * 2 + [("exports.export", 1)]
    payload = found[2][2]
    assert (payload["sql"], payload["engine"], payload["max_seconds"]) == (OWNS["sql"], "duckdb", 3600.0)
    assert payload["columns"] == [
        {"name": "customer_id", "type": "INT64"},
        {"name": "account_number", "type": "STRING"},
        {"name": "since", "type": "DATE"},
    ]
    assert payload["location"].endswith(f"/v1/{made['snapshot']['id']}/edges/OWNS")
    assert made["snapshot"]["status"] == "pending"
    assert made["exports"][2]["queue_position"] == 3


async def test_nothing_of_it_exists_when_its_transaction_fails(ops: Client, conn: Any) -> None:
    made = (await ops.post("/api/mappings", json=mapping())).json()["data"]
    await ops.post("/api/job-kinds/exports.export/drain", json={"reason": "upgrade"})

    refused = await ops.post("/api/snapshots", json={"mapping_id": made["id"]})

    assert (refused.status_code, refused.json()["code"]) == (503, "DRAINING")
    for table in ("jobs", "snapshots", "exports", "pipelines"):
        assert await value(conn, f"SELECT count(*) FROM holdfast.{table}") == 0, table


async def test_it_is_of_the_version_it_names_whatever_the_mapping_becomes(ops: Client, conn: Any) -> None:
    """What an export runs was fixed when the snapshot was made."""
    made = (await ops.post("/api/mappings", json=mapping())).json()["data"]
    changed = {**CUSTOMER, "sql": "SELECT id, name, age FROM customer WHERE age > 3"}
    await ops.put(f"/api/mappings/{made['id']}", json={"change_description": "x", "nodes": [changed, ACCOUNT], "edges": []})

    old = await ops.post("/api/snapshots", json={"mapping_id": made["id"], "mapping_version": 1})
    new = await ops.post("/api/snapshots", json={"mapping_id": made["id"]})

    assert [len(one.json()["data"]["exports"]) for one in (old, new)] == [3, 2]
    assert new.json()["data"]["exports"][0]["sql"] == changed["sql"]
    assert (await ops.post("/api/snapshots", json={"mapping_id": made["id"], "mapping_version": 9})).status_code == 404


async def test_to_make_one_by_hand_is_for_operators_and_for_whom_it_was_granted(analyst: Client, ops: Client) -> None:
    """I-02."""
    made = (await analyst.post("/api/mappings", json=mapping())).json()["data"]

    refused = await analyst.post("/api/snapshots", json={"mapping_id": made["id"]})

    assert (refused.status_code, refused.json()["required_roles"]) == (403, ["admin", "ops"])
    assert (await ops.post("/api/snapshots", json={"mapping_id": made["id"]})).status_code == 202


async def test_a_mapping_with_snapshots_cannot_be_deleted(ops: Client, conn: Any) -> None:
    made = await make(ops)
    mapping_id = made["snapshot"]["mapping_id"]

    refused = await ops.delete(f"/api/mappings/{mapping_id}")

    assert (refused.status_code, refused.json()["code"]) == (409, "RESOURCE_HAS_DEPENDENCIES")
    assert refused.json()["dependencies"] == {"snapshots": 1}
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        await conn.execute("DELETE FROM holdfast.mappings WHERE id = %s", [mapping_id])
    tree = (await ops.get(f"/api/mappings/{mapping_id}/tree")).json()["data"]
    assert [one["id"] for one in tree["versions"][0]["snapshots"]] == [made["snapshot"]["id"]]


# ---------------------------------------------------------------------------------------------------------------------
# Ending
# ---------------------------------------------------------------------------------------------------------------------


async def test_the_first_claim_makes_it_creating_and_the_last_end_makes_it_ready(ops: Client, conn: Any) -> None:
    """W-05, W-17, X-04, X-10: with counts and sizes, in the transaction of the last finish."""
    made = await make(ops)
    first, *others = [await take(conn, job_id) for job_id in await jobs_of(ops, made)]
    assert await status(ops, made) == "creating"

    for claim in others:
        await end(conn, claim, written(rows=10, size=100))
    assert await status(ops, made) == "creating"
    async with conn.transaction(force_rollback=True):
        await end(conn, first, written(rows=5, size=1))
        assert await value(conn, "SELECT state FROM holdfast.snapshots") == "ready"
    assert await status(ops, made) == "creating", "it is ready exactly if the last finish commits"
    await end(conn, first, written(rows=5, size=1))

    snapshot = (await look(ops, made))["snapshot"]
    assert snapshot["status"] == "ready"
    assert (snapshot["node_counts"], snapshot["edge_counts"]) == ({"Customer": 5, "Account": 10}, {"OWNS": 10})
    assert (snapshot["size_bytes"], snapshot["error_message"]) == (201, None)


@pytest.mark.parametrize("ways", [*product(("completed", "failed"), repeat=3)], ids="-".join)
async def test_whatever_the_order_and_the_ways_it_ends_as_the_rule_says(ops: Client, conn: Any, ways: Any) -> None:
    """X-04, W-17: all completed is ready; all ended and one failed is failed, with the error of the one that failed first."""
    made = await make(ops)
    claims = [await take(conn, job_id) for job_id in await jobs_of(ops, made)]
    names = ("node Customer", "node Account", "edge OWNS")
    order = (1, 2, 0)  # neither by id nor the reverse
    for place in order:
        failed = ways[place] == "failed"
        await end(conn, claims[place], Fail(f"table {place} is gone") if failed else written())

    snapshot = (await look(ops, made))["snapshot"]
    errors = [f"{names[place]}: table {place} is gone" for place in order if ways[place] == "failed"]
    first = ("failed", errors[0]) if errors else ("ready", None)
    assert (snapshot["status"], snapshot["error_message"]) == first


async def test_an_export_that_does_not_say_what_it_wrote_is_refused_at_its_end(ops: Client, conn: Any) -> None:
    """W-15: no snapshot is ready with nothing in it because a count failed."""
    made = await make(ops)
    claim = await take(conn, (await jobs_of(ops, made))[0])

    with pytest.raises(psycopg.errors.CheckViolation, match="completed_has_a_manifest"):
        await end(conn, claim, Done({"rows": 7, "bytes": 1}))


async def quarantined(conn: Any, claim: Claim) -> None:
    await conn.execute("UPDATE holdfast.jobs SET max_crashes = crashes + 1 WHERE id = %s", [claim.id])
    await silence(conn, claim)
    assert await rescue(conn) == [claim.id]


async def cancelled_by_force(conn: Any, claim: Claim) -> None:
    await cancel(conn, claim.id, actor="test", reason="enough", force=True)


async def overdue(conn: Any, claim: Claim) -> None:
    await end(conn, claim, Submitted({"query": "q"}))
    await conn.execute(
        "UPDATE holdfast.jobs SET submitted_at = submitted_at - interval '1 day', next_poll_at = clock_timestamp()"
        " WHERE id = %s",
        [claim.id],
    )
    assert await fail_overdue(conn, await start_worker(conn)) == [claim.id]


async def out_of_tries(conn: Any, claim: Claim) -> None:
    await conn.execute("UPDATE holdfast.jobs SET max_attempts = 1 WHERE id = %s", [claim.id])
    claim = claim._replace(max_attempts=1)
    await end(conn, claim, Retry("the warehouse is away"))


@pytest.mark.parametrize(
    ("way", "becomes"),
    [(quarantined, "failed"), (overdue, "failed"), (out_of_tries, "failed"), (cancelled_by_force, "cancelled")],
)
async def test_it_ends_whoever_ends_its_last_export(ops: Client, conn: Any, way: Any, becomes: str) -> None:
    """X-10: a rescue, a sweep and a cancel are ends like any other."""
    made = await make(ops)
    last, *others = [await take(conn, job_id) for job_id in await jobs_of(ops, made)]
    for claim in others:
        await end(conn, claim, written())

    await way(conn, last)

    assert await status(ops, made) == becomes


@pytest.mark.parametrize("order", [*permutations(range(2))])
async def test_two_last_exports_that_end_at_once_take_turns_and_one_of_them_ends_it(
    ops: Client, connect: Any, order: Any
) -> None:
    """K-70."""
    made = await make(ops)
    conn = await connect()
    *rest, one, other = [await take(conn, job_id) for job_id in await jobs_of(ops, made)]
    for claim in rest:
        await end(conn, claim, written())
    first, second = await connect(), await connect()
    claims = [one, other]

    async with first.transaction():
        await end(first, claims[order[0]], written())
        ending = asyncio.create_task(end(second, claims[order[1]], written()))
        await waits(conn, second)
        assert await status(ops, made) == "creating"
    await ending

    assert await status(ops, made) == "ready"


# ---------------------------------------------------------------------------------------------------------------------
# Steering
# ---------------------------------------------------------------------------------------------------------------------


async def test_a_failure_stops_the_siblings_and_is_the_error_of_the_whole(ops: Client, conn: Any) -> None:
    """E-02: nothing goes on for nothing, and nothing is stuck."""
    made = await make(ops)
    jobs = await jobs_of(ops, made)
    failing, running = await take(conn, jobs[0]), await take(conn, jobs[1])
    await end(conn, failing, Fail("no such table"))
    assert (await look(ops, made))["snapshot"]["error_message"] == "node Customer: no such table"

    (found,) = await read_open(conn)
    assert (found.has_failed, found.siblings) == (True, 2)
    assert await stop_siblings(conn, found) == 2

    statuses = [one["status"] for one in (await look(ops, made))["exports"]]
    assert statuses == ["failed", "claimed", "cancelled"], "who runs is asked, who waits is cancelled"
    (found,) = await read_open(conn)
    assert not found.has_failed, "no sibling is cancelled twice"
    await end(conn, running, Retry("asked to stop"))
    snapshot = (await look(ops, made))["snapshot"]
    assert (snapshot["status"], snapshot["error_message"]) == ("failed", "node Customer: no such table")


async def test_cancel_stops_what_has_not_ended_and_it_is_cancelled_with_the_last(ops: Client, conn: Any) -> None:
    made = await make(ops)
    jobs = await jobs_of(ops, made)
    running = await take(conn, jobs[0])
    here = f"/api/snapshots/{made['snapshot']['id']}/cancel"

    asked = await ops.post(here, json={"reason": "the wrong mapping"})

    assert (asked.status_code, asked.json()["data"]["snapshot"]["status"]) == (202, "creating")
    await end(conn, running, written())
    assert await status(ops, made) == "cancelled", "a late completion does not make it ready"
    assert (await ops.post(here)).json()["code"] == "WRONG_STATE"
    states = await rows(conn, "SELECT state FROM holdfast.jobs ORDER BY id")
    assert states == [("completed",), ("cancelled",), ("cancelled",)]


async def test_retry_runs_what_failed_anew_and_nothing_else_and_forgets_the_error(ops: Client, conn: Any) -> None:
    """E-19: neither the error nor the jobs of the first try are left over."""
    made = await make(ops)
    jobs = await jobs_of(ops, made)
    good, bad = await take(conn, jobs[0]), await take(conn, jobs[1])
    await end(conn, good, written(rows=3))
    await end(conn, bad, Fail("no such table"))
    await cancel(conn, jobs[2], actor="test")
    assert await status(ops, made) == "failed"

    again = await ops.post(f"/api/snapshots/{made['snapshot']['id']}/retry", json={"reason": "the table is there"})

    data = again.json()["data"]
    assert (again.status_code, data["snapshot"]["status"], data["snapshot"]["error_message"]) == (202, "pending", None)
    assert [one["status"] for one in data["exports"]] == ["completed", "pending", "pending"]
    assert [one["error_message"] for one in data["exports"]] == [None, None, None]
    for job_id in jobs[1:]:
        await end(conn, await take(conn, job_id), written(rows=4))
    snapshot = (await look(ops, made))["snapshot"]
    assert (snapshot["status"], snapshot["node_counts"]) == ("ready", {"Customer": 3, "Account": 4})
    assert (await ops.post(f"/api/snapshots/{made['snapshot']['id']}/retry")).json()["code"] == "WRONG_STATE"


async def test_one_export_that_an_operator_runs_again_opens_its_snapshot(ops: Client, conn: Any) -> None:
    made = await make(ops)
    claims = [await take(conn, job_id) for job_id in await jobs_of(ops, made)]
    for claim, way in zip(claims, (Fail("x"), written(), written()), strict=True):
        await end(conn, claim, way)
    assert await status(ops, made) == "failed"

    assert (await ops.post(f"/api/jobs/{claims[0].id}/retry", json={"reason": "r"})).status_code == 202

    assert await status(ops, made) == "pending"
    await end(conn, await take(conn, claims[0].id), written())
    assert await status(ops, made) == "ready"


async def test_a_snapshot_is_deleted_when_it_has_ended_and_its_files_are_a_job(ops: Client, conn: Any) -> None:
    made = await make(ops)
    here = f"/api/snapshots/{made['snapshot']['id']}"
    assert (await ops.delete(here)).json()["code"] == "WRONG_STATE"
    for job_id in await jobs_of(ops, made):
        await end(conn, await take(conn, job_id), written())

    gone = (await ops.delete(here)).json()["data"]

    assert (await ops.get(here)).status_code == 404
    kind, payload = (await rows(conn, "SELECT kind, payload FROM holdfast.jobs WHERE id = %s", gone["removal_job_id"]))[0]
    assert (kind, payload) == ("exports.remove", {"snapshot_id": made["snapshot"]["id"]})
    assert (await ops.delete(f"/api/mappings/{made['snapshot']['mapping_id']}")).status_code == 200


# ---------------------------------------------------------------------------------------------------------------------
# The walls behind it, and the safety net
# ---------------------------------------------------------------------------------------------------------------------


async def test_the_database_refuses_every_move_that_is_not_legal(ops: Client, conn: Any) -> None:
    made = await make(ops)
    fields = {
        "ready": "node_counts = '{}', edge_counts = '{}', size_bytes = 0, error = NULL, finished_at = clock_timestamp()",
        "failed": "error = 'x', finished_at = clock_timestamp()",
        "cancelled": "finished_at = clock_timestamp()",
        "pending": "finished_at = NULL, error = NULL",
        "creating": "finished_at = NULL, error = NULL",
    }
    for before, after in product(SnapshotState, SnapshotState):
        async with conn.transaction(force_rollback=True):
            await conn.execute("ALTER TABLE holdfast.snapshots DISABLE TRIGGER legal_snapshot_moves_only")
            await conn.execute(f"UPDATE holdfast.snapshots SET state = '{before}', {fields[before]}")
            await conn.execute("ALTER TABLE holdfast.snapshots ENABLE TRIGGER legal_snapshot_moves_only")
            move = f"UPDATE holdfast.snapshots SET state = '{after}', {fields[after]} WHERE id = {made['snapshot']['id']}"
            if before == after or (before, after) in LEGAL_MOVES:
                await conn.execute(move)
            else:
                with pytest.raises(psycopg.errors.CheckViolation):
                    async with conn.transaction():
                        await conn.execute(move)


@pytest.mark.parametrize("what", ["missed", "deleted"])
async def test_the_safety_net_ends_what_the_trigger_did_not_see(ops: Client, conn: Any, what: str) -> None:
    """X-04, X-10, W-19: completed before it was finalised."""
    made = await make(ops)
    *others, last = [await take(conn, job_id) for job_id in await jobs_of(ops, made)]
    for claim in others:
        await end(conn, claim, written())
    await conn.execute("ALTER TABLE holdfast.jobs DISABLE TRIGGER run_job_followers")
    if what == "missed":
        await end(conn, last, written())
    else:
        await conn.execute("DELETE FROM holdfast.jobs WHERE id = %s", [last.id])
    await conn.execute("ALTER TABLE holdfast.jobs ENABLE TRIGGER run_job_followers")
    assert await status(ops, made) == "creating"

    (found,) = await read_open(conn)
    assert found.is_due
    async with conn.transaction():
        assert await settle(conn, found.id) == ("ready" if what == "missed" else "failed")

    assert await read_open(conn) == []


async def test_a_snapshot_without_exports_is_left_alone(ops: Client, conn: Any) -> None:
    """X-05."""
    made = await make(ops)
    await conn.execute("DELETE FROM holdfast.exports")

    (found,) = await read_open(conn)
    assert not found.is_due
    async with conn.transaction():
        assert await settle(conn, made["snapshot"]["id"]) == "pending"


async def test_other_kinds_of_jobs_are_no_concern_of_it(conn: Any) -> None:
    claim = await hold(conn, "exports.export", payload={"snapshot_id": 99})
    await end(conn, claim, written())

    assert await value(conn, "SELECT state FROM holdfast.jobs WHERE id = %s", claim.id) == "completed"


FIELDS = (
    *("id", "snapshot_id", "job_type", "entity_name", "status", "gcs_path", "sql", "column_names", "starburst_catalog"),
    *("starburst_role", "claimed_by", "claimed_at", "starburst_query_id", "next_uri", "next_poll_at", "poll_count"),
    *("submitted_at", "completed_at", "row_count", "size_bytes", "error_message"),
)


async def test_export_jobs_are_listed_by_status_in_the_words_of_the_document(ops: Client, analyst: Client, conn: Any) -> None:
    """W-20, W-21."""
    mapped = await ops.post("/api/mappings", json=mapping(edges=[{**OWNS, "catalog": "memory"}]))
    asked = {"mapping_id": mapped.json()["data"]["id"]}
    made = (await ops.post("/api/snapshots", json=asked, headers={"X-Use-Case-Id": "risk"})).json()["data"]
    first, second, third = [await take(conn, job_id) for job_id in await jobs_of(ops, made)]
    await end(conn, first, written())
    await end(conn, second, Submitted({"query": {"query_id": "20261116_1", "next_uri": "http://t/1"}}, timedelta(seconds=2)))

    found = {one["status"]: one for one in (await ops.get("/api/export-jobs")).json()["data"]}

    assert set(found) == {"completed", "submitted", "claimed"}
    claimed, submitted, completed = found["claimed"], found["submitted"], found["completed"]
    assert set(FIELDS) <= set(submitted)
    assert (submitted["starburst_query_id"], submitted["next_uri"], submitted["poll_count"]) == ("20261116_1", "http://t/1", 1)
    assert submitted["submitted_at"] < submitted["next_poll_at"]
    assert (submitted["claimed_by"], submitted["claimed_at"]) == (None, None)
    assert (completed["row_count"], completed["size_bytes"], completed["completed_at"] is not None) == (7, 70, True)
    assert (claimed["id"], claimed["claimed_by"], claimed["claimed_at"] is not None) == (third.id, "worker", True)
    shown = [claimed[name] for name in ("job_type", "entity_name", "starburst_role", "starburst_catalog", "column_names")]
    assert shown == ["edge", "OWNS", "risk", "memory", ["customer_id", "account_number", "since"]]
    assert claimed["gcs_path"].endswith("/edges/OWNS")
    only = (await ops.get("/api/export-jobs", params={"status": "submitted"})).json()["data"]
    assert [one["id"] for one in only] == [second.id]
    assert (await analyst.get("/api/export-jobs")).json()["data"] == [], "others' are not an analyst's to see"
