"""The loop export_reconciliation on real rows: leases and not ages, overlong work, orphans, the safety net, the gauges."""

from __future__ import annotations

from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families
from psycopg_pool import AsyncConnectionPool

from export_factories import UnloadingEngine, exports, mapping, refuse
from factories import end, hold, rows, silence, state_of, take, value
from holdfast.api.metrics import Gauges
from holdfast.engines.port import Phase, QueryRefused
from holdfast.jobs.outcome import Done, Fail, Retry, Submitted
from holdfast.jobs.rescue import rescue
from holdfast.jobs.tallies import sum_up
from holdfast.schedule.context import Held, Pass
from holdfast.schedule.registry import Loop
from holdfast.services.exports import reconcile
from holdfast.services.exports.figures import jobs_by_status
from holdfast.services.exports.setup import Exports
from loop_factories import LONG, taken

Client = httpx2.AsyncClient
ENGINE = UnloadingEngine  # of the fixtures `engine` and `here`
WRITTEN = {"rows": 7, "bytes": 70, "files": [], "columns": [], "runtime": "direct"}


async def scraped(app: Any, client: Client) -> dict[tuple[str, ...], float]:
    """What /metrics says now."""
    app.state.plane.gauges._read_at = None
    families = text_string_to_metric_families((await client.get("/metrics")).text)
    return {(one.name, *one.labels.values()): one.value for family in families for one in family.samples}


@pytest.fixture
async def ctx(conn: Any, database: str, connect: Any) -> Any:
    """One pass of the loop, under a term of its own."""
    loop = Loop(reconcile.NAME, reconcile.reconcile, every=reconcile.EVERY, first_run="at_once")
    term = await taken(conn, loop)

    @asynccontextmanager
    async def borrow() -> Any:
        yield await connect()

    return Pass(term, Held(LONG), borrow, database)


async def make(ops: Client) -> dict[str, Any]:
    made = (await ops.post("/api/mappings", json=mapping())).json()["data"]
    data: dict[str, Any] = (await ops.post("/api/snapshots", json={"mapping_id": made["id"]})).json()["data"]
    return data


async def status(conn: Any) -> str:
    return str(await value(conn, "SELECT state FROM holdfast.snapshots"))


async def test_a_claim_is_stale_when_its_lease_is_over_and_not_when_it_is_old(ops: Client, conn: Any, ctx: Any) -> None:
    """X-01, X-06, K-22, E-01: an export that runs for an hour under a live lease is not taken, and a submitted one never."""
    made = await make(ops)
    old, lost, submitted = [await take(conn, one["id"]) for one in made["exports"]]
    await conn.execute("UPDATE holdfast.jobs SET claimed_at = claimed_at - interval '1 hour' WHERE id <> %s", [lost.id])
    await end(conn, submitted, Submitted({"query": {"query_id": "q"}, "tag": "q", "prefix": "p", "runtime": "unload"}))
    await silence(conn, lost, submitted)

    result = await reconcile.reconcile(ctx)

    assert [await state_of(conn, claim.id) for claim in (old, lost, submitted)] == ["running", "pending", "submitted"]
    assert result.fields["stale_claims_reset"] == 1
    shown = (await ops.get(f"/api/export-jobs/{lost.id}")).json()["data"]
    assert (shown["status"], shown["claimed_by"], shown["claimed_at"]) == ("pending", None, None)


async def test_what_an_engine_has_for_too_long_fails_in_the_words_of_the_document(
    ops: Client, admin: Client, conn: Any, ctx: Any
) -> None:
    """X-03, X-06: the configured time counts, whatever it was when the job was made."""
    await admin.put("/api/config/export.max_duration_seconds", json={"value": 120, "reason": "test"})
    made = await make(ops)
    long, short, _ = [await take(conn, one["id"]) for one in made["exports"]]
    handle = {"query": {"query_id": "q"}, "tag": "q", "prefix": "p", "runtime": "unload"}
    for claim in (long, short):
        await end(conn, claim, Submitted(handle))
    await conn.execute("UPDATE holdfast.jobs SET submitted_at = submitted_at - interval '121 seconds' WHERE id = %s", [long.id])

    await reconcile.reconcile(ctx)

    found = await rows(conn, "SELECT id, state, error FROM holdfast.jobs WHERE id IN (%s, %s) ORDER BY id", long.id, short.id)
    assert found[0] == (long.id, "failed", "Export job exceeded maximum duration (120s)")
    assert found[1][1] in ("submitted", "cancelled"), "its siblings may have been stopped by then"


async def leave(conn: Any, made: dict[str, Any], engine: UnloadingEngine) -> int:
    """Submit the first export of a snapshot and complete the others; nobody asks about it from here on."""
    first, *others = [await take(conn, one["id"]) for one in made["exports"]]
    for claim in others:
        await end(conn, claim, Done(WRITTEN))
    place = Path(made["exports"][0]["gcs_path"]) / "attempt-1"
    sql = f"COPY (SELECT * FROM customer) TO '{place}/part-0.parquet' (FORMAT parquet)"
    engine.queries["tag-1"] = {"sql": sql, "phase": Phase.RUNNING, "role": None}
    handle = {"query": {"query_id": "tag-1", "next_uri": None}, "tag": "tag-1", "prefix": "attempt-1", "runtime": "unload"}
    await end(conn, first, Submitted(handle))
    return first.id


async def be_overdue(conn: Any, job_id: int, minutes: int) -> None:
    """No worker has asked about it for so long."""
    overdue = "UPDATE holdfast.jobs SET next_poll_at = clock_timestamp() - make_interval(mins => %s) WHERE id = %s"
    await conn.execute(overdue, [minutes, job_id])


async def test_an_orphan_is_asked_about_by_its_query_id_and_comes_to_its_end(
    ops: Client, conn: Any, ctx: Any, engine: UnloadingEngine, here: Exports
) -> None:
    """X-02, W-18: no worker is there, and the engine is done."""
    left = await leave(conn, await make(ops), engine)
    engine.finish()

    await be_overdue(conn, left, 29)
    result = await reconcile.reconcile(ctx)
    assert (result.fields["orphans_polled"], await state_of(conn, left)) == (0, "submitted"), "a worker may still ask"
    await be_overdue(conn, left, 31)
    result = await reconcile.reconcile(ctx)

    assert (result.fields["orphans_polled"], await state_of(conn, left)) == (1, "completed")
    assert await value(conn, "SELECT node_counts ->> 'Customer' FROM holdfast.snapshots") == "100"


@pytest.mark.parametrize(
    ("phase", "error", "becomes"),
    [
        (Phase.FAILED, QueryRefused("no permission"), ("failed", "engine_query_refused: no permission")),
        (Phase.RUNNING, None, ("submitted", None)),
    ],
)
async def test_an_orphan_fails_with_its_query_and_is_left_alone_while_that_runs(
    ops: Client, conn: Any, ctx: Any, engine: UnloadingEngine, here: Exports, phase: Phase, error: Any, becomes: Any
) -> None:
    """X-02: asking stops no query, and submits none."""
    left = await leave(conn, await make(ops), engine)
    engine.end(phase, error)
    await be_overdue(conn, left, 31)

    result = await reconcile.reconcile(ctx)

    shown = (await ops.get(f"/api/export-jobs/{left}")).json()["data"]
    assert (result.fields["orphans_polled"], shown["status"], shown["error_message"]) == (1, *becomes)
    assert (list(engine.queries), engine.cancelled) == (["tag-1"], [])


async def test_an_orphan_of_a_worker_of_anybodys_making_comes_to_its_end(
    ops: Client, as_role: Any, conn: Any, ctx: Any, engine: UnloadingEngine, here: Exports
) -> None:
    """X-02: submitted by the protocol of document 002, and left."""
    await make(ops)
    theirs = await as_role("worker")
    (one,) = (await theirs.post("/export-jobs/claim", json={"worker_id": "pod-1", "limit": 1})).json()["data"]
    sql = f"COPY (SELECT * FROM customer) TO '{one['gcs_path']}/part-0.parquet' (FORMAT parquet)"
    engine.queries["q1"] = {"sql": sql, "phase": Phase.RUNNING, "role": None}
    said = {"status": "submitted", "starburst_query_id": "q1", "next_uri": "http://engine/q1/1"}
    await theirs.patch(f"/export-jobs/{one['id']}", json=said, headers={"If-Match": one["attempt_id"]})
    engine.finish()
    await conn.execute(
        "UPDATE holdfast.jobs SET next_poll_at = next_poll_at - interval '31 minutes' WHERE id = %s", [one["id"]]
    )

    result = await reconcile.reconcile(ctx)

    assert (result.fields["orphans_polled"], await state_of(conn, one["id"])) == (1, "completed")


async def test_siblings_of_a_failure_are_stopped_and_the_snapshot_fails(ops: Client, conn: Any, ctx: Any) -> None:
    """X-10, E-02."""
    made = await make(ops)
    failing = await take(conn, made["exports"][0]["id"])
    await end(conn, failing, Fail("no such table"))
    assert await status(conn) == "creating"

    await reconcile.reconcile(ctx)

    assert await status(conn) == "failed"
    assert await rows(conn, "SELECT state FROM holdfast.jobs ORDER BY id") == [("failed",), ("cancelled",), ("cancelled",)]


@pytest.mark.more
async def test_the_safety_net_ends_what_was_missed_and_counts_it(app: Any, ops: Client, conn: Any, ctx: Any) -> None:
    """X-04, X-09."""
    made = await make(ops)
    await conn.execute("ALTER TABLE holdfast.jobs DISABLE TRIGGER run_job_followers")
    for one in made["exports"]:
        await end(conn, await take(conn, one["id"]), Done(WRITTEN))
    await conn.execute("ALTER TABLE holdfast.jobs ENABLE TRIGGER run_job_followers")

    result = await reconcile.reconcile(ctx)

    assert (await status(conn), result.fields["snapshots_finalized"]) == ("ready", 1)
    shown = await scraped(app, ops)
    assert shown["snapshots_finalized_total",] == 1
    assert shown["snapshot_finalization_lag_seconds",] > 0
    assert (await reconcile.reconcile(ctx)).fields["snapshots_finalized"] == 0


@pytest.mark.more
async def test_every_finalised_snapshot_and_every_stale_claim_is_counted_whoever_does_it(
    app: Any, ops: Client, conn: Any, ctx: Any, database: str
) -> None:
    """X-07, V-14, E-22: in normal operation a trigger finalises and a worker rescues. Another process says the same numbers."""
    made = await make(ops)
    first, second, third = [await take(conn, one["id"]) for one in made["exports"]]
    await silence(conn, first)
    assert await rescue(conn) == [first.id], "by a worker, and not by the loop"
    await silence(conn, second)
    await conn.execute("UPDATE holdfast.jobs SET max_crashes = 1 WHERE id = %s", [second.id])
    assert await rescue(conn) == [second.id]
    assert await state_of(conn, second.id) == "failed", "quarantined: detected, and not reset"
    await end(conn, await take(conn, first.id), Done(WRITTEN))
    await end(conn, third, Done(WRITTEN))
    assert await status(conn) == "failed", "by the trigger"
    await silence(conn, await hold(conn, "another.kind"))
    await rescue(conn)

    shown = await scraped(app, ops)

    names = ("stale_export_claims_detected", "stale_export_claims_reset", "snapshots_ready_to_finalize", "snapshots_finalized")
    assert [shown[f"{name}_total",] for name in (*names, "snapshots_finalization_failures")] == [2, 1, 1, 1, 0]
    await sum_up(conn)
    async with AsyncConnectionPool(database, min_size=1, kwargs={"autocommit": True}) as pool:
        another = Gauges(pool, "another replica", {"exports": exports(UnloadingEngine())})
        await another.refresh()
        of_another = {(one.name, *one.labels.values()): one.value for family in another.collect() for one in family.samples}
    read_from_it = ("stale_", "snapshots_", "snapshot_finalization", "export_jobs", "schema_cache_entries", "graph_olap_e")
    same = [key for key in shown if key[0].startswith(read_from_it)]
    assert {key: of_another[key] for key in same} == {key: shown[key] for key in same}
    assert (await reconcile.reconcile(ctx)).failed == 0
    passes = ("export_reconciliation_passes_total", "export_reconciliation_pass_duration_seconds_count")
    after = await scraped(app, ops)
    assert [after[name,] - shown[name,] for name in passes] == [1, 1]


async def test_one_row_that_raises_undoes_no_other_and_stops_no_step(ops: Client, conn: Any, ctx: Any) -> None:
    """S-16, E-23: each item has a transaction of its own; a pass that did some of it is a success that counts what failed."""
    long, late, stale = [await take(conn, one["id"]) for one in (await make(ops))["exports"]]
    second = (await ops.post("/api/snapshots", json={"mapping_id": 1})).json()["data"]
    handle = {"query": {"query_id": "q"}, "tag": "q", "prefix": "p", "runtime": "unload"}
    for claim in (long, late):
        await end(conn, claim, Submitted(handle))
    await conn.execute("UPDATE holdfast.jobs SET submitted_at = submitted_at - interval '2 days' WHERE state = 'submitted'")
    await conn.execute("ALTER TABLE holdfast.jobs DISABLE TRIGGER run_job_followers")
    for one in second["exports"]:
        await end(conn, await take(conn, one["id"]), Done(WRITTEN))
    await conn.execute("ALTER TABLE holdfast.jobs ENABLE TRIGGER run_job_followers")
    await silence(conn, stale)
    await refuse(conn, "jobs", long.id, stale.id)

    result = await reconcile.reconcile(ctx)

    assert await state_of(conn, long.id) == "submitted", "the row that raises stays as it is"
    assert await state_of(conn, late.id) == "failed", "and undoes no other"
    assert await value(conn, "SELECT state FROM holdfast.snapshots WHERE id = 2") == "ready", "nor what follows"
    assert (result.fields["jobs_too_long"], result.fields["snapshots_finalized"]) == (1, 1)
    assert result.failed >= 2


@pytest.mark.more
async def test_one_snapshot_that_cannot_be_ended_does_not_keep_the_others(app: Any, ops: Client, conn: Any, ctx: Any) -> None:
    """S-16."""
    first, second = await make(ops), (await ops.post("/api/snapshots", json={"mapping_id": 1})).json()["data"]
    await conn.execute("ALTER TABLE holdfast.jobs DISABLE TRIGGER run_job_followers")
    for one in first["exports"] + second["exports"]:
        await end(conn, await take(conn, one["id"]), Done(WRITTEN if one["snapshot_id"] == 2 else {"rows": 1}))
    await conn.execute("ALTER TABLE holdfast.jobs ENABLE TRIGGER run_job_followers")

    result = await reconcile.reconcile(ctx)

    assert (result.fields["snapshots_finalized"], result.failed) == (1, 1)
    assert await rows(conn, "SELECT state FROM holdfast.snapshots ORDER BY id") == [("pending",), ("ready",)]
    shown = await scraped(app, ops)
    assert shown["snapshots_finalization_failures_total",] == 1
    assert shown["snapshots_ready_to_finalize_total",] == 2


@pytest.mark.more
async def test_the_gauges_show_export_jobs_by_status_whatever_queue_they_are_in(app: Any, ops: Client, conn: Any) -> None:
    """X-08: all statuses; delayed jobs, retries and those that wait for a lock are pending. No pass of the loop is needed."""
    await make(ops)
    for _ in range(2):
        await ops.post("/api/snapshots", json={"mapping_id": 1})
    ids = [row[0] for row in await rows(conn, "SELECT id FROM holdfast.jobs ORDER BY id")]
    _claimed, submitted, completed, failed, retried = [await take(conn, one) for one in ids[:5]]
    await end(conn, submitted, Submitted({"query": {"query_id": "q"}, "tag": "q", "prefix": "p", "runtime": "unload"}))
    await end(conn, completed, Done(WRITTEN))
    await end(conn, failed, Fail("no such table"))
    await end(conn, retried, Retry("busy", delay=timedelta(hours=1)))
    await conn.execute("UPDATE holdfast.jobs SET queue = 'other' WHERE id = %s", [ids[5]])
    await conn.execute("UPDATE holdfast.jobs SET state = 'cancelled', finished_at = clock_timestamp() WHERE id = %s", [ids[6]])

    shown = await scraped(app, ops)

    expected = {"pending": 4, "claimed": 1, "submitted": 1, "completed": 1, "failed": 1, "cancelled": 1}
    assert {status: count.count for status, count in (await jobs_by_status(conn)).items()} == expected
    assert {key[1]: count for key, count in shown.items() if key[0] == "export_jobs_by_status_total"} == expected
    assert shown["graph_olap_export_queue_depth",] == 4
    state = (await ops.get("/api/ops/state")).json()["data"]
    assert {status: one["value"] for status, one in state["export_jobs"].items()} == expected
    assert {status: one["value"] for status, one in state["snapshots"].items()} == {
        "pending": 1,
        "creating": 2,
        "ready": 0,
        "failed": 0,
        "cancelled": 0,
    }
