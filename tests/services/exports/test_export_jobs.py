"""The export job from a snapshot to Parquet files, on a real DuckDB: every runtime, and what a crash at each point leaves."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from export_factories import UnloadingEngine, exports, mapping
from factories import value
from holdfast.engines.duckdb import open_duckdb
from holdfast.engines.duckdb.options import DuckDbOptions
from holdfast.engines.port import EngineUnavailable, Phase, QueryRefused
from holdfast.jobs import outcome
from holdfast.services.exports.export.job import chosen
from holdfast.services.exports.export.server_side import _rows
from holdfast.services.exports.kinds import KINDS
from holdfast.services.exports.setup import Exports
from holdfast.settings import settings
from holdfast.stores.local import LocalStore
from holdfast.stores.paths import location_of
from holdfast.stores.port import Found
from holdfast.testing import Harness, crash_at, harness

Client = httpx2.AsyncClient
LONG = 600  # seconds


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where exports may read and write."""
    monkeypatch.setenv("HOLDFAST_EXPORT_DIRS", str(tmp_path))
    monkeypatch.setenv("HOLDFAST_DUCKDB_DIRS", str(tmp_path))
    settings.cache_clear()
    yield tmp_path
    settings.cache_clear()


@pytest.fixture
async def h(database: str, folder: Path) -> Any:
    async with harness(database, KINDS) as made:
        yield made


async def snapshot_of(ops: Client, **changes: Any) -> int:
    asked = {key: changes.pop(key) for key in list(changes) if key == "runtime"}
    made = (await ops.post("/api/mappings", json=mapping(**changes))).json()["data"]
    answer = await ops.post("/api/snapshots", json={"mapping_id": made["id"], **asked})
    assert answer.status_code == 202, answer.text
    return int(answer.json()["data"]["snapshot"]["id"])


async def look(ops: Client, snapshot_id: int) -> dict[str, Any]:
    data: dict[str, Any] = (await ops.get(f"/api/snapshots/{snapshot_id}")).json()["data"]
    return data


def table_of(export: dict[str, Any]) -> Any:
    """What an export's manifest leads to."""
    place = Path(export["gcs_path"])
    return pq.read_table([place / file["path"] for file in export["files"]], partitioning=None)


def parquet_below(place: str | Path) -> set[str]:
    """The Parquet files below a folder."""
    return {str(path.relative_to(place)) for path in Path(place).rglob("*.parquet")}


RANGES = {
    "Customer": "SELECT i AS id, 'n' || i AS name, i % 7 AS age FROM range(1000) t(i)",
    "Account": "SELECT 'a' || i AS number, i * 1.5::DOUBLE AS balance FROM range(500) t(i)",
    "OWNS": "SELECT i AS customer_id, 'a' || (i % 500) AS account_number, DATE '2026-01-01' AS since FROM range(900) t(i)",
}


def over_ranges(**more: Any) -> dict[str, Any]:
    """The bank without any tables."""
    made = mapping(**more)
    return {
        **made,
        "nodes": [{**node, "sql": RANGES[node["label"]]} for node in made["nodes"]],
        "edges": [{**edge, "sql": RANGES[edge["type"]]} for edge in made["edges"]],
    }


class TestDirect:
    """On our own DuckDB engine, streamed through the worker."""

    @pytest.fixture
    def here(self, folder: Path) -> Exports:
        return exports(open_duckdb(DuckDbOptions.from_settings(settings())), root=str(folder / "snapshots"))

    async def test_a_snapshot_becomes_parquet_files_that_its_manifest_names(self, ops: Client, h: Harness) -> None:
        """W-06, W-15, W-16, W-17."""
        snapshot_id = await snapshot_of(ops, **over_ranges())
        await h.drain()

        found = await look(ops, snapshot_id)
        assert (found["snapshot"]["status"], found["snapshot"]["error_message"]) == ("ready", None)
        assert found["snapshot"]["node_counts"] == {"Customer": 1000, "Account": 500}
        assert found["snapshot"]["edge_counts"] == {"OWNS": 900}
        customer, _, owns = (table_of(export) for export in found["exports"])
        assert customer.column_names == ["id", "name", "age"]
        assert sorted(customer.column("id").to_pylist()) == list(range(1000))
        assert owns.column_names == ["customer_id", "account_number", "since"]
        sizes = sum(file["bytes"] for export in found["exports"] for file in export["files"])
        assert (found["snapshot"]["size_bytes"], found["progress"]["share"]) == (sizes, 1.0)

    async def test_an_empty_result_is_a_valid_empty_file_with_the_columns(self, ops: Client, h: Harness) -> None:
        """E-06: a graph without edges of a kind loads."""
        none = {"edges": [{**over_ranges()["edges"][0], "sql": RANGES["OWNS"] + " WHERE false"}]}
        snapshot_id = await snapshot_of(ops, **{**over_ranges(), **none})
        await h.drain()

        found = await look(ops, snapshot_id)
        assert (found["snapshot"]["status"], found["snapshot"]["edge_counts"]) == ("ready", {"OWNS": 0})
        table = table_of(found["exports"][2])
        assert (table.num_rows, table.column_names) == (0, ["customer_id", "account_number", "since"])

    async def test_what_fails_at_the_engine_fails_the_snapshot_with_its_words(self, ops: Client, h: Harness, conn: Any) -> None:
        snapshot_id = await snapshot_of(ops, **over_ranges())
        await conn.execute(
            "UPDATE holdfast.jobs SET payload = jsonb_set(payload, '{sql}', '\"SELECT id FROM nowhere\"')"
            " WHERE payload ->> 'entity_name' = 'Account'"
        )
        await h.drain()

        found = await look(ops, snapshot_id)
        assert found["snapshot"]["status"] == "failed"
        assert found["snapshot"]["error_message"].startswith("node Account: engine_query_refused: ")
        assert "nowhere" in found["snapshot"]["error_message"]

    async def test_files_have_the_types_that_the_mapping_declares(self, ops: Client, h: Harness) -> None:
        """Else the key of a node is int32 and that of its edges int64, and a graph that loads both has no edges."""
        narrow = {
            "Customer": "SELECT i::INTEGER AS id, 'a'::ENUM('a') AS name, i::UTINYINT AS age FROM range(9) t(i)",
            "Account": "SELECT 'a' || i AS number, i::FLOAT AS balance FROM range(9) t(i)",
            "OWNS": "SELECT i::TINYINT AS customer_id, 'a' AS account_number, DATE '2026-01-01' AS since FROM range(9) t(i)",
        }
        made = mapping()
        nodes = [{**node, "sql": narrow[node["label"]]} for node in made["nodes"]]
        edges = [{**edge, "sql": narrow[edge["type"]]} for edge in made["edges"]]
        snapshot_id = await snapshot_of(ops, nodes=nodes, edges=edges)
        await h.drain()

        found = [table_of(export).schema.types for export in (await look(ops, snapshot_id))["exports"]]
        assert found == [
            [pa.int64(), pa.string(), pa.int64()],
            [pa.string(), pa.float64()],
            [pa.int64(), pa.string(), pa.date32()],
        ]

    async def test_a_column_that_has_changed_since_fails_with_both_types(self, ops: Client, h: Harness, conn: Any) -> None:
        snapshot_id = await snapshot_of(ops, **over_ranges())
        changed = RANGES["Customer"].replace("i % 7 AS age", "'young' AS age")
        await conn.execute(
            "UPDATE holdfast.jobs SET payload = jsonb_set(payload, '{sql}', to_jsonb(%s::text))"
            " WHERE payload ->> 'entity_name' = 'Customer'",
            [changed],
        )
        await h.drain()

        found = (await look(ops, snapshot_id))["snapshot"]
        assert (found["status"], found["error_message"]) == (
            "failed",
            "node Customer: column 'age' is VARCHAR, and the mapping declares INT64; CAST it in the mapping's SELECT, "
            "or change the declared type",
        )

    @pytest.mark.more
    @pytest.mark.parametrize("point", ["export.part_put", "export.uploaded", "run.after"])
    async def test_a_crash_anywhere_leaves_no_duplicated_row(self, ops: Client, h: Harness, point: str) -> None:
        """W-01, W-19, E-06: files of a dead attempt are named by nobody, and removed."""
        snapshot_id = await snapshot_of(ops, **over_ranges())
        with crash_at(point):
            await h.drain()
        await h.move_time(timedelta(minutes=1))
        await h.drain()

        found = await look(ops, snapshot_id)
        assert found["snapshot"]["status"] == "ready"
        customer = table_of(found["exports"][0])
        assert sorted(customer.column("id").to_pylist()) == list(range(1000))
        await h.clean()
        for export in found["exports"]:
            assert parquet_below(export["gcs_path"]) == {file["path"] for file in export["files"]}, (
                "what the dead attempt left is gone"
            )

    async def test_a_deleted_snapshot_takes_its_files_along(self, ops: Client, h: Harness, folder: Path) -> None:
        snapshot_id = await snapshot_of(ops, **over_ranges())
        await h.drain()
        assert parquet_below(folder)

        assert (await ops.delete(f"/api/snapshots/{snapshot_id}")).status_code == 200
        await h.drain()

        assert not parquet_below(folder)


class TestOnTheServersSide:
    """Submit, ask, finish: no worker is held meanwhile."""

    @pytest.fixture
    def engine(self) -> UnloadingEngine:
        return UnloadingEngine()

    @pytest.fixture
    async def here(self, engine: UnloadingEngine, folder: Path) -> Exports:
        made = exports(engine, root=str(folder / "snapshots"))
        made.share()
        return made

    async def test_it_is_submitted_asked_about_and_ends_with_what_the_files_say(
        self, ops: Client, h: Harness, engine: UnloadingEngine, conn: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """W-07, W-09, K-36: between two looks nobody holds the job."""
        monkeypatch.setattr(outcome, "POLL_SECONDS", (LONG,) * len(outcome.POLL_SECONDS))  # none is due by itself
        snapshot_id = await snapshot_of(ops, runtime="unload")
        await h.drain()
        found = await look(ops, snapshot_id)
        assert [one["status"] for one in found["exports"]] == ["submitted"] * 3
        assert {one["poll_count"] for one in found["exports"]} == {1}
        assert await value(conn, "SELECT count(*) FROM holdfast.jobs WHERE worker_id IS NOT NULL") == 0
        assert found["exports"][0]["starburst_query_id"] in engine.queries

        await h.move_time(timedelta(seconds=LONG))
        await h.drain()
        found = await look(ops, snapshot_id)
        assert {(one["status"], one["message"]) for one in found["exports"]} == {("submitted", "running: 42 rows")}
        assert {one["poll_count"] for one in found["exports"]} == {2}

        engine.finish()
        await h.move_time(timedelta(seconds=LONG))
        await h.drain()
        found = await look(ops, snapshot_id)
        assert (found["snapshot"]["status"], found["snapshot"]["edge_counts"]) == ("ready", {"OWNS": 100})
        assert {one["runtime"] for one in found["exports"]} == {"unload"}
        assert table_of(found["exports"][0]).num_rows == 100

    async def test_w_14_everything_is_submitted_at_once_however_few_exports_a_worker_may_stream(
        self, ops: Client, h: Harness, engine: UnloadingEngine, here: Exports
    ) -> None:
        """W-14: HOLDFAST_EXPORT_STREAMS bounds the memory of a worker, and not what the engine is given."""
        here.streams = 1
        snapshots = [await snapshot_of(ops, name=f"bank-{n}", runtime="unload") for n in range(3)]

        await h.drain()

        assert {found["phase"] for found in engine.queries.values()} == {Phase.RUNNING}
        assert len(engine.queries) == 9, "three exports of each snapshot"
        states = [export["status"] for one in snapshots for export in (await look(ops, one))["exports"]]
        assert states == ["submitted"] * 9

    async def test_what_the_engine_writes_has_the_types_that_the_mapping_declares(
        self, ops: Client, h: Harness, engine: UnloadingEngine
    ) -> None:
        narrow = {**mapping()["nodes"][0], "sql": "SELECT id::SMALLINT AS id, name, age::BIGINT AS age FROM customer"}
        snapshot_id = await snapshot_of(ops, nodes=[narrow], edges=[], runtime="unload")
        await h.drain()
        engine.finish()
        await h.move_time(timedelta(minutes=5))
        await h.drain()

        found = table_of((await look(ops, snapshot_id))["exports"][0])
        assert (found.schema.types, found.column_names) == ([pa.int64(), pa.string(), pa.int64()], ["id", "name", "age"])

    async def test_a_column_that_has_changed_since_is_not_submitted(
        self, ops: Client, h: Harness, engine: UnloadingEngine
    ) -> None:
        snapshot_id = await snapshot_of(ops, nodes=[mapping()["nodes"][0]], edges=[], runtime="unload")
        engine.database.execute("ALTER TABLE customer ALTER age TYPE VARCHAR")
        await h.drain()

        found = (await look(ops, snapshot_id))["snapshot"]
        assert (found["status"], engine.queries) == ("failed", {})
        assert found["error_message"].startswith("node Customer: column 'age' is VARCHAR, and the mapping declares INT64")

    async def test_an_engine_without_the_function_is_streamed_from_instead(
        self, ops: Client, h: Harness, engine: UnloadingEngine, here: Exports, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """W-08: the way leads from unload to direct, never in a circle."""
        here.direct = False
        engine.can_unload = False
        ours = open_duckdb(DuckDbOptions.from_settings(settings()))
        monkeypatch.setattr(engine, "stream", ours.stream)
        snapshot_id = await snapshot_of(ops, **over_ranges())
        await h.drain()

        found = await look(ops, snapshot_id)
        assert (found["snapshot"]["status"], {one["runtime"] for one in found["exports"]}) == ("ready", {"direct"})
        assert engine.queries, "it was tried"

    async def test_who_asked_for_unload_and_cannot_have_it_is_told(
        self, ops: Client, h: Harness, engine: UnloadingEngine
    ) -> None:
        engine.can_unload = False
        snapshot_id = await snapshot_of(ops, runtime="unload")
        await h.drain()

        found = await look(ops, snapshot_id)
        assert found["snapshot"]["status"] == "failed"
        assert "not registered" in found["snapshot"]["error_message"]

    @pytest.mark.parametrize("how", ["unknown", "crash"])
    async def test_a_query_whose_submit_got_no_answer_is_adopted_and_never_sent_twice(
        self, ops: Client, h: Harness, engine: UnloadingEngine, how: str
    ) -> None:
        """W-18, W-19, E-07: after submit, before the handle was written down."""
        snapshot_id = await snapshot_of(ops, nodes=[mapping()["nodes"][0]], edges=[], runtime="unload")
        if how == "unknown":
            engine.dies_after_submit = True
            await h.drain()
            engine.dies_after_submit = False
        else:
            with crash_at("submit.after_reply_before_persist"):
                await h.drain()
        await h.move_time(timedelta(minutes=1))
        await h.drain()
        assert len(engine.queries) == 1

        engine.finish()
        await h.move_time(timedelta(minutes=5))
        await h.drain()
        found = await look(ops, snapshot_id)
        assert (found["snapshot"]["status"], found["snapshot"]["node_counts"]) == ("ready", {"Customer": 100})
        assert len(engine.queries) == 1
        await h.clean()
        assert table_of(found["exports"][0]).num_rows == 100, "the files of the adopted query are kept"

    async def test_a_query_that_the_engine_forgot_is_run_again(self, ops: Client, h: Harness, engine: UnloadingEngine) -> None:
        snapshot_id = await snapshot_of(ops, nodes=[mapping()["nodes"][0]], edges=[], runtime="unload")
        await h.drain()
        engine.queries.clear()
        await h.move_time(timedelta(minutes=5))
        await h.drain()
        await h.move_time(timedelta(minutes=5))
        await h.drain()
        assert len(engine.queries) == 1
        engine.finish()
        await h.move_time(timedelta(minutes=5))
        await h.drain()

        found = await look(ops, snapshot_id)
        assert found["snapshot"]["status"] == "ready"

    @pytest.mark.parametrize(
        ("error", "status"), [(QueryRefused("no permission"), "failed"), (EngineUnavailable("worker lost"), "pending")]
    )
    async def test_a_query_that_failed_fails_its_job_unless_another_try_may_work(
        self, ops: Client, h: Harness, engine: UnloadingEngine, error: Any, status: str
    ) -> None:
        """W-07."""
        snapshot_id = await snapshot_of(ops, nodes=[mapping()["nodes"][0]], edges=[], runtime="unload")
        await h.drain()
        engine.end(Phase.FAILED, error)
        await h.move_time(timedelta(minutes=1))
        await h.drain()

        assert (await look(ops, snapshot_id))["exports"][0]["status"] == status

    async def test_cancel_stops_the_query_at_the_engine(self, ops: Client, h: Harness, engine: UnloadingEngine) -> None:
        snapshot_id = await snapshot_of(ops, runtime="unload")
        await h.drain()

        assert (await ops.post(f"/api/snapshots/{snapshot_id}/cancel")).status_code == 202
        await h.clean()

        assert (await look(ops, snapshot_id))["snapshot"]["status"] == "cancelled"
        assert sorted(engine.cancelled) == sorted(engine.queries)

    async def test_a_job_without_a_role_fails_at_once_where_the_engine_needs_one(
        self, ops: Client, h: Harness, engine: UnloadingEngine, conn: Any
    ) -> None:
        """W-10, W-11, Q-03: the job fails, the process lives, and no default stands in."""
        snapshot_id = await snapshot_of(ops, runtime="unload")
        exports(engine, need_role=["duckdb"]).share()
        await conn.execute('UPDATE holdfast.jobs SET payload = payload || \'{"role": "risk"}\' WHERE priority = 1')
        await h.drain()

        errors = [one["error_message"] for one in (await look(ops, snapshot_id))["exports"]]
        assert errors[:2] == ["Missing use case ID (X-Use-Case-Id header required)"] * 2
        assert errors[2] is None
        assert {query["role"] for query in engine.queries.values()} == {"risk"}


def test_the_way_to_run_is_what_was_asked_for_and_else_through_the_worker() -> None:
    """W-06: DIRECT_EXPORT."""
    assert chosen("auto", direct=True, can_submit=True) == "direct"
    assert chosen("auto", direct=False, can_submit=True) == "unload"
    assert chosen("auto", direct=False, can_submit=False) == "direct"
    assert chosen("ctas", direct=True, can_submit=True) == "ctas"


@pytest.mark.parametrize(("columns", "rows"), [(1, 100_000), (1000, 100)])
async def test_rows_are_counted_by_the_end_of_a_file(folder: Path, columns: int, rows: int) -> None:
    """E-06: a file that an engine wrote may be larger than our memory; its footer may be larger than the first guess."""
    table = pa.table({f"a column with a long name {n}": pa.array(range(rows)) for n in range(columns)})
    pq.write_table(table, folder / "part")
    found = Found("part", (folder / "part").stat().st_size)
    store = LocalStore(location_of(str(folder)), allowed=[folder])
    read: list[int] = []
    get_end = store.get_end

    async def counted(found: Found, count: int) -> bytes:
        read.append(count)
        return await get_end(found, count)

    store.get_end = counted  # type: ignore[method-assign]
    assert await _rows(store, found) == rows
    assert len(read) == (1 if columns == 1 else 2)
    assert max(read) < found.bytes
