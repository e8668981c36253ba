"""What nobody gets by way of exports: the files of others or of the machine, and a control plane that stands still."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from psycopg.types.json import Jsonb

from export_factories import mapping, wrong
from factories import rows, state_of, value
from holdfast.errors import UsageError
from holdfast.services.exports.export import run as run_module
from holdfast.services.exports.export.payload import RunPayload
from holdfast.services.exports.export.run import run
from holdfast.services.exports.kinds import KINDS
from holdfast.services.exports.mappings import dry_run, rules
from holdfast.services.exports.setup import Exports, exports_from
from holdfast.settings import settings
from holdfast.testing import Harness, harness

Client = httpx2.AsyncClient
OVER_RANGES: dict[str, Any] = {
    "nodes": [
        {
            "label": "Number",
            "sql": "SELECT i AS id FROM range(10) t(i)",
            "primary_key": {"name": "id", "type": "INT64"},
        }
    ],
    "edges": [],
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where we are: with a folder of data, and the files of the control plane beside it."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("HOLDFAST_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOLDFAST_CONFIG_DIR", str(tmp_path / "config"))
    for name in (".holdfast", "config", "data"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "secret.csv").write_text("id\n1\n")
    monkeypatch.setenv("HOLDFAST_DUCKDB_DIRS", str(tmp_path / "data"))
    settings.cache_clear()
    yield tmp_path
    settings.cache_clear()


@pytest.fixture
def here(folder: Path) -> Exports:
    """What the API keeps open, as the settings have it."""
    return exports_from(settings())


@pytest.fixture
async def h(database: str, folder: Path) -> Any:
    async with harness(database, KINDS) as made:
        yield made


def files_below(place: Path) -> list[Path]:
    return sorted(path for path in place.rglob("*") if path.is_file())


async def ready_snapshot(ops: Client, h: Harness) -> dict[str, Any]:
    """A snapshot with its files, by a mapping of one node."""
    made = (await ops.post("/api/mappings", json=mapping(**OVER_RANGES))).json()["data"]
    answer = await ops.post("/api/snapshots", json={"mapping_id": made["id"]})
    await h.drain()
    data: dict[str, Any] = (await ops.get(answer.headers["Location"])).json()["data"]
    assert data["snapshot"]["status"] == "ready", data
    return data


# ---------------------------------------------------------------------------------------------------------------------
# Kinds of a service are made by its own doors
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["exports.remove", "exports.export", "exports.anything"])
async def test_a_kind_of_a_service_cannot_be_enqueued_by_hand(admin: Client, analyst: Client, conn: Any, kind: str) -> None:
    """Else an analyst would remove anybody's files, and export without a mapping or a snapshot."""
    for client in (analyst, admin):
        answer = await client.post("/api/jobs", json={"kind": kind, "payload": {"places": ["/data"], "snapshot_id": 1}})

        assert (answer.status_code, answer.json()["code"]) == (403, "RESERVED_KIND")
    assert await value(conn, "SELECT count(*) FROM holdfast.jobs") == 0


async def test_a_worker_cannot_smuggle_one_in_as_a_child(as_role: Any, analyst: Client, conn: Any) -> None:
    job_id = (await analyst.post("/api/jobs", json={"kind": "mine"})).json()["data"]["id"]
    worker = await as_role("worker")
    me = "/api/worker/11111111-1111-4111-8111-111111111111"
    about = {"name": "w", "host": "w", "pid": 1, "version": "1", "kinds": {"mine": 1}, "lease": 60}
    assert (await worker.put(me, json=about)).status_code == 204
    claims = (await worker.post(f"{me}/claims", json={"kinds": {"mine": 1}, "queues": ["default"]})).json()["claims"]
    shows = {"If-Match": f'"{claims[0]["attempt_id"]}"'}
    child = {"kind": "exports.remove", "payload": {"snapshot_id": 1}}
    ends = {"move": "complete", "state": "completed"}

    for path, said in [("finish", ends | {"then": [child]}), ("finish", ends | {"join": child}), ("chain", {"child": child})]:
        answer = await worker.post(f"/api/worker/jobs/{job_id}/{path}", json=said, headers=shows)
        assert (answer.status_code, answer.json()["code"]) == (403, "RESERVED_KIND"), said

    assert await state_of(conn, job_id) == "running", "nothing was written"


async def test_the_files_of_a_deleted_snapshot_are_removed_by_what_the_ledger_says_and_nothing_a_payload_says(
    ops: Client, h: Harness, conn: Any, folder: Path
) -> None:
    """A job of this kind that came from anywhere else names no file, and so removes none."""
    found = await ready_snapshot(ops, h)
    place = Path(found["exports"][0]["gcs_path"])
    assert files_below(place)
    snapshot_id = found["snapshot"]["id"]
    await conn.execute(
        "INSERT INTO holdfast.jobs (kind, payload) VALUES ('exports.remove', %s), ('exports.remove', %s)",
        [Jsonb({"snapshot_id": snapshot_id}), Jsonb({"places": [str(place)]})],
    )
    await h.drain()
    assert files_below(place), "there is no word about it in the ledger"

    gone = (await ops.delete(f"/api/snapshots/{snapshot_id}")).json()["data"]
    await h.drain()

    assert not files_below(place)
    result = await value(conn, "SELECT result FROM holdfast.jobs WHERE id = %s", gone["removal_job_id"])
    assert result == {"places": 1, "files": 1}


async def test_files_are_removed_also_when_the_job_that_should_is_cancelled(ops: Client, h: Harness, conn: Any) -> None:
    found = await ready_snapshot(ops, h)
    place = Path(found["exports"][0]["gcs_path"])
    gone = (await ops.delete(f"/api/snapshots/{found['snapshot']['id']}")).json()["data"]
    assert (await ops.post(f"/api/jobs/{gone['removal_job_id']}/cancel", json={"reason": "no"})).status_code == 202

    await h.clean()

    assert not files_below(place)
    assert await rows(conn, "SELECT state FROM holdfast.effects WHERE kind = 'export.files'") == [("gone",)]


# ---------------------------------------------------------------------------------------------------------------------
# Folders
# ---------------------------------------------------------------------------------------------------------------------


async def run_export(h: Harness, sql: str, to: Path) -> Any:
    return await h.run(run.new(sql=sql, to=str(to)))


async def test_without_a_word_duckdb_reads_no_file_and_writes_only_to_exports_and_snapshots(
    h: Harness, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOLDFAST_DUCKDB_DIRS")
    settings.cache_clear()

    read = await run_export(h, f"SELECT * FROM '{folder}/data/secret.csv'", folder / "exports/a")
    assert (read.state, "HOLDFAST_DUCKDB_DIRS" in read.error) == ("failed", True)
    written = await run_export(h, "SELECT 1 AS a", folder / "elsewhere")
    assert (written.state, "HOLDFAST_EXPORT_DIRS" in written.error) == ("failed", True)
    assert not files_below(folder / "elsewhere")
    for allowed in ("exports/b", "snapshots/c"):
        assert (await run_export(h, "SELECT 1 AS a", folder / allowed)).state == "completed"


@pytest.mark.parametrize("shown", [".", "data/..", ".holdfast", "config", "link", "data"])
async def test_where_passwords_and_tokens_lie_is_closed_to_duckdb_whatever_folder_it_is_shown(
    h: Harness, folder: Path, monkeypatch: pytest.MonkeyPatch, shown: str
) -> None:
    """By a folder that holds it, by itself, by a symlink to it, and by symlinks below a folder of data."""
    (folder / "link").symlink_to(folder / ".holdfast")
    if shown == "data":
        (folder / "far").mkdir()
        (folder / "far/here").symlink_to(folder / "config")
        (folder / "data/more").symlink_to(folder / "far")
    monkeypatch.setenv("HOLDFAST_DUCKDB_DIRS", str(folder / shown))
    settings.cache_clear()

    for path in (".holdfast/secret.csv", "config/secret.csv", "link/secret.csv", "data/more/here/secret.csv"):
        read = await run_export(h, f"SELECT * FROM '{folder / path}'", folder / "exports/a")
        assert (read.state, "passwords and tokens" in read.error) == ("failed", True), path


async def test_a_folder_of_data_is_read(h: Harness, folder: Path) -> None:
    (folder / "data/again").symlink_to(folder / "data")

    read = await run_export(h, "SELECT * FROM 'data/secret.csv'", folder / "exports/a")

    assert (read.state, read.result["rows"]) == ("completed", 1)


@pytest.mark.parametrize("place", [".holdfast/a", "config/a", "link/a", "data/more/a"])
async def test_nothing_is_written_where_passwords_and_tokens_lie(
    h: Harness, folder: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setenv("HOLDFAST_EXPORT_DIRS", str(folder))
    settings.cache_clear()
    (folder / "link").symlink_to(folder / ".holdfast")
    (folder / "data/more").symlink_to(folder / "config")

    written = await run_export(h, "SELECT 1 AS a", folder / place)

    assert (written.state, "passwords and tokens" in written.error) == ("failed", True)
    assert {path.name for path in files_below(folder)} == {"secret.csv"}


# ---------------------------------------------------------------------------------------------------------------------
# The dry run
# ---------------------------------------------------------------------------------------------------------------------


def one_node(sql: str) -> dict[str, Any]:
    return mapping(nodes=[{**OVER_RANGES["nodes"][0], "sql": sql}], edges=[])


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id FROM 'secret.csv'",
        "SELECT id FROM secret.csv",
        'SELECT id FROM "secret"."csv"',
        "SELECT 1 AS id FROM (SUMMARIZE 'secret.csv')",
        "SELECT 1 AS id FROM (DESCRIBE SELECT * FROM 'secret.csv')",
        "FROM 'secret.csv'",
    ],
)
async def test_a_mapping_reads_no_file_unless_it_may(
    analyst: Client, folder: Path, conn: Any, monkeypatch: pytest.MonkeyPatch, sql: str
) -> None:
    """Whatever the parser makes of it: the engine that is asked was shown no folder, not even one that others may read."""
    monkeypatch.chdir(folder / "data")

    assert set(wrong(await analyst.post("/api/mappings", json=one_node(sql)))) == {"/nodes/0/sql"}
    assert await value(conn, "SELECT count(*) FROM holdfast.mappings") == 0


async def test_a_mapping_that_came_in_by_another_door_reads_no_file_either(ops: Client, h: Harness, conn: Any) -> None:
    made = (await ops.post("/api/mappings", json=mapping(**OVER_RANGES))).json()["data"]
    answer = await ops.post("/api/snapshots", json={"mapping_id": made["id"]})
    sql = Jsonb("SELECT id FROM 'data/secret.csv'")
    await conn.execute("UPDATE holdfast.jobs SET payload = jsonb_set(payload, '{sql}', %s)", [sql])
    await h.drain()

    found = (await ops.get(answer.headers["Location"])).json()["data"]["snapshot"]
    assert (found["status"], "HOLDFAST_DUCKDB_DIRS" in found["error_message"]) == ("failed", True)


class TestWithFiles:
    @pytest.fixture
    def here(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Exports:
        monkeypatch.setenv("HOLDFAST_MAPPINGS_READ_FILES", "true")
        settings.cache_clear()
        return exports_from(settings())

    async def test_a_mapping_that_may_reads_the_files_of_the_folders_and_no_other(self, analyst: Client, folder: Path) -> None:
        for path, status in {"data/secret.csv": 201, ".holdfast/secret.csv": 422}.items():
            answer = await analyst.post("/api/mappings", json=one_node(f"SELECT id FROM '{folder / path}'"))
            assert answer.status_code == status, answer.text


async def test_others_are_answered_while_a_mapping_is_parsed(analyst: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, answered = threading.Event(), threading.Event()

    def slow(*_: Any, **__: Any) -> list[str]:
        begun.set()
        return [] if answered.wait(30) else ["nobody else was answered"]

    monkeypatch.setattr(dry_run, "reasons_against", slow)
    checking = asyncio.create_task(analyst.post("/api/mappings", json=mapping(**OVER_RANGES)))
    while not begun.is_set():
        await asyncio.sleep(0.01)
    assert (await analyst.get("/health")).status_code == 200
    answered.set()

    assert (await checking).status_code == 201


async def test_sql_has_a_size(analyst: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    long = "SELECT i AS id FROM range(10) t(i) -- " + "x" * rules.LONGEST_SQL
    assert "at most 40,000," in wrong(await analyst.post("/api/mappings", json=one_node(long)))["/nodes/0/sql"]

    monkeypatch.setattr(rules, "MOST_SQL", 10)
    monkeypatch.setattr(dry_run, "reasons_against", lambda *_, **__: ["it was parsed, however much it is"])
    found = wrong(await analyst.post("/api/mappings", json=mapping(**OVER_RANGES)))
    assert (list(found), "at most 10" in found["/nodes"]) == (["/nodes"], True)


async def test_what_a_mapping_would_compute_is_not_computed_before_its_columns_are_known(analyst: Client) -> None:
    """Else one request would take seconds and gigabytes of the control plane."""
    node = {**OVER_RANGES["nodes"][0], "primary_key": {"name": "id", "type": "STRING"}}
    never = {**node, "sql": "SELECT repeat('x', 40000000000) AS id"}

    assert (await analyst.post("/api/mappings", json=mapping(nodes=[never], edges=[]))).status_code == 201


@pytest.mark.more
async def test_an_engine_that_does_not_say_its_columns_in_time_is_interrupted_and_the_mapping_refused(
    analyst: Client, here: Exports, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The arguments of a table function are computed before its columns are known."""
    monkeypatch.setattr(dry_run, "DESCRIBE_SECONDS", 0.2)
    long = "SELECT range AS id FROM range(len(list_transform(range(8000000), x -> x * 2)))"

    answer = await asyncio.wait_for(analyst.post("/api/mappings", json=one_node(long)), 60)

    assert "could not describe its columns" in wrong(answer)["/nodes/0/sql"]
    engine = here.engines.get("duckdb")
    async with asyncio.timeout(120):
        while engine._closing:
            await asyncio.sleep(0.01)
    monkeypatch.undo()
    again = await analyst.post("/api/mappings/check", json=mapping(**OVER_RANGES))
    assert again.status_code == 200, "its turn was given back"


# ---------------------------------------------------------------------------------------------------------------------
# What could only fail is not enqueued
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "pointer", "says"),
    [
        ({"sql": "DROP TABLE t", "to": "/data/a"}, "/payload/sql", "must be a SELECT"),
        ({"sql": "SELECT 1; SELECT 2", "to": "/data/a"}, "/payload/sql", "exactly one statement"),
        ({"to": "/data/a"}, "/payload/sql", "one SELECT"),
        ({"sql": "SELECT 1 AS a", "to": "out"}, "/payload/to", "absolute"),
        ({"sql": "SELECT 1 AS a", "to": "/data/../etc"}, "/payload/to", "is absolute or has"),
        ({"sql": "SELECT 1 AS a", "to": "/data/a", "engine": "oracle"}, "/payload/engine", "duckdb, trino"),
        ({"sql": "SELECT 1 AS a", "to": "/data/a", "engine": ["duckdb"]}, "/payload/engine", "duckdb, trino"),
        ({"sql": "SELECT 1 AS a", "to": "/data/a", "max_seconds": "abc"}, "/payload/max_seconds", "valid number"),
        ({"sql": "SELECT 1 AS a", "to": "/data/a", "max_seconds": -5}, "/payload/max_seconds", "greater than 0"),
        ({"sql": "SELECT 1 AS a", "to": "/data/a", "max_seconds": 0}, "/payload/max_seconds", "greater than 0"),
        ({"sql": "SELECT 1 AS a", "to": "/data/a", "role": 7}, "/payload/role", "valid string"),
        ({"sql": "SELECT 1 AS a", "to": "/data/a", "shema": "x"}, "/payload/shema", "sql, to, engine, catalog, schema, role"),
    ],
)
async def test_an_export_that_could_only_fail_is_refused_where_it_is_asked_for(
    analyst: Client, conn: Any, payload: dict[str, Any], pointer: str, says: str
) -> None:
    answer = await analyst.post("/api/jobs", json={"kind": "exports.run", "payload": payload})

    assert answer.json()["code"] == "INVALID_PAYLOAD"
    assert says in wrong(answer)[pointer]
    assert await value(conn, "SELECT count(*) FROM holdfast.jobs") == 0


@pytest.mark.parametrize(
    ("to", "is_allowed"),
    [
        ("s3://ours/graphs/a", True),
        ("s3://ours/graphs", True),
        ("s3://ours/graphs-of-others/a", False),
        ("s3://ours", False),
        ("gs://ours/graphs/a", False),
        ("gs://whole/a", True),
        ("gs://snapshots/here/a", True),
        ("gs://snapshots/elsewhere", False),
        ("s3://theirs/a", False),
    ],
)
async def test_an_export_writes_to_buckets_that_were_allowed_and_no_others(
    as_role: Any, h: Harness, here: Exports, monkeypatch: pytest.MonkeyPatch, to: str, is_allowed: bool
) -> None:
    """Refused where it is asked for; and by the worker, without a word to the store."""
    monkeypatch.setenv("HOLDFAST_EXPORT_BUCKETS", "s3://ours/graphs/, gs://whole")
    monkeypatch.setenv("HOLDFAST_SNAPSHOTS_TO", "gs://snapshots/here")
    settings.cache_clear()
    here.addresses = exports_from(settings()).addresses
    here.share()
    opened: list[str] = []

    def refuse(location: Any, _: Any) -> Any:
        opened.append(location.url)
        raise UsageError("no store in this test")

    monkeypatch.setattr(run_module, "opened_store", refuse)
    analyst = await as_role("analyst")

    asked = await analyst.post("/api/jobs", json={"kind": "exports.run", "payload": {"sql": "SELECT 1 AS a", "to": to}})
    ended = await h.run(run.new(sql="SELECT 1 AS a", to=to))

    assert asked.status_code == (202 if is_allowed else 422)
    if not is_allowed:
        assert "HOLDFAST_EXPORT_BUCKETS" in wrong(asked)["/payload/to"]
        assert "HOLDFAST_EXPORT_BUCKETS" in ended.error
    assert set(opened) == ({to} if is_allowed else set())


async def test_without_a_word_no_bucket_is_open(analyst: Client) -> None:
    payload = {"sql": "SELECT 1 AS a", "to": "s3://bucket/a"}

    answer = await analyst.post("/api/jobs", json={"kind": "exports.run", "payload": payload})

    assert "(allowed: none)" in wrong(answer)["/payload/to"]


async def test_an_export_that_says_everything_it_may_is_enqueued(analyst: Client) -> None:
    said = {"engine": "duckdb", "catalog": "c", "schema": "s", "role": "r", "max_seconds": 7200}
    payload = {"sql": "SELECT 1 AS a", "to": "/data/a", **said}

    assert (await analyst.post("/api/jobs", json={"kind": "exports.run", "payload": payload})).status_code == 202


def test_what_is_checked_at_the_door_are_the_arguments_of_the_kind() -> None:
    checked = {field.alias or name: field.is_required() for name, field in RunPayload.model_fields.items()}
    taken = [one for one in inspect.signature(run.function).parameters.values() if one.name != "ctx"]

    assert checked == {one.name: one.default is one.empty for one in taken}


async def test_sql_that_came_in_by_another_door_fails_with_its_reason(h: Harness, folder: Path) -> None:
    ended = await run_export(h, "DROP TABLE t", folder / "exports/a")

    assert (ended.state, ended.attempt_no) == ("failed", 1)
    assert ended.error.startswith("engine_query_refused: it must be a SELECT")


async def test_an_engine_that_is_not_set_up_is_pointed_at(analyst: Client) -> None:
    found = wrong(await analyst.post("/api/mappings", json=mapping(**OVER_RANGES, engine="oracle")))

    assert found == {"/engine": "the engine 'oracle' is not configured; use one of: duckdb"}
