"""`hf.graphs` against a real control plane, worker and graph server; and what a result can be converted to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import programs
from holdfast.client import Conflict, Connection, Invalid, NotFound
from holdfast.errors import UsageError
from holdfast.services.graphs.client import AlgorithmFailed, GraphFailed, QueryResult
from holdfast.services.graphs.client.graphs import progress_of
from serving import Served

PERSON = {
    "label": "Person",
    "sql": "SELECT range AS id, 'person ' || range AS name, range / 10 AS score FROM range(100)",
    "primary_key": {"name": "id", "type": "INT64"},
    "properties": [{"name": "name", "type": "STRING"}, {"name": "score", "type": "DOUBLE"}],
}
SIX = {
    "reconciliation": 300,
    "lifecycle": 300,
    "export_reconciliation": 5,
    "schema_cache": 86_400,
    "instance_orchestration": 30,
    "resource_monitor": 60,
}
KNOWS = {
    "type": "KNOWS",
    "from_node": "Person",
    "to_node": "Person",
    "sql": "SELECT range AS a, range // 2 AS b FROM range(1, 100)",
    "from_key": "a",
    "to_key": "b",
}


def new_mapping(hf: Connection, name: str, edge: dict[str, Any]) -> None:
    """Create a mapping; again while the engine of a busy machine takes too long to start."""
    for left in reversed(range(10)):
        try:
            hf.mappings.create(name, nodes=[PERSON], edges=[edge])
        except Invalid as error:
            if not left or "could not describe its columns in" not in str(error):
                raise
        else:
            return


def intervals_of(hf: Connection) -> dict[str, int] | None:
    """The interval of each periodic loop in seconds; None while one of the six is missing."""
    every = {one["job_name"]: one["interval_seconds"] for one in hf.api.get("/api/ops/jobs/status")}
    return every if {*SIX} <= {*every} else None


@pytest.mark.more  # each step has a test of its own
@pytest.mark.processes
def test_from_a_mapping_to_pagerank(hf: Connection, plane: Served, tmp_path: Path):
    """D.16, S-01, G-01: an analyst names a mapping, gets a running graph, queries it and runs an algorithm; the control plane's
    process runs the six periodic jobs of the documents. `lifecycle` is two loops: one for instances, one for what they load."""
    every = plane.until(lambda: intervals_of(hf))  # the API answers before its scheduler has written the rows of the loops
    assert {name: every[name] for name in SIX if name != "instance_orchestration"} == {
        name: seconds for name, seconds in SIX.items() if name != "instance_orchestration"
    }, "the test makes that one quicker"
    new_mapping(hf, "social", KNOWS)
    seen: list[str] = []

    made = hf.graphs.create(mapping="social")
    graph = hf.graphs.wait(made, show=False, on_progress=lambda now: seen.append(progress_of(now).state))

    assert (graph.status, graph.name) == ("running", "social")
    assert set(seen) <= {"waiting_for_snapshot", "starting", "running"}
    assert graph.query("MATCH (p:Person {id: $id}) RETURN p.name", id=7).scalar() == "person 7"
    assert len(graph.query("MATCH (p:Person) RETURN p", max_rows=10)) == 10
    assert graph.schema()["nodes"][0]["rows"] == 100
    ranks = graph.algo.pagerank(show=False, most=3)
    assert [row["key"] for row in ranks] == [1, 0, 2], "half of all paths join in 1"
    graph.algo.wcc(property="component", show=False)
    assert graph.query("MATCH (p:Person) RETURN count(DISTINCT p.component)").scalar() == 1
    assert [row["key"] for row in graph.algo.shortest_path(("Person", 9), ("Person", 0), show=False)] == [9, 4, 2, 1, 0]
    with pytest.raises(Invalid, match="Nope"):
        graph.query("MATCH (n:Nope) RETURN n")
    with pytest.raises(Invalid, match="read-only"):
        graph.query("CREATE (:Person {id: 1})")
    with pytest.raises(AlgorithmFailed, match="no Person with the key 1000"):
        graph.algo.shortest_path(("Person", 1000), show=False)
    with pytest.raises(UsageError, match="no graph with the name 'other'"):
        hf.graphs.query("other", "RETURN 1")
    assert hf.graphs.query("social", "RETURN 1 AS one").scalar() == 1
    commands(plane, graph.id, tmp_path)
    a_failure_says_why(hf)

    graph.delete()

    with pytest.raises((NotFound, Conflict)):
        graph.query("RETURN 1")


def commands(plane: Served, graph: int, folder: Path) -> None:
    """The same graph from the command line."""
    env = {"HOLDFAST_API_URL": plane.url, "HOLDFAST_TOKEN": plane.token, "HOME": str(folder)}

    def run(*words: str) -> Any:
        return programs.run("graph", *words, folder=folder, env=env)

    cypher = "MATCH (p:Person) WHERE p.id < $n RETURN p.id AS id, p.name AS name ORDER BY id"
    shown = run("query", "social", cypher, "-p", "n:=2", "-o", "table")
    assert "person 1" in shown.stdout, shown.stderr
    assert "2 rows in" in shown.stderr
    assert json.loads(run("query", str(graph), cypher, "-p", "n:=2", "--json").stdout) == [
        {"id": 0, "name": "person 0"},
        {"id": 1, "name": "person 1"},
    ]
    assert run("query", "social", cypher, "-p", "n:=1", "-o", "csv").stdout == "id,name\n0,person 0\n"
    written = run("query", "social", cypher, "-p", "n:=50", "--to", "rows.parquet")
    assert "Wrote 50 rows" in written.stderr
    assert pq.read_table(folder / "rows.parquet").num_rows == 50
    wrong = run("query", "social", "MATCH (n:Nope) RETURN n")
    assert wrong.returncode != 0
    assert "Nope" in wrong.stderr
    missing = run("query", "nothing", "RETURN 1")
    assert "there is no graph with the name 'nothing'" in missing.stderr
    ranked = run("algo", "social", "k-core", "--label", "Person", "--top", "2")
    assert len(ranked.stdout.splitlines()) == 2, ranked.stderr
    typed = ".mode json\nMATCH (p:Person)\nRETURN count(*) AS n;\n.schema\n.quit\n"
    command = [sys.executable, "-m", "holdfast", "graph", "shell", "social"]
    shell = subprocess.run(command, input=typed, env=os.environ | env, cwd=folder, capture_output=True, text=True, check=False)
    assert '"n": 100' in shell.stdout, shell.stderr
    assert '"name": "KNOWS"' in shell.stdout


def a_failure_says_why(hf: Connection) -> None:
    """DATA_LOAD_ERROR reaches the analyst with the value that caused it. On the same control plane: it takes long to start."""
    wrong = {**KNOWS, "sql": "SELECT 1 AS a, 5000 AS b"}
    new_mapping(hf, "broken", wrong)

    with pytest.raises(GraphFailed, match=r"DATA_LOAD_ERROR.*5000") as failed:
        hf.graphs.create(mapping="broken", name="b").wait(show=False)

    assert failed.value.graph.error_code == "DATA_LOAD_ERROR"
    with pytest.raises(Conflict):
        failed.value.graph.query("RETURN 1")


# ---------------------------------------------------------------------------------------------------------------------
# Results
# ---------------------------------------------------------------------------------------------------------------------

NODE = {"_ID": {"offset": 0, "table": 0}, "_LABEL": "Person", "id": 1, "name": "<Ada>"}
OTHER = {"_ID": {"offset": 1, "table": 0}, "_LABEL": "Person", "id": 2, "name": None}
EDGE = {"_SRC": NODE["_ID"], "_DST": OTHER["_ID"], "_LABEL": "KNOWS", "_ID": {"offset": 5, "table": 1}, "weight": 0.5}


@pytest.fixture
def result() -> QueryResult:
    return QueryResult(pa.table({"p": [NODE, None], "k": [EDGE, EDGE], "q": [OTHER, OTHER], "n": [1, 2]}))


def stream(table: pa.Table, truncated: str) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema.with_metadata({"holdfast_truncated": truncated})) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def test_a_result_knows_whether_rows_were_cut_off():
    table = pa.table({"n": [1, 2]})

    assert QueryResult.of_stream(stream(table, "true")).truncated
    assert not QueryResult.of_stream(stream(table, "false")).truncated
    assert "truncated" in repr(QueryResult.of_stream(stream(table, "true")))


def test_rows_scalars_and_conversions(result: QueryResult, tmp_path: Path):
    assert (len(result), result.columns) == (2, ["p", "k", "q", "n"])
    assert [row["n"] for row in result] == [1, 2]
    assert result.polars()["n"].to_list() == [1, 2]
    assert list(result.pandas()["n"]) == [1, 2]
    assert pq.read_table(result.parquet(tmp_path / "x.parquet")).num_rows == 2
    with pytest.raises(UsageError, match="2 rows and 4 columns"):
        result.scalar()
    assert QueryResult(pa.table({"n": [5]})).scalar() == 5


def test_nodes_edges_and_paths_become_a_networkx_graph(result: QueryResult):
    path = QueryResult(pa.table({"path": [{"_NODES": [NODE, OTHER], "_RELS": [EDGE]}]}))

    for graph in (result.networkx(), path.networkx()):
        assert sorted(graph.nodes) == [(0, 0), (0, 1)]
        assert graph.nodes[0, 0] == {"label": "Person", "id": 1, "name": "<Ada>"}
        assert [(a, b, data["label"], data["weight"]) for a, b, data in graph.edges(data=True)] == [
            ((0, 0), (0, 1), "KNOWS", 0.5)
        ], "an edge that is in two rows is one edge"


def test_the_html_table_escapes_text_and_says_what_is_missing(result: QueryResult):
    html = result._repr_html_()
    long = QueryResult(pa.table({"n": range(60)}), truncated=True)._repr_html_()

    assert "&lt;Ada&gt;" in html
    assert "<Ada>" not in html
    assert "[:KNOWS {weight: 0.5}]" in html
    assert long.count("<tr>") == 51
    assert "50 of 60 rows; the server stopped at max_rows" in long


@pytest.mark.parametrize("module", ["polars", "pandas", "networkx"])
def test_a_library_that_is_not_installed_is_named(result: QueryResult, module: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, module, None)

    with pytest.raises(UsageError, match=f"{module} is not installed: pip install {module}"):
        getattr(result, module)()
