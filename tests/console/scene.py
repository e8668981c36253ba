"""A system at work, made with the operations of the kernel: jobs in every state, a stale one, failures, a pipeline, locks,
effects, log lines, loops, pauses, a mapping with versions, and snapshots. The same for tests and screenshots."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import httpx2
from psycopg.types.json import Jsonb

from export_factories import ACCOUNT, mapping
from factories import Conn, add, end, hold, publish_kinds, rows, silence, start_worker, take
from holdfast.jobs import logs, pipelines
from holdfast.jobs.claim import claim, claim_by_id
from holdfast.jobs.declare import Declaration
from holdfast.jobs.effects import plan
from holdfast.jobs.enqueue import enqueue_many
from holdfast.jobs.finish import complete_plain
from holdfast.jobs.model import Claim, Lock, NewJob, WorkerId
from holdfast.jobs.outcome import Done, Fail, Retry
from holdfast.jobs.progress import report
from holdfast.schedule.context import Pass
from holdfast.schedule.registry import Loop
from holdfast.schedule.term import ensure
from holdfast.services.ingestion.models import store
from holdfast.services.ingestion.models.rules import model_of
from holdfast.services.ingestion.models.yaml_file import EXAMPLE, read_model
from holdfast.services.ingestion.sources import files
from holdfast.services.maintenance.engines.interface import ActionResult, TableRef
from holdfast.services.maintenance.run import record
from holdfast.services.maintenance.tables import cache
from holdfast.telemetry.kept import Line
from maintenance_factories import HEALTHY, INPUTS, STATS

BIG = 9007199254740993  # one more than a JavaScript number can represent
TABLE = TableRef("default", "sales-eu", "page-views")
DETAILS = {
    "rewrite_data_files": {"rewritten_files": 1000},
    "expire_snapshots": {"deleted_files": 996, "deleted_bytes": 12 << 30},
}
KINDS = ("csv.ingest", "emission.recalc", "report.aggregate", "exports.run", "invoice.render", "table.optimize")


@dataclass
class Scene:
    """The ids that tests open."""

    running: int
    stale: int
    failed: int
    pipeline: str
    mapping: int
    snapshot: int
    graph: int
    ingestion: int
    worker: WorkerId


async def build(conn: Conn, url: str, admin: httpx2.AsyncClient) -> Scene:
    """Everything; a few hundred milliseconds."""
    publish_kinds(url, *(Declaration(kind) for kind in KINDS))
    kinds = dict.fromkeys(KINDS, 1)
    worker = await start_worker(conn, "export-7d9f", kinds=kinds, concurrency=8, git_sha="ab12cd34ef56")
    other = await start_worker(conn, "ingest-1c2b", kinds=kinds, concurrency=4, git_sha="ab12cd34ef56")
    await _history(conn, worker)
    failed = await _failures(conn, worker)
    running = await _running(conn, worker)
    pipeline = await _pipeline(conn, other)
    await _waiting(conn)
    stale = await _stale(conn)
    await ensure(
        conn, [_loop("lifecycle", minutes=5), _loop("export_reconciliation", minutes=1), _loop("schema_cache", hours=24)]
    )
    mapping_id, snapshot = await _exports(conn, admin, other)
    await _tables(conn, admin, other)
    ingestion = await _ingestion(conn, other)
    await admin.post(f"/api/jobs/{failed}/retry", json={"reason": "fixed the table name"})
    failed = await _failures(conn, worker)
    await admin.post("/api/job-kinds/report.aggregate/pause", json={"reason": "waiting for the new units"})
    graph = await _graphs(conn, mapping_id, snapshot)
    return Scene(running, stale, failed, pipeline, mapping_id, snapshot, graph, ingestion, worker)


async def _history(conn: Conn, worker: WorkerId) -> None:
    """An hour of work: the rows are moved into the past."""
    places = range(70)
    await enqueue_many(conn, [NewJob(KINDS[place % 4], {"n": place}) for place in places])
    claims = await claim(conn, worker, kinds=KINDS, limit=len(places))
    assert [claimed.payload["n"] for claimed in claims] == list(places)
    await complete_plain(conn, claims, [json.dumps({"rows": place * 10}) for place in places])
    times = [(timedelta(minutes=58 - place * 0.8), timedelta(seconds=2 + place % 9)) for place in places]
    await moved(conn, *((claimed.id, *when) for claimed, when in zip(claims, times, strict=True)))


async def moved(conn: Conn, *jobs: tuple[int, timedelta, timedelta]) -> None:
    """Move ended jobs into the past: their ids, how long ago they ended, and how long they took."""
    await conn.cursor().executemany(
        """UPDATE holdfast.jobs SET created_at = clock_timestamp() - %(ago)s - %(took)s - interval '1 s',
           claimed_at = clock_timestamp() - %(ago)s - %(took)s, finished_at = clock_timestamp() - %(ago)s
           WHERE id = %(id)s""",
        [{"id": job_id, "ago": ago, "took": took} for job_id, ago, took in jobs],
    )


async def _failures(conn: Conn, worker: WorkerId) -> int:
    last = 0
    for place in range(6):
        claim = await hold(conn, "exports.run", worker=worker, payload={"table": f"crm.customers_{place}"}, max_attempts=1)
        error = f"QueryRefused: Table 'hive.crm.customers_{place}' does not exist"
        detail = (
            'Traceback (most recent call last):\n  File "jobs.py", line 12, in export\n    rows = engine.stream(query)\n'
            + error
        )
        await end(conn, claim, Fail(error))
        await conn.execute(
            "UPDATE holdfast.history SET detail = jsonb_build_object('traceback', %s::text) "
            "WHERE job_id = %s AND move = 'fail'",
            [detail, claim.id],
        )
        await moved(conn, (claim.id, timedelta(minutes=20 - place * 2.5), timedelta(seconds=4)))
        last = claim.id
    claim = await hold(conn, "csv.ingest", worker=worker, payload={"file": "units-2026.csv"}, max_attempts=1)
    await end(conn, claim, Fail('UniqueViolation: duplicate key value violates unique constraint "units_year_key"'))
    return last


async def _running(conn: Conn, worker: WorkerId) -> int:
    payload = {"table": "hive.crm.orders", "batch": BIG, "limits": {"rows": 5000000}, "api_key": "sk-live-very-secret"}
    first = await hold(
        conn, "exports.run", worker=worker, payload=payload, locks=[Lock("table:hive.crm.orders")], max_attempts=3
    )
    await end(conn, first, Retry("ConnectionReset: the engine closed the connection", timedelta(0)))
    await conn.execute("UPDATE holdfast.jobs SET run_after = NULL WHERE id = %s", [first.id])
    claim = await take(conn, first.id, worker)
    await report(conn, claim, progress=0.61, message="1,204,000 of 1,970,000 rows")
    await plan(conn, claim, "trino.query", tag=f"holdfast-{claim.id}-{claim.attempt_no}")
    await _log(conn, claim, ["info:query submitted", "info:first page after 1.2 s", "warning:slow page", "info:page 7"])
    await hold(conn, "invoice.render", worker=worker, payload={"invoice_id": 4711}, slot_key="invoice:4711")
    return claim.id


async def _log(conn: Conn, claim: Claim, said: list[str]) -> None:
    lines = [(level, text) for level, _, text in (one.partition(":") for one in said)]
    numbered = [
        logs.Numbered(claim, number, Line(datetime.now(UTC).isoformat(), level, text, {"page": number}))
        for number, (level, text) in enumerate(lines, 1)
    ]
    await logs.write(conn, numbered)


async def _pipeline(conn: Conn, worker: WorkerId) -> str:
    made = pipelines.Pipeline("csv_ingest 2026-11")
    start = made.add(NewJob("csv.ingest", {"file": "units.csv"}))
    middle = [made.add(NewJob("emission.recalc", {"module": place}), after=start) for place in range(12)]
    made.add(NewJob("report.aggregate", {}), after=middle)
    jobs = await made.enqueue(conn)
    await end(conn, await take(conn, jobs[0].id, worker), Done({"rows": 1200}))
    for place, one in enumerate(jobs[1:9]):
        claim = await take(conn, one.id, worker)
        if place == 3:
            await end(conn, claim, Fail("ValueError: factor for 2026 is missing"))
        elif place < 7:
            await end(conn, claim)
    return made.id


async def _waiting(conn: Conn) -> None:
    for place in range(9):
        await add(conn, "emission.recalc", payload={"module": place})
    await add(conn, "table.optimize", payload={"table": "sales.orders"}, run_after=timedelta(minutes=20))
    waiting = await hold(conn, "table.optimize", locks=[Lock("table:sales.orders")])
    assert waiting.id
    blocked = await add(conn, "table.optimize", payload={}, locks=[Lock("table:sales.orders")])
    assert await claim_by_id(conn, await start_worker(conn, "maintenance-0"), blocked) is None
    retried = await hold(conn, "csv.ingest", max_attempts=5)
    await end(conn, retried, Retry("Timeout: no answer within 30 s", timedelta(minutes=3)))


async def _stale(conn: Conn) -> int:
    lost = await start_worker(conn, "export-55aa", kinds={"exports.run": 1}, git_sha="ab12cd34ef56")
    claim = await hold(conn, "exports.run", worker=lost, payload={"table": "hive.crm.accounts"})
    await _log(conn, claim, ["info:query submitted"])
    await silence(conn, claim)
    await conn.execute(
        "UPDATE holdfast.workers SET beat_at = clock_timestamp() - interval '14 min', "
        "lease_until = clock_timestamp() - interval '9 min' WHERE id = %s",
        [lost],
    )
    return claim.id


async def _exports(conn: Conn, admin: httpx2.AsyncClient, worker: WorkerId) -> tuple[int, int]:
    made = (await admin.post("/api/mappings", json=mapping())).json()["data"]
    change = {"change_description": "accounts only by number", "nodes": [n for n in made["nodes"] if n["label"] != "Nobody"]}
    change["nodes"] = [{**n, "sql": n["sql"] + " WHERE true"} if n["label"] == ACCOUNT["label"] else n for n in change["nodes"]]
    answer = await admin.put(f"/api/mappings/{made['id']}", json=change)
    assert answer.status_code == 200, answer.text
    made_snapshot = (await admin.post("/api/snapshots", json={"mapping_id": made["id"], "ttl": "P7D"})).json()["data"]
    columns = [{"name": "id", "type": "BIGINT", "arrow": "int64"}]
    for place, export in enumerate(made_snapshot["exports"]):
        claim = await take(conn, export["id"], worker)
        if place == 0:
            files = [{"path": "attempt=1/part-00000.parquet", "rows": 100, "bytes": 4312}]
            result = {"rows": 100, "bytes": 4312, "files": files, "columns": columns, "runtime": "direct"}
            await end(conn, claim, Done(result))
        elif place == 1:
            await report(conn, claim, progress=0.42, message="21 of 50 rows")
    return made["id"], made_snapshot["snapshot"]["id"]


GRAPHS = """
    INSERT INTO holdfast.graph_instances (owner, name, engine, mapping_id, mapping_version, snapshot_id, state, job_id,
        start_token, memory_mb, cpu, address, started_at, runtime_name, ttl, inactivity_timeout, last_activity_at, created_at,
        error_code, error, memory_bytes, disk_bytes, progress, query_count, suspended_at)
    VALUES (%(owner)s, %(name)s, 'ladybug', %(mapping)s, 1, %(snapshot)s, %(state)s, 1, gen_random_uuid(), 2048, 1,
        %(address)s, now() - interval '3 hours', %(process)s, 'PT24H', 'PT4H', now() - interval '4 minutes',
        now() - interval '3 hours', %(code)s, %(error)s, %(memory)s, 81000000, %(progress)s, 218,
        CASE %(state)s WHEN 'suspended' THEN now() END)
    RETURNING id
"""


async def _graphs(conn: Conn, mapping_id: int, snapshot: int) -> int:
    """Rows of graphs, the last of which loads; none has a graph server."""
    empty = dict.fromkeys(("address", "process", "code", "error", "memory"))
    states: list[dict[str, object]] = [
        {"name": "fraud rings", "state": "suspended", "owner": "token:analyst"},
        {"name": "households", "state": "failed", "code": "OOM_KILLED", "error": "the graph server used more than 2 GiB"},
        {
            "name": "bank 2026-11",
            "state": "running",
            "address": "http://127.0.0.1:1",
            "process": "pid 1",
            "memory": 913_000_000,
        },
        {"name": "bank 2026-12", "state": "starting"},
    ]
    last = 0
    for one in states:
        loaded = 21_400 if one["state"] == "starting" else 50_000
        tables = [
            {"name": "Customer", "type": "node", "rows": 100_000, "loaded": 100_000, "state": "loaded"},
            {"name": "Account", "type": "node", "rows": 50_000, "loaded": loaded, "state": "copying"},
        ]
        progress = Jsonb({"share": 0.8, "tables": tables})
        given = {"owner": "token:ada", "mapping": mapping_id, "snapshot": snapshot, "progress": progress}
        ((last,),) = await (await conn.execute(GRAPHS, empty | given | one)).fetchall()
        details = {"memory_mb": 2048, "error": one.get("error")}
        await conn.execute(
            "INSERT INTO holdfast.graph_events (instance_id, event_type, details) VALUES (%s, 'created', '{}'), (%s, %s, %s)",
            [last, last, "failed" if one["state"] == "failed" else "started", Jsonb(details)],
        )
    return last


async def _tables(conn: Conn, admin: httpx2.AsyncClient, worker: WorkerId) -> None:
    """Tables of every health; one was maintained and then planned again, one is being maintained; two policies."""
    await cache.note_measured(conn, TABLE, INPUTS)
    await cache.note_measured(conn, replace(TABLE, name="customers"), HEALTHY)
    await cache.note_measured(conn, replace(TABLE, name="events"), replace(INPUTS, snapshots_over_5_days=60))
    await cache.see(conn, [replace(TABLE, name="new")])
    address = f"/api/tables/{TABLE.namespace}/{TABLE.name}/maintenance"
    actions = list(DETAILS)
    for dry_run, reason in ((False, "slow dashboards"), (True, None)):
        body = {"actions": actions, "dry_run": dry_run, "reason": reason}
        made = (await admin.post(address, json=body)).json()["data"]
        claim = await take(conn, made["id"], worker)
        before, after = STATS, replace(STATS, data_files=4, snapshots=13)
        for position, (action, details) in enumerate(DETAILS.items(), 1):
            result = ActionResult(action, before, after, 41.5, details, dry_run)
            await record.begin(conn, claim, position, before)
            await record.finish(conn, claim, position, status="completed", result=result, engine_seconds=41.5)
            before = STATS if dry_run else after
            after = replace(before, snapshots=2)
        await end(conn, claim)
    events = (await admin.post(address.replace(TABLE.name, "events"), json={"actions": actions})).json()["data"]
    await record.begin(conn, await take(conn, events["id"], worker), 1, STATS)
    nightly = {"match": {"database": TABLE.namespace}, "schedule": "0 2 * * *", "timezone": "Europe/Zurich", "actions": actions}
    await admin.put("/api/maintenance-policies/nightly-sales", json={**nightly, "when": {"health_below": 70}})
    repair = {"match": {"table": "*"}, "when": {"health_below": 40}, "actions": ["rewrite_data_files"], "enabled": False}
    await admin.put("/api/maintenance-policies/repair-all", json=repair)


async def _ingestion(conn: Conn, worker: WorkerId) -> int:
    """Jobs with every result, one with bad rows and a pipeline, a scope that is due, and statistics that are stale."""
    async with conn.transaction():
        await store.apply(conn, model_of(read_model(EXAMPLE)), by="ada")
    file = await files.add(conn, "files/1", name="flights-2026.csv", size=48_211, sha256="0" * 64, by="ada")
    travel = {"module": "travel", "det": "flights", "year": 2026}
    for outcome in (Done({"result": "SUCCESS", "message": "120 units", "rows_read": 120, "rows_skipped": 0}), Fail("no rows")):
        await end(conn, await hold(conn, "ingestion.unit_sync", worker=worker, payload={"year": 2026}, max_attempts=1), outcome)
    made = pipelines.Pipeline("flights")
    first = made.add(NewJob("ingestion.csv_ingest", {**travel, "file_id": file.id}))
    recalc = made.add(NewJob("ingestion.emission_recalc", travel), after=first)
    made.add(NewJob("ingestion.aggregation", {"year": 2026, "modules": ["travel"]}), after=recalc)
    jobs = await made.enqueue(conn)
    dialect = {"encoding": "cp1252", "delimiter": ";", "quote": '"', "decimal": ","}
    counts = {"rows_read": 1204, "rows_loaded": 1202, "rows_skipped": 2, "bad_rows": "bad-rows/1-1.csv"}
    message = "1,202 of 1,204 rows were loaded; line 17, cabin: 'ecnomy' is not one of economy, premium, business, first"
    result = {"result": "WARNING", "message": message, "dialect": dialect, "ignored_columns": ["remark"], **counts}
    await end(conn, await take(conn, jobs[0].id, worker), Done(result))
    await report(conn, await take(conn, jobs[1].id, worker), progress=0.4, message="480 of 1,202 entries")
    await conn.execute(
        "INSERT INTO holdfast.ingestion_errors VALUES (%(id)s, 1, 17, 1, 'cabin', 'ecnomy', "
        "'is not one of economy, premium, business, first'), (%(id)s, 1, 90, 1, 'distance', '-12', 'is less than 0')",
        {"id": jobs[0].id},
    )
    await conn.execute(
        """INSERT INTO holdfast.emission_scopes (det_id, year, changes, recalculated, aggregated, changed_at)
           SELECT id, 2026, 2, CASE name WHEN 'goods' THEN 2 ELSE 1 END, CASE name WHEN 'goods' THEN 2 ELSE 1 END,
                  clock_timestamp() - interval '90 min'
           FROM holdfast.data_entry_types WHERE name IN ('flights', 'goods', 'energy')"""
    )
    return jobs[0].id


def _loop(name: str, **every: float) -> Loop:
    async def nothing(ctx: Pass) -> None:
        """A pass that does nothing."""

    return Loop(name, nothing, every=timedelta(**every))


async def ids(conn: Conn, where: str) -> list[int]:
    return [one for (one,) in await rows(conn, f"SELECT id FROM holdfast.jobs WHERE {where} ORDER BY id")]
