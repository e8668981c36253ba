"""Snapshots from Trino, from the mapping to Parquet files, over the real protocol: each way to run, and crashes between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import httpx2
import pyarrow.parquet as pq
import pytest

from export_factories import TABLES, exports, mapping
from holdfast.engines.trino import TrinoOptions, open_trino
from holdfast.engines.trino.engine import TrinoEngine
from holdfast.services.exports.export import server_side
from holdfast.services.exports.kinds import KINDS
from holdfast.services.exports.setup import Exports
from holdfast.settings import settings
from holdfast.testing import Harness, crash_at, harness
from trino_server import Request, TrinoServer
from trino_warehouse import UNLOAD, warehouse

Client = httpx2.AsyncClient
ROLE = {"X-Use-Case-Id": "analysts"}


@pytest.fixture
async def coordinator() -> AsyncIterator[TrinoServer]:
    with duckdb.connect() as connection:
        connection.execute(TABLES)
        async with TrinoServer(warehouse(connection), page_rows=30) as made:
            made.spooling = ("json+zstd",)
            yield made


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, coordinator: TrinoServer) -> Iterator[Path]:
    """Settings as document 002 names them."""
    monkeypatch.setenv("HOLDFAST_EXPORT_DIRS", str(tmp_path))
    monkeypatch.setenv("HOLDFAST_TRINO_URL", coordinator.url)
    monkeypatch.setenv("HOLDFAST_TRINO_USER", "export")
    monkeypatch.setenv("HOLDFAST_TRINO_PASSWORD", "hunter2")
    monkeypatch.setenv("HOLDFAST_TRINO_CTAS_SCHEMA", "lake.exports")
    settings.cache_clear()
    yield tmp_path
    settings.cache_clear()


@pytest.fixture
async def here(folder: Path) -> AsyncIterator[Exports]:
    made = exports(open_trino(TrinoOptions.from_settings(settings())), need_role=["trino"], root=str(folder / "snapshots"))
    made.share()
    yield made
    await made.close()


@pytest.fixture
async def h(database: str, here: Exports) -> AsyncIterator[Harness]:
    async with harness(database, KINDS) as made:
        yield made


async def snapshot_of(ops: Client, **asked: Any) -> int:
    made = await ops.post("/api/mappings", json=mapping(), headers=ROLE)
    assert made.status_code == 201, made.text
    answer = await ops.post("/api/snapshots", json={"mapping_id": made.json()["data"]["id"], **asked}, headers=ROLE)
    assert answer.status_code == 202, answer.text
    return int(answer.json()["data"]["snapshot"]["id"])


async def ended(ops: Client, h: Harness, snapshot_id: int) -> dict[str, Any]:
    """Let time pass until nothing of it is under way."""
    for _ in range(30):
        await h.drain()
        data: dict[str, Any] = (await ops.get(f"/api/snapshots/{snapshot_id}")).json()["data"]
        if data["snapshot"]["status"] in ("ready", "failed"):
            return data
        await h.move_time(timedelta(minutes=1))
    raise AssertionError(data)


def rows_of(export: dict[str, Any]) -> int:
    place = Path(export["gcs_path"])
    table = pq.read_table([place / file["path"] for file in export["files"]], partitioning=None)
    return int(table.num_rows)


@pytest.mark.parametrize("runtime", ["direct", "unload", "ctas"])
async def test_w_07_a_snapshot_is_ready_with_every_row(ops: Client, h: Harness, coordinator: TrinoServer, runtime: str):
    """W-07, W-10, W-13."""
    found = await ended(ops, h, await snapshot_of(ops, runtime=runtime))
    assert found["snapshot"]["status"] == "ready", found["snapshot"]
    assert found["snapshot"]["node_counts"] == {"Customer": 100, "Account": 50}
    assert [rows_of(one) for one in found["exports"]] == [100, 50, 100]
    sent = coordinator.sent("POST /v1/statement")
    assert {one.headers.get("x-trino-role") for one in sent} == {"system=ROLE%7Banalysts%7D"}
    assert all(one.headers["x-trino-client-tags"].startswith("holdfast,") for one in sent)
    assert all(one.headers["x-trino-source"].startswith("holdfast/") for one in sent)
    if runtime == "ctas":
        await h.clean()
        assert sum("unregister_table" in one.sql for one in coordinator.requests if one.method == "POST") == 3


async def test_an_engine_whose_queue_is_long_gets_the_query_and_keeps_no_lane_waiting(
    ops: Client, h: Harness, monkeypatch: pytest.MonkeyPatch
):
    """It is asked for its columns before, and that may stand in the same queue for hours."""

    async def never(*_: Any) -> Any:
        await asyncio.Event().wait()

    snapshot_id = await snapshot_of(ops, runtime="unload")
    monkeypatch.setattr(server_side, "DESCRIBE_SECONDS", 0.01)
    monkeypatch.setattr(TrinoEngine, "describe", never)

    found = await ended(ops, h, snapshot_id)

    assert found["snapshot"]["status"] == "ready", found["snapshot"]


async def test_w_08_an_engine_without_the_function_is_streamed_from(
    ops: Client, h: Harness, coordinator: TrinoServer, here: Exports
):
    """W-08."""
    here.direct = False
    with duckdb.connect() as connection:
        connection.execute(TABLES)
        coordinator.backend = warehouse(connection, unloads=False)
        found = await ended(ops, h, await snapshot_of(ops))
    assert found["snapshot"]["status"] == "ready", found["snapshot"]
    assert {one["runtime"] for one in found["exports"]} == {"direct"}


async def test_f_50_a_crash_between_submit_and_persist_leaves_one_query_that_counts(
    ops: Client, h: Harness, coordinator: TrinoServer
):
    """W-18, E-07: what was sent and never begun is not run; each export has its rows once."""
    snapshot_id = await snapshot_of(ops, runtime="unload")
    with crash_at("submit.after_reply_before_persist"):
        await h.drain()
    found = await ended(ops, h, snapshot_id)
    assert found["snapshot"]["status"] == "ready", found["snapshot"]
    assert [rows_of(one) for one in found["exports"]] == [100, 50, 100]
    began = [one for one in coordinator.queries.values() if one.began and UNLOAD.search(one.request.sql)]
    assert len(began) == 3


async def test_f_54_after_a_restart_of_trino_the_exports_are_run_again(ops: Client, h: Harness, coordinator: TrinoServer):
    snapshot_id = await snapshot_of(ops, runtime="unload")
    coordinator.hold = True
    await h.drain()
    coordinator.restart()
    coordinator.hold = False
    found = await ended(ops, h, snapshot_id)
    assert found["snapshot"]["status"] == "ready", found["snapshot"]
    assert [rows_of(one) for one in found["exports"]] == [100, 50, 100]


async def test_f_46_a_query_that_began_and_whose_answer_was_lost_is_stopped_and_run_again(
    ops: Client, h: Harness, coordinator: TrinoServer
):
    """W-18, E-07: nobody knows its address, so nobody could bring it to its end. Only one query of an export counts."""
    snapshot_id = await snapshot_of(ops, runtime="unload")
    coordinator.hold = True

    async def lose(request: Request) -> None:
        before = set(coordinator.queries)
        await coordinator.behave(request)
        (new,) = set(coordinator.queries) - before
        coordinator._begin(coordinator.queries[new])

    coordinator.misbehave(lambda request: request.method == "POST" and "system.unload" in request.sql, lose)
    await h.drain()
    coordinator.hold = False
    (lost,) = [one for one in coordinator.queries.values() if one.began and one.token == 0]
    for one in coordinator.queries.values():
        if one is not lost:
            one.may_end.set()
    found = await ended(ops, h, snapshot_id)
    assert found["snapshot"]["status"] == "ready", found["snapshot"]
    assert [rows_of(one) for one in found["exports"]] == [100, 50, 100]
    assert lost.error is not None
    assert lost.error["errorName"] == "USER_CANCELED"


async def test_what_a_worker_of_anybodys_making_submitted_and_left_is_finished_by_one_of_ours(
    ops: Client, as_role: Any, h: Harness, coordinator: TrinoServer
):
    """W-18, E-07: the handle on the row is the same, whoever wrote it."""
    snapshot_id = await snapshot_of(ops, runtime="unload")
    theirs = await as_role("worker")
    claims = (await theirs.post("/export-jobs/claim", json={"worker_id": "pod-1"})).json()["data"]
    async with Client(base_url=coordinator.url) as trino:
        for one in claims:
            place = f"location => '{one['gcs_path']}', format => 'PARQUET'"
            sql = f"SELECT * FROM TABLE(system.unload(input => TABLE(\n{one['sql']}\n), {place}))"
            sent = (await trino.post("/v1/statement", content=sql, headers={"X-Trino-User": "pod-1"})).json()
            said = {"status": "submitted", "starburst_query_id": sent["id"], "next_uri": sent["nextUri"]}
            seen = await theirs.patch(f"/export-jobs/{one['id']}", json=said, headers={"If-Match": one["attempt_id"]})
            assert seen.status_code == 200, seen.text

    found = await ended(ops, h, snapshot_id)

    assert found["snapshot"]["status"] == "ready", found["snapshot"]
    assert [rows_of(one) for one in found["exports"]] == [100, 50, 100]
    assert {one["gcs_path"] + "/" + one["files"][0]["path"].split("/")[0] for one in found["exports"]} == {
        one["gcs_path"] for one in claims
    }, "the folders that the engine was told, in whatever order they were claimed"
    assert len([one for one in coordinator.queries.values() if "system.unload" in one.request.sql]) == 3, "none was sent again"
