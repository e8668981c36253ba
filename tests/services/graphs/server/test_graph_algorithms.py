"""The algorithms on arrays, compared with NetworkX; and their runs in a real graph server."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest

from graph_servers import Served, graph_server, ring, social
from holdfast.services.graphs.server.algorithms.catalog import ALGORITHMS, parameters_of
from holdfast.services.graphs.server.algorithms.compute import FUNCTIONS, Edges, compute, expected_iterations
from holdfast.services.graphs.server.algorithms.progress import Lines, fraction, read_line

SIZE = 60


def answer(name: str, edges: Edges, **given: Any) -> dict[str, Any]:
    return compute(name, edges, {**parameters_of_all(name), **given})


def parameters_of_all(name: str) -> dict[str, Any]:
    return {one: parameter.default for one, parameter in ALGORITHMS[name].parameters.items()}


@pytest.fixture(params=range(3))
def both(request: pytest.FixtureRequest) -> tuple[Edges, nx.MultiDiGraph]:
    """A random graph with loops, parallel edges and lonely nodes, as arrays and in NetworkX."""
    random = np.random.default_rng(request.param)
    source, target = random.integers(0, SIZE - 5, 150), random.integers(0, SIZE - 5, 150)
    weight = random.integers(1, 9, 150).astype(float)
    graph = nx.MultiDiGraph()
    graph.add_nodes_from(range(SIZE))
    graph.add_weighted_edges_from(zip(source.tolist(), target.tolist(), weight.tolist(), strict=True))
    return Edges(SIZE, source, target, weight), graph


def groups(column: Any) -> set[frozenset[int]]:
    """The sets of nodes that have one value."""
    found: dict[int, set[int]] = {}
    for number, value in enumerate(column.tolist()):
        found.setdefault(value, set()).add(number)
    return {frozenset(one) for one in found.values()}


def simple(graph: nx.MultiDiGraph) -> nx.Graph:
    """Undirected, without loops and parallel edges."""
    made = nx.Graph(graph.to_undirected())
    made.remove_edges_from(nx.selfloop_edges(made))
    return made


def unweighted(edges: Edges) -> Edges:
    return Edges(edges.nodes, edges.source, edges.target)


def test_every_algorithm_of_the_catalog_has_its_function():
    assert set(ALGORITHMS) == set(FUNCTIONS)


def test_pagerank(both: tuple[Edges, nx.MultiDiGraph]):
    edges, graph = both

    found = answer("pagerank", edges)["rank"]

    expected = nx.pagerank(graph, weight="weight", tol=1e-12, max_iter=1000)
    assert np.allclose(found, [expected[number] for number in range(SIZE)], atol=1e-7)
    assert abs(found.sum() - 1) < 1e-9


def test_components(both: tuple[Edges, nx.MultiDiGraph]):
    edges, graph = both

    weak, strong = answer("wcc", edges)["component"], answer("scc", edges)["component"]

    assert groups(weak) == {frozenset(one) for one in nx.weakly_connected_components(graph)}
    assert groups(strong) == {frozenset(one) for one in nx.strongly_connected_components(graph)}
    sizes = np.bincount(weak)
    assert (np.diff(sizes) <= 0).all(), "0 is the largest"


def test_cores_triangles_and_degrees(both: tuple[Edges, nx.MultiDiGraph]):
    edges, graph = both
    plain = simple(graph)

    core, triangles = answer("k_core", edges)["core"], answer("triangle_count", edges)["triangles"]

    assert core.tolist() == [nx.core_number(plain)[number] for number in range(SIZE)]
    assert triangles.tolist() == [nx.triangles(plain)[number] for number in range(SIZE)]
    for direction, expected in (("in", graph.in_degree), ("out", graph.out_degree), ("both", graph.degree)):
        weighted = answer("degree", edges, direction=direction)["degree"]
        counted = answer("degree", unweighted(edges), direction=direction)["degree"]
        assert weighted.tolist() == [expected(weight="weight")[number] for number in range(SIZE)]
        assert counted.tolist() == [expected()[number] for number in range(SIZE)]


@pytest.mark.parametrize("directed", [True, False])
def test_betweenness_of_all_sources_is_exact(both: tuple[Edges, nx.MultiDiGraph], directed: bool):
    edges, graph = both

    found = answer("betweenness", edges, samples=SIZE, directed=directed)["betweenness"]

    plain = nx.DiGraph(graph) if directed else simple(graph)
    expected = nx.betweenness_centrality(plain)
    assert np.allclose(found, [expected[number] for number in range(SIZE)])


def test_betweenness_of_some_sources_can_be_repeated(both: tuple[Edges, nx.MultiDiGraph]):
    edges, _ = both

    one, two, three = (answer("betweenness", edges, samples=20, seed=seed)["betweenness"] for seed in (1, 1, 2))

    assert (one == two).all()
    assert not (one == three).all()


@pytest.mark.parametrize("name", ["louvain", "label_propagation"])
def test_communities_are_found_and_can_be_repeated(name: str):
    """Three cliques, each connected to the next by one edge."""
    pairs = [(a + base, b + base) for base in (0, 10, 20) for a in range(10) for b in range(a)] + [(9, 19), (19, 29)]
    source, target = np.array(pairs).T
    edges = Edges(30, source, target)

    found = answer(name, edges)["community"]

    assert groups(found) == {frozenset(range(base, base + 10)) for base in (0, 10, 20)}
    assert (found == answer(name, edges)["community"]).all()


@pytest.mark.parametrize("directed", [True, False])
def test_shortest_paths(both: tuple[Edges, nx.MultiDiGraph], directed: bool):
    edges, graph = both
    undirected = nx.MultiGraph(list(graph.edges(data=True)))  # to_undirected keeps one of two opposite edges, any of them
    expected = nx.single_source_dijkstra_path_length(graph if directed else undirected, 3)

    every = answer("shortest_path", edges, source=3, target=None, directed=directed)

    assert dict(zip(every["node"].tolist(), every["distance"].tolist(), strict=True)) == expected
    far = max(expected, key=lambda number: expected[number])
    one = answer("shortest_path", edges, source=3, target=far, directed=directed)
    assert (one["node"][0], one["node"][-1], one["distance"][-1]) == (3, far, expected[far])
    steps = list(zip(one["node"][:-1].tolist(), one["node"][1:].tolist(), strict=True))
    assert all(graph.has_edge(a, b) or (not directed and graph.has_edge(b, a)) for a, b in steps)
    assert answer("shortest_path", edges, source=3, target=SIZE - 1, directed=directed)["node"].tolist() == []


def test_without_edges_every_algorithm_still_answers():
    none = np.array([], dtype=np.int64)
    for name in sorted(set(FUNCTIONS) - {"shortest_path"}):
        assert len(answer(name, Edges(4, none, none))["node"]) == 4, name


# ---------------------------------------------------------------------------------------------------------------------
# Progress
# ---------------------------------------------------------------------------------------------------------------------


def told(name: str, edges: Edges, **given: Any) -> list[tuple[int, int, str]]:
    found: list[tuple[int, int, str]] = []
    compute(name, edges, {**parameters_of_all(name), **given}, lambda *said: found.append(said))
    return found


def test_pagerank_tells_its_iterations_and_never_goes_back(both: tuple[Edges, nx.MultiDiGraph]):
    """The number that it expects is a bound: it only becomes smaller, and the run ends before it."""
    found = told("pagerank", both[0], max_iterations=1000)

    shares = [done / of for done, of, _ in found]
    assert [done for done, _, _ in found] == list(range(1, len(found) + 1))
    assert shares == sorted(shares)
    assert all(len(found) <= of for _, of, _ in found)
    assert {unit for *_, unit in found} == {"iterations"}


@pytest.mark.parametrize(
    ("damping", "change", "expected"), [(0.5, 1.0, 3 + 10), (1, 1.0, 50), (0, 1.0, 3 + 1), (0.99, 1.0, 50), (0.5, 0.001, 4)]
)
def test_how_many_iterations_are_expected(damping: float, change: float, expected: int):
    given = {"damping": damping, "tolerance": 1e-3, "max_iterations": 50}

    assert expected_iterations(3, change, given) == expected


def test_betweenness_tells_its_sources(both: tuple[Edges, nx.MultiDiGraph]):
    assert told("betweenness", both[0], samples=40) == [(0, 40, "sources"), (16, 40, "sources"), (32, 40, "sources")]


def test_each_step_has_its_share_of_a_run():
    steps = [("extracting", 0), ("extracting", 5), ("computing", 0), ("computing", 10), ("writing", 5), ("writing", 10)]

    assert [fraction(step, done, 10, writes=True) for step, done in steps] == [0, 0.15, 0.3, 0.8, 0.9, 1]
    assert [fraction(step, done, 10, writes=False) for step, done in steps[:4]] == [0, 0.15, 0.3, 1]
    assert fraction("computing", 0, 0, writes=False) == 0.3, "a step that counts nothing"


def test_lines_of_the_child_are_few_and_what_a_library_prints_is_none_of_them():
    out, found = io.StringIO(), list[tuple[int, int, str]]()
    lines = Lines(out)

    lines.tell(1, 4, "sources")
    lines.tell(2, 4, "sources")  # a moment later
    for line in (b"a warning of a library\n", b"[]\n", b'{"done": null, "of": 1, "unit": ""}\n', out.getvalue().encode()):
        read_line(line, lambda *said: found.append(said))

    assert found == [(1, 4, "sources")]


# ---------------------------------------------------------------------------------------------------------------------
# Runs
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("people")
    with graph_server(social(folder / "files"), folder / "server") as served:
        assert served.until_loaded()["phase"] == "ready", served.log()
        yield served


def run(served: Served, name: str, **body: Any) -> dict[str, Any]:
    started = served.http.post(f"/algorithms/{name}", json=body)
    assert started.status_code == 202, started.text
    return served.until_ended(started.json()["id"])


@pytest.mark.more
@pytest.mark.processes
def test_a_run_returns_keys_and_values(people: Served):
    ended = run(people, "degree", node_labels=["Person"], weight="weight", parameters={"direction": "out"})

    assert (ended["state"], ended["nodes"], ended["edges"], ended["rows"]) == ("completed", 4, 4, 4), ended
    found = people.http.get(f"/algorithms/runs/{ended['id']}/result", params={"order": "desc", "limit": 2}).json()
    assert found["columns"] == ["label", "key", "degree"]
    assert found["rows"] == [["Person", 3, 4.5], ["Person", 2, 2.0]]
    assert found["truncated"]


@pytest.mark.more
@pytest.mark.processes
def test_keys_of_several_labels_are_text(people: Served):
    ended = run(people, "wcc")

    rows = people.http.get(f"/algorithms/runs/{ended['id']}/result").json()["rows"]
    assert {(label, key) for label, key, _ in rows} == {("Person", str(one)) for one in (1, 2, 3, 4)} | {
        ("City", one) for one in ("bern", "basel", "chur")
    }
    assert {component for label, key, component in rows if key == "chur"} == {1}


@pytest.mark.more
@pytest.mark.processes
def test_a_path_between_two_nodes(people: Served):
    ends = {"source": {"label": "Person", "key": 1}, "target": {"label": "Person", "key": 4}}
    ended = run(people, "shortest_path", node_labels=["Person"], weight="weight", parameters=ends)

    rows = people.http.get(f"/algorithms/runs/{ended['id']}/result").json()["rows"]
    assert rows == [["Person", 1, 0.0, 0], ["Person", 2, 1.0, 1], ["Person", 3, 3.0, 2], ["Person", 4, 3.5, 3]]
    missing = run(people, "shortest_path", parameters={"source": {"label": "Person", "key": 99}})
    assert (missing["state"], missing["error"]) == ("failed", "there is no Person with the key 99")


@pytest.mark.more
@pytest.mark.processes
def test_a_result_is_written_to_a_property_and_written_again(people: Served):
    ended = run(people, "pagerank", node_labels=["Person"], property="rank")
    assert (ended["state"], ended["progress"], ended["done"]) == ("completed", 1, None), ended

    rows = people.http.get(f"/algorithms/runs/{ended['id']}/result").json()["rows"]
    assert dict(people.rows("MATCH (p:Person) RETURN p.id, p.rank")) == {key: value for _, key, value in rows}
    assert {"name": "rank", "type": "DOUBLE"} in people.http.get("/schema").json()["nodes"][0]["properties"]
    again = run(people, "k_core", node_labels=["Person"], property="rank")
    assert again["state"] == "completed", again
    assert people.rows("MATCH (p:Person) RETURN p.rank ORDER BY p.id") == [[2], [2], [2], [1]]
    assert [file.name for file in (people.folder / "data").glob("graph-*")] == ["graph-3"], "older databases are removed"
    refused = people.query("MATCH (p:Person) SET p.rank = 1")
    assert refused.json()["code"] == "READ_ONLY"


@pytest.mark.processes
@pytest.mark.parametrize(
    ("name", "body", "status", "named"),
    [
        ("nothing", {}, 404, "there are: pagerank"),
        ("pagerank", [], 400, "JSON object"),
        ("pagerank", {"extra": 1}, 400, "extra"),
        ("pagerank", {"node_labels": ["Nope"]}, 400, "there are: Person, City"),
        ("pagerank", {"node_labels": []}, 400, "node_labels"),
        ("pagerank", {"node_labels": ["City"], "edge_types": ["KNOWS"]}, 400, "connects Person and Person"),
        ("pagerank", {"weight": "weight"}, 400, "LIVES_IN has no such property"),
        ("wcc", {"weight": "weight", "node_labels": ["Person"]}, 400, "uses no weights"),
        ("pagerank", {"parameters": {"damping": 2}}, 400, "from 0 to 1"),
        ("pagerank", {"parameters": {"max_iterations": 1.5}}, 400, "whole number"),
        ("pagerank", {"parameters": {"nope": 1}}, 400, "there are: damping"),
        ("degree", {"parameters": {"direction": "up"}}, 400, "out, in, both"),
        ("shortest_path", {}, 400, "source"),
        ("shortest_path", {"property": "x", "parameters": {"source": {"label": "Person", "key": 1}}}, 400, "cannot be written"),
        ("pagerank", {"property": "name", "node_labels": ["Person"]}, 409, "from its mapping"),
        ("pagerank", {"property": "NAME", "node_labels": ["Person"]}, 409, "from its mapping"),
        ("pagerank", {"property": "a b"}, 400, "letters"),
        ("pagerank", {"timeout_seconds": -1}, 400, "timeout_seconds"),
    ],
)
def test_a_wrong_run_is_refused_before_it_begins(people: Served, name: str, body: object, status: int, named: str):
    answer = people.http.post(f"/algorithms/{name}", json=body)

    assert answer.status_code == status, answer.text
    assert named in answer.text
    assert people.http.get("/lock").json() == {"locked": False, "holder": None}


@pytest.fixture(scope="module")
def tangle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("tangle")
    with graph_server(ring(folder / "files", 4000, more=3), folder / "server") as served:
        assert served.until_loaded()["phase"] == "ready", served.log()
        yield served


LONG = {"parameters": {"samples": 100_000}, "holder": "ada"}  # a search from each of the nodes, level by level


def until_it_counts(served: Served, number: int) -> dict[str, Any]:
    """The run once it has reported a part of its step."""
    deadline = time.monotonic() + 120
    while True:
        found: dict[str, Any] = served.http.get(f"/algorithms/runs/{number}").json()
        if found["progress"] > 0.3:
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.02)


@pytest.mark.more
@pytest.mark.processes
def test_one_run_at_a_time_queries_go_on_and_a_run_can_be_cancelled(tangle: Served):
    """D.15: 409 names the holder; queries are never blocked by a run."""
    started = tangle.http.post("/algorithms/betweenness", json=LONG).json()
    deadline = time.monotonic() + 120
    while tangle.http.get(f"/algorithms/runs/{started['id']}").json()["step"] != "computing":
        assert time.monotonic() < deadline
        time.sleep(0.02)

    second = tangle.http.post("/algorithms/wcc", json={})
    lock = tangle.http.get("/lock").json()
    counted = until_it_counts(tangle, started["id"])
    count = tangle.rows("MATCH (n:N) RETURN count(*)")
    still = tangle.http.get(f"/algorithms/runs/{started['id']}").json()
    cancelled = tangle.http.delete(f"/algorithms/runs/{started['id']}").json()

    assert (second.status_code, second.json()["code"]) == (409, "RESOURCE_LOCKED")
    assert second.json()["holder"] == {"run_id": started["id"], "algorithm": "betweenness", "holder": "ada"}
    assert lock["locked"]
    assert 0.3 < counted["progress"] < 1
    assert re.fullmatch(r"[\d,]+ of 4,000 sources", counted["done"])
    assert count == [[4000]]
    assert still["state"] == "running", "the query did not wait for the run"
    assert (cancelled["state"], cancelled["error_code"]) == ("cancelled", "CANCELLED")
    assert counted["progress"] <= cancelled["progress"] < 1, "it stays where it was stopped"
    assert tangle.http.get("/lock").json()["locked"] is False
    assert not [*(tangle.folder / "data" / "runs").iterdir()], "its files are removed"
    assert run(tangle, "degree")["state"] == "completed"
    result = tangle.http.get(f"/algorithms/runs/{started['id']}/result")
    assert (result.status_code, result.json()["code"]) == (409, "NO_RESULT")


@pytest.mark.more
@pytest.mark.processes
def test_a_run_that_takes_too_long_fails(tangle: Served):
    ended = run(tangle, "betweenness", timeout_seconds=0.5, **LONG)

    assert (ended["state"], ended["error_code"]) == ("failed", "ALGORITHM_TIMEOUT")


@pytest.mark.more
@pytest.mark.processes
def test_the_child_ends_with_its_graph_server(tmp_path: Path):
    """A graph server that is killed leaves no process behind."""
    with graph_server(ring(tmp_path / "files", 4000, more=3), tmp_path / "server") as served:
        served.until_loaded()
        started = served.http.post("/algorithms/betweenness", json=LONG).json()
        deadline = time.monotonic() + 120
        while not (found := children_in(tmp_path / "server" / "data" / "runs" / f"run-{started['id']}")):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        served.process.kill()
        served.process.wait()

    while children_in(tmp_path / "server" / "data" / "runs"):
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def children_in(folder: Path) -> list[int]:
    """The processes whose arguments name a path in this folder."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_text() if entry.name.isdecimal() else ""
        except OSError:
            continue
        if "algorithms.child" in words and str(folder) in words:
            found.append(int(entry.name))
    return found


def test_parameters_get_their_defaults():
    assert parameters_of(ALGORITHMS["pagerank"], {"damping": 1})["damping"] == 1.0
    assert parameters_of(ALGORITHMS["degree"], {}) == {"direction": "both"}
