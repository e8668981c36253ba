"""The load of a graph server: every row or none, from local disk and object stores, with its progress."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import boto3
import pyarrow as pa
import pytest
from moto.server import ThreadedMotoServer

from graph_servers import Served, column, edge, graph_server, node, plan_of, social, write
from holdfast.services.graphs.plan import LoadPlan
from holdfast.services.graphs.server.files import Brought
from holdfast.services.graphs.server.loading import LoadFailed, _fill

pytestmark = pytest.mark.processes
Change = Callable[[dict[str, Any], Path], None]


def test_progress_by_table_and_counts(tmp_path: Path):
    with graph_server(social(tmp_path / "files"), tmp_path / "server") as served:
        found = served.until_loaded()

        assert found["phase"] == "ready", served.log()
        assert (found["instance_id"], found["start_token"][:8]) == (7, "00000000")
        assert found["rows"] == {"nodes": 7, "edges": 7}
        assert [(one["name"], one["type"], one["state"], one["loaded"]) for one in found["progress"]["tables"]] == [
            ("Person", "node", "loaded", 4),
            ("City", "node", "loaded", 3),
            ("KNOWS", "edge", "loaded", 4),
            ("LIVES_IN", "edge", "loaded", 3),
        ]
        assert found["progress"]["share"] == 1.0
        assert not (tmp_path / "server" / "data" / "files").exists() or not [*(tmp_path / "server/data/files").iterdir()]


def _rows_of_table(plan: dict[str, Any], _: Path) -> None:
    plan["nodes"][0]["rows"] = 5


def _rows_of_file(plan: dict[str, Any], _: Path) -> None:
    plan["edges"][0]["files"][0]["rows"] = 3
    plan["edges"][0]["rows"] = 3


def _missing_file(plan: dict[str, Any], files: Path) -> None:
    (files / "cities.parquet").unlink()


def _not_parquet(plan: dict[str, Any], files: Path) -> None:
    (files / "cities.parquet").write_text("code,title")


def _other_columns(plan: dict[str, Any], _: Path) -> None:
    plan["nodes"][0]["properties"].reverse()


def _duplicate_key(plan: dict[str, Any], files: Path) -> None:
    plan["nodes"][1]["files"] = [write(files / "cities.parquet", {"code": ["x", "x", "y"], "title": ["1", "2", "3"]})]


def _edge_to_nowhere(plan: dict[str, Any], files: Path) -> None:
    plan["edges"][1]["files"] = [write(files / "lives.parquet", {"a": [1, 2, 99], "b": ["bern", "bern", "bern"]})]


def _two_tables_of_one_name(plan: dict[str, Any], _: Path) -> None:
    plan["edges"][1]["type"] = "City"


def _unknown_type(plan: dict[str, Any], _: Path) -> None:
    plan["nodes"][0]["properties"][0]["type"] = "POINT"


def _unknown_engine(plan: dict[str, Any], _: Path) -> None:
    plan["engine"] = "falkordb"


@pytest.mark.parametrize(
    ("change", "code", "named"),
    [
        (_rows_of_table, "DATA_LOAD_ERROR", "the files of Person have 4 rows, but the plan says 5"),
        (_rows_of_file, "DATA_LOAD_ERROR", "knows.parquet has 4 rows, but the plan says 3"),
        (_missing_file, "DATA_LOAD_ERROR", "cities.parquet does not exist"),
        (_not_parquet, "DATA_LOAD_ERROR", "is not a Parquet file"),
        (_other_columns, "DATA_LOAD_ERROR", "has the columns id, name, age"),
        (_duplicate_key, "DATA_LOAD_ERROR", "duplicated primary key"),
        (_edge_to_nowhere, "DATA_LOAD_ERROR", "99"),
        (_two_tables_of_one_name, "SCHEMA_CREATE_ERROR", "City"),
        (_unknown_type, "SCHEMA_CREATE_ERROR", "there is no type POINT"),
        (_unknown_engine, "STARTUP_FAILED", "falkordb is not supported"),
    ],
)
def test_a_load_that_cannot_be_complete_fails(tmp_path: Path, change: Change, code: str, named: str):
    """E-26: a mismatch with the manifest is an error, never a graph with some of the rows."""
    plan = social(tmp_path / "files")
    change(plan, tmp_path / "files")

    with graph_server(plan, tmp_path / "server") as served:
        found = served.until_loaded()

        assert (found["phase"], found["error_code"]) == ("failed", code), found
        assert named in found["error"]
        assert served.http.get("/ready").status_code == 503
        refused = served.query("RETURN 1")
        assert (refused.status_code, refused.json()["code"]) == (503, "LOAD_FAILED")
        assert served.http.get("/health").status_code == 200


class Miscounting:
    """A session whose COPY loses a row."""

    def run(self, cypher: str, *_: object, **__: object) -> Any:
        return self

    def arrow(self, _: int) -> pa.Table:
        return pa.table({"count": [3]})

    def close(self) -> None:
        """Nothing is open."""


def test_rows_that_the_database_counts_decide(tmp_path: Path):
    """The guard behind the footers of the files: the count after COPY."""
    table = LoadPlan.model_validate(social(tmp_path / "files")).nodes[0]

    with pytest.raises(LoadFailed, match="Person has 3 rows after the load, but the plan says 4") as failed:
        _fill(Miscounting(), table, Brought((tmp_path / "x",), None))

    assert failed.value.code == "DATA_LOAD_ERROR"


@pytest.mark.parametrize("text", ["{", json.dumps({"instance_id": 1})])
def test_a_plan_that_is_not_one_is_said(tmp_path: Path, text: str):
    with graph_server({}, tmp_path / "server") as first:
        first.until_loaded()
    (tmp_path / "server" / "bad.json").write_text(text)

    with graph_server(None, tmp_path / "server", HOLDFAST_GRAPH_PLAN=str(tmp_path / "server" / "bad.json")) as served:
        found = served.until_loaded()

    assert (found["phase"], found["error_code"]) == ("failed", "MAPPING_FETCH_ERROR")


@pytest.mark.more
def test_empty_tables_strange_paths_and_nanoseconds(tmp_path: Path):
    """A table without files; a folder with quotes and patterns in its name; timestamps that the engine cannot read."""
    files = tmp_path / "it's [a] folder*"
    files.mkdir()
    moment = datetime(2024, 2, 29, 12, 0, 0, 5)  # noqa: DTZ001 - graphs have no time zones
    one = write(files / "n.parquet", {"id": [1], "at": pa.array([moment], pa.timestamp("ns"))})
    nodes = [
        node("N", column("id", "INT64"), [column("at", "TIMESTAMP")], one),
        node("Empty", column("id", "STRING"), [column("tags", "LIST"), column("when", "DATE")]),
    ]

    with graph_server(plan_of(nodes, [edge("E", ("N", "Empty"), [])]), tmp_path / "server") as served:
        assert served.until_loaded()["phase"] == "ready", served.log()
        assert served.rows("MATCH (n:N) RETURN n.at") == [["2024-02-29T12:00:00.000005"]]
        assert served.rows("MATCH (n:Empty) RETURN count(*)") == [[0]]


@pytest.mark.more
def test_a_second_start_in_one_folder_begins_anew(tmp_path: Path):
    """A killed graph server leaves its files; the next start does not read them."""
    plan = social(tmp_path / "files")
    with graph_server(plan, tmp_path / "server") as first:
        first.until_loaded()
        first.process.kill()
        first.process.wait()
    assert [*(tmp_path / "server" / "data").glob("graph-*")]

    with graph_server(plan, tmp_path / "server") as second:
        assert second.until_loaded()["phase"] == "ready", second.log()
        assert second.rows("MATCH (p:Person) RETURN count(*)") == [[4]]


@pytest.fixture
def bucket() -> Iterator[str]:
    """An S3 server with an empty bucket; its address."""
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


def served_from_buckets(plan: dict[str, Any], folder: Path, address: str) -> Any:
    """A graph server with credentials for S3 and for GCS, whose addresses are those of the one server."""
    folder.mkdir(exist_ok=True)
    (folder / "token").write_text("x/20260101/us-east-1/s3/aws4_request")  # moto, which speaks S3, takes it for a signature
    own = {"HOLDFAST_S3_ENDPOINT": address, "HOLDFAST_S3_REGION": "us-east-1"}
    own |= {"HOLDFAST_S3_ACCESS_KEY_ID": "a" * 16, "HOLDFAST_S3_SECRET_ACCESS_KEY": "b" * 16}
    own |= {"HOLDFAST_GCS_ENDPOINT": address, "HOLDFAST_GCS_TOKEN_FILE": str(folder / "token")}
    return graph_server(plan, folder, **own)


@pytest.mark.more
def test_files_of_s3_and_gcs(tmp_path: Path, bucket: str):
    """Nodes are loaded from S3, edges from GCS; an object that is missing is DATA_LOAD_ERROR with the name of its table."""
    plan = social(tmp_path / "files")
    s3 = boto3.client(
        "s3", endpoint_url=bucket, aws_access_key_id="a" * 16, aws_secret_access_key="b" * 16, region_name="us-east-1"
    )
    s3.create_bucket(Bucket="graphs")
    for scheme, tables in (("s3", plan["nodes"]), ("gs", plan["edges"])):
        for file in (file for table in tables for file in table["files"]):
            name = Path(file["path"]).name
            s3.upload_file(file["path"], "graphs", f"snap/{name}")
            file["path"] = f"{scheme}://graphs/snap/{name}"

    with served_from_buckets(plan, tmp_path / "server", bucket) as served:
        assert served.until_loaded()["phase"] == "ready", served.log()
        assert served.rows("MATCH (p:Person)-[:KNOWS]->(q) RETURN count(*)") == [[4]]

    s3.delete_object(Bucket="graphs", Key="snap/lives.parquet")
    with served_from_buckets(plan, tmp_path / "again", bucket) as served:
        found = served.until_loaded()
    assert found["error_code"] == "DATA_LOAD_ERROR"
    assert "LIVES_IN" in found["error"]


def test_it_does_not_start_without_a_secret_or_a_plan(tmp_path: Path):
    for own, named in (({"HOLDFAST_GRAPH_SECRET": ""}, "HOLDFAST_GRAPH_SECRET"), ({}, "HOLDFAST_GRAPH_PLAN")):
        with pytest.raises(AssertionError, match=named), graph_server(None, tmp_path / "server", **own):
            pass


def test_a_port_that_is_taken_is_said(tmp_path: Path):
    with graph_server(social(tmp_path / "files"), tmp_path / "one") as first:
        assert isinstance(first, Served)
        port = first.url.rpartition(":")[2]
        second = graph_server(social(tmp_path / "files"), tmp_path / "two", HOLDFAST_GRAPH_PORT=port)
        with pytest.raises(AssertionError, match="cannot listen"), second:
            pass
