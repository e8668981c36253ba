"""The direct runtime from a job to files: what is written, what can be seen, and what becomes of what nobody named."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import fake_engine
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fake_engine import FakeEngine
from object_proxy import ObjectProxy, write_key
from test_local_store import full_disk as full_disk

from factories import add, job, rows
from holdfast.engines import registry
from holdfast.engines.port import EngineTimeout, EngineUnavailable, QueryRefused
from holdfast.jobs.cancel import cancel
from holdfast.jobs.config import set_value
from holdfast.jobs.effects import clean
from holdfast.jobs.outcome import Backoff, RetryPolicy
from holdfast.services.exports.export import direct
from holdfast.services.exports.export.run import KIND, run
from holdfast.services.exports.limits import MAX_DURATION
from holdfast.settings import settings
from holdfast.stores import objects
from holdfast.stores.objects import ObjectStore
from holdfast.worker.kinds import Job, cleaners
from holdfast.worker.loop import Worker

Conn = psycopg.AsyncConnection[Any]


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    """An engine of this test's own, by the name `fake`."""
    monkeypatch.setitem(registry.ENGINES, "fake", "fake_engine")
    monkeypatch.setattr(fake_engine, "current", FakeEngine())
    return fake_engine.current


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that waits waits less."""
    monkeypatch.setattr(direct, "COLD_START_PAUSE", 0.01)
    monkeypatch.setattr(direct, "PROGRESS_SECONDS", 0.02)


def impatient() -> Job[..., Any]:
    """The kind itself, with retries that come at once."""
    policy = run.policy.__class__(retry=RetryPolicy(Backoff.fixed(timedelta(0)), run.policy.retry.permanent))
    return Job(KIND, run.function, policy)


async def work(database: str) -> None:
    await Worker(database, [impatient()]).run(until_empty=True)


async def exported(conn: Conn, database: str, to: Path, sql: str = "SELECT 1 AS x", **arguments: Any) -> Any:
    """An export that has come to its end: its job."""
    job_id = await add(conn, KIND, payload={"sql": sql, "to": str(to), **arguments})
    await work(database)
    return await job(conn, job_id)


def read(to: Path) -> pa.Table:
    """What a reader sees: the files that the manifest names."""
    manifest = json.loads((to / "_manifest.json").read_text())
    return pq.read_table([to / file["path"] for file in manifest["files"]], partitioning=None)


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.more
async def test_a_select_becomes_files_that_a_manifest_names(database: str, conn: Conn, folder: Path):
    """W-06, W-15, W-16: one step, counted from the files, columns in the order of the query."""
    to = folder / "out"

    done = await exported(conn, database, to, "SELECT i AS id, 'n' || i AS name FROM range(250000) t(i)")

    assert (done.state, done.error) == ("completed", None)
    manifest = json.loads((to / "_manifest.json").read_text())
    assert manifest == done.result
    assert (manifest["rows"], manifest["job_id"]) == (250_000, done.id)
    assert manifest["bytes"] == sum((to / file["path"]).stat().st_size for file in manifest["files"])
    assert read(to).column_names == ["id", "name"]
    assert read(to).column("id").to_pylist() == list(range(250_000))
    assert await rows(conn, "SELECT state FROM holdfast.effects") == [("kept",)]


async def test_an_empty_result_is_a_valid_file_with_its_types(database: str, conn: Conn, folder: Path):
    sql = "SELECT 1::decimal(9,2) AS price, now() AS at, [1] AS l WHERE false"

    done = await exported(conn, database, folder / "out", sql)

    table = read(folder / "out")
    assert (done.result["rows"], len(done.result["files"]), table.num_rows) == (0, 1, 0)
    assert [str(kind) for kind in table.schema.types[:2]] == ["decimal128(9, 2)", "timestamp[us, tz=Etc/UTC]"]


async def test_a_second_job_does_not_write_over_the_first(database: str, conn: Conn, folder: Path):
    first = await exported(conn, database, folder / "out")

    second = await exported(conn, database, folder / "out", "SELECT 2 AS x")

    assert (second.state, second.errors) == ("failed", 1)
    assert second.error == f"{(folder / 'out').as_uri()} has the result of job {first.id}; choose another destination"
    assert read(folder / "out").to_pylist() == [{"x": 1}]
    await clean(conn, cleaners())
    assert len(files_in(folder / "out")) == 2


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[]", b"null", b"{}", b'{"job_id": 1, "attempt_id": "x"}'])
async def test_a_manifest_that_is_none_of_ours_stays_and_says_so(database: str, conn: Conn, folder: Path, content: bytes):
    to = folder / "out"
    to.mkdir()
    (to / "_manifest.json").write_bytes(content)

    done = await exported(conn, database, to)

    assert (done.state, done.attempt_no) == ("failed", 1)
    assert done.error.startswith(f"{to.as_uri()} has a _manifest.json that was not written by an export")
    assert files_in(to) == ["_manifest.json"]
    assert (to / "_manifest.json").read_bytes() == content


async def test_what_an_attempt_left_is_removed_beside_a_manifest_that_is_none_of_ours(
    database: str, conn: Conn, folder: Path, engine: FakeEngine
):
    to = folder / "out"

    def appears(number: int, batch: int) -> None:
        to.mkdir(exist_ok=True)
        (to / "_manifest.json").write_bytes(b"{")

    engine.breaks = appears
    done = await exported(conn, database, to, engine="fake")
    assert (done.state, done.attempt_no, "has a _manifest.json" in done.error) == ("failed", 1, True)

    await clean(conn, cleaners())
    assert files_in(to) == ["_manifest.json"]


async def test_a_time_that_is_none_fails_at_once(database: str, conn: Conn, folder: Path):
    done = await exported(conn, database, folder / "out", max_seconds=-5)

    assert (done.state, done.attempt_no, done.error) == ("failed", 1, "max_seconds must be positive, not -5")


@pytest.mark.parametrize("to", ["relative/out", "/etc/out", "s3://", "http://x/y"])
async def test_a_place_that_is_none_fails_at_once(database: str, conn: Conn, folder: Path, to: str):
    job_id = await add(conn, KIND, payload={"sql": "SELECT 1 AS x", "to": to})
    await work(database)

    done = await job(conn, job_id)
    assert (done.state, done.attempt_no) == ("failed", 1)


@pytest.mark.parametrize("sql", ["DROP TABLE x", "SELECT 1; SELECT 2", "COPY (SELECT 1) TO 'x'"])
async def test_only_a_select_is_asked_of_any_engine(database: str, conn: Conn, folder: Path, engine: FakeEngine, sql: str):
    done = await exported(conn, database, folder / "out", sql, engine="fake")

    assert (done.state, done.attempt_no, engine.tries) == ("failed", 1, 0)


# ---------------------------------------------------------------------------------------------------------------------
# What engines do wrong
# ---------------------------------------------------------------------------------------------------------------------


async def test_w_12_a_cold_engine_is_asked_again(database: str, conn: Conn, folder: Path, engine: FakeEngine):
    """W-12."""

    def late(number: int, batch: int) -> None:
        if number <= 2 and batch == 1:  # after rows were on their way: nothing of them may stay
            raise EngineTimeout("no answer in 30 s")

    engine.breaks = late

    done = await exported(conn, database, folder / "out", engine="fake")

    assert (done.state, done.attempt_no, engine.tries, engine.left) == ("completed", 1, 3, 3)
    assert read(folder / "out").to_pylist() == [{"x": 1}, {"x": 2}, {"x": 3}]


async def test_w_12_after_two_retries_it_fails_with_the_type(database: str, conn: Conn, folder: Path, engine: FakeEngine):
    """W-12."""

    def late(number: int, batch: int) -> None:
        raise EngineTimeout("no answer in 30 s")

    engine.breaks = late

    done = await exported(conn, database, folder / "out", engine="fake")

    assert (done.state, done.attempt_no, engine.tries) == ("failed", 1, 3)
    assert done.error == "Direct export failed after 2 retries: EngineTimeout"
    await clean(conn, cleaners())
    assert files_in(folder / "out") == []


async def test_w_12_the_word_timeout_in_a_message_is_no_timeout(database: str, conn: Conn, folder: Path, engine: FakeEngine):
    """W-12: other errors fail at once."""

    def refused(number: int, batch: int) -> None:
        raise QueryRefused("column timeout does not exist")

    engine.breaks = refused

    done = await exported(conn, database, folder / "out", engine="fake")

    assert (done.state, done.attempt_no, engine.tries) == ("failed", 1, 1)
    assert done.error == "engine_query_refused: column timeout does not exist"


async def test_an_engine_that_is_away_is_worth_another_attempt(database: str, conn: Conn, folder: Path, engine: FakeEngine):
    def away(number: int, batch: int) -> None:
        if number == 1 and batch == 1:
            raise EngineUnavailable("503")

    engine.breaks = away

    done = await exported(conn, database, folder / "out", engine="fake")

    assert (done.state, done.attempt_no) == ("completed", 2)
    await clean(conn, cleaners())
    assert len(files_in(folder / "out")) == 2


async def test_an_export_that_takes_too_long_is_stopped(database: str, conn: Conn, folder: Path, engine: FakeEngine):
    engine.ends = False

    done = await exported(conn, database, folder / "out", engine="fake", max_seconds=0.2)

    assert (done.state, done.attempt_no) == ("failed", 1)
    assert engine.left == engine.tries, "on a busy machine the time may be over before the engine is asked"
    assert done.error == "Export job exceeded maximum duration (0s)"


async def test_a_cancelled_export_stops_and_leaves_nothing(database: str, conn: Conn, folder: Path, engine: FakeEngine):
    engine.ends, engine.share = False, 0.25
    job_id = await add(conn, KIND, payload={"sql": "SELECT 1", "to": str(folder / "out"), "engine": "fake"})
    working = asyncio.create_task(work(database))
    async with asyncio.timeout(60):
        while (await job(conn, job_id)).message is None:
            await asyncio.sleep(0.01)
    seen = await job(conn, job_id)

    await cancel(conn, job_id, actor="ada", reason="not needed")
    await working

    assert (seen.progress, seen.message) == (0.25, "running, 2 ahead: 0 rows, 0 B written")
    assert (await job(conn, job_id)).state == "cancelled"
    assert engine.left == 1
    await clean(conn, cleaners())
    assert files_in(folder / "out") == []


async def test_a_column_that_parquet_cannot_hold_fails_at_once(database: str, conn: Conn, folder: Path, engine: FakeEngine):
    engine.schema = pa.schema([("x", pa.struct([]))])

    done = await exported(conn, database, folder / "out", engine="fake")

    assert (done.state, done.attempt_no) == ("failed", 1)
    assert done.error.startswith("column 'x'")


# ---------------------------------------------------------------------------------------------------------------------
# What stores do wrong
# ---------------------------------------------------------------------------------------------------------------------


async def test_f_56_another_attempt_has_published_and_is_taken_over(
    database: str, conn: Conn, folder: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
):
    """A frozen attempt comes back and publishes before the one that replaced it: the store lets one through."""
    to, frozen = folder / "out", "11111111-1111-4111-8111-111111111111"
    job_id = await add(conn, KIND, payload={"sql": "SELECT 1", "to": str(to), "engine": "fake"})
    plan = (
        "INSERT INTO holdfast.effects (job_id, attempt_id, fence_token, kind, tag, detail, adoptable, state) "
        "VALUES (%s, %s, 0, %s, 'frozen', %s, true, 'made')"
    )
    detail = json.dumps({"to": to.as_uri(), "prefix": f"attempt-{frozen}"})
    await conn.execute(plan, [job_id, frozen, direct.PREFIX_EFFECT, detail])

    def publish_first(number: int, batch: int) -> None:
        if number == 1 and batch == 1:
            (to / f"attempt-{frozen}").mkdir(parents=True)
            pq.write_table(pa.table({"x": [7]}), to / f"attempt-{frozen}" / "part-00000.parquet")
            manifest = {"to": to.as_uri(), "job_id": job_id, "attempt_id": frozen, "runtime": "direct", "columns": []}
            files = [{"path": f"attempt-{frozen}/part-00000.parquet", "rows": 1, "bytes": 1}]
            (to / "_manifest.json").write_text(json.dumps({**manifest, "files": files, "rows": 1, "bytes": 1}))

    engine.breaks = publish_first

    await work(database)

    done = await job(conn, job_id)
    assert (done.state, done.attempt_no, engine.tries) == ("completed", 2, 1)
    assert done.result["attempt_id"] == frozen
    assert read(to).to_pylist() == [{"x": 7}]
    await clean(conn, cleaners())
    assert files_in(to) == ["_manifest.json", f"attempt-{frozen}/part-00000.parquet"]


async def test_the_configured_maximum_duration_limits_an_export_unless_its_job_has_its_own(
    database: str, conn: Conn, folder: Path, engine: FakeEngine
):
    """One setting for exports of both kinds: `exports.run` has no other."""
    await set_value(conn, MAX_DURATION, 77, by="test")

    await exported(conn, database, folder / "one", engine="fake")
    await exported(conn, database, folder / "two", engine="fake", max_seconds=5)

    assert [query.max_seconds for query in engine.asked] == [77, 5]


@pytest.mark.more
async def test_f_58_a_full_disk_fails_the_attempt_and_the_worker_goes_on(
    database: str, conn: Conn, full_disk: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HOLDFAST_EXPORT_DIRS", str(full_disk))
    settings.cache_clear()

    done = await exported(conn, database, full_disk / "big", "SELECT md5(i::varchar) AS x FROM range(300000) t(i)")

    assert (done.state, done.errors) == ("failed", 3)
    assert "scratch_full" in done.error
    await clean(conn, cleaners())
    assert files_in(full_disk) == []
    assert (await exported(conn, database, full_disk / "small")).state == "completed"


@pytest.fixture
def s3_settings(proxy: ObjectProxy, key_file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Exports find the S3 server and their key as they would in a pod."""
    monkeypatch.setenv("HOLDFAST_EXPORT_BUCKETS", "s3://bucket")
    monkeypatch.setenv("HOLDFAST_S3_ENDPOINT", proxy.url)
    monkeypatch.setenv("HOLDFAST_S3_REGION", "us-east-1")
    monkeypatch.setenv("HOLDFAST_S3_CREDENTIALS_FILE", str(key_file))
    monkeypatch.setenv("HOLDFAST_SCRATCH_DIR", str(tmp_path.parent / f"{tmp_path.name}-scratch"))  # not where DuckDB reads
    monkeypatch.setattr(objects, "PAUSE", 0.01)
    monkeypatch.setitem(objects.RETRY_CONFIG, "max_retries", 0)
    settings.cache_clear()
    yield
    settings.cache_clear()


@pytest.mark.more
@pytest.mark.usefixtures("s3_settings")
async def test_an_export_to_s3_survives_a_cut_upload_a_rotated_key_and_a_lost_answer(
    database: str, conn: Conn, s3_store: ObjectStore, proxy: ObjectProxy, key_file: Path, engine: FakeEngine
):
    """F-55 and F-57 in one job."""

    def rotate(number: int, batch: int) -> None:
        if batch == 1:
            write_key(key_file, "second-key")
            proxy.trouble("", "deny", words="first-key", times=1000)
            proxy.trouble("PUT", "half", words="part-00000")
            proxy.trouble("PUT", "answer", words="_manifest.json")

    engine.breaks = rotate
    job_id = await add(conn, KIND, payload={"sql": "SELECT 1", "to": s3_store.location.url, "engine": "fake"})
    await work(database)

    done = await job(conn, job_id)
    assert (done.state, done.attempt_no, done.error) == ("completed", 1, None)
    assert proxy.troubled == 3
    assert sorted(await listed(s3_store)) == sorted(["_manifest.json", done.result["files"][0]["path"]])
    content = await s3_store.get(done.result["files"][0]["path"])
    assert pq.read_table(pa.BufferReader(content)).column("x").to_pylist() == [1, 2, 3]


async def listed(store: ObjectStore) -> list[str]:
    return [one.path for page in [page async for page in store.list()] for one in page]


@pytest.mark.usefixtures("s3_settings")
async def test_f_57_a_key_that_stays_refused_fails_the_attempt_and_a_later_one_ends_it(
    database: str, conn: Conn, s3_store: ObjectStore, proxy: ObjectProxy
):
    proxy.trouble("PUT", "deny", words="part-00000", times=2)

    job_id = await add(conn, KIND, payload={"sql": "SELECT 1 AS x", "to": s3_store.location.url})
    await work(database)

    done = await job(conn, job_id)
    assert (done.state, done.attempt_no, done.errors) == ("completed", 2, 1)
    await clean(conn, cleaners())
    assert sorted(await listed(s3_store)) == ["_manifest.json", done.result["files"][0]["path"]]
