"""Any JSON, path and query string: a graph server answers with a problem, never with an error of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graph_servers import Served, graph_server, social

pytestmark = pytest.mark.processes

WORDS = [
    "MATCH",
    "(n)",
    "(p:Person)",
    "RETURN",
    "n",
    "*",
    "LIMIT",
    "1",
    "$x",
    "CALL",
    "show_tables()",
    "'",
    "`",
    "//",
    "/*",
    ";",
    "{",
    ")",
]
CYPHER = st.one_of(st.text(max_size=60), st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join))
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=10)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)),
    max_leaves=6,
)
QUERY = st.fixed_dictionaries(
    {"query": CYPHER},
    optional={
        "parameters": st.dictionaries(st.sampled_from(["x", "y"]), JSON, max_size=2),
        "timeout_ms": JSON,
        "max_rows": JSON,
    },
)
RUN = st.dictionaries(
    st.sampled_from(["node_labels", "edge_types", "weight", "property", "parameters", "timeout_seconds"]), JSON
)
ANY = settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("people")
    with graph_server(social(folder / "files"), folder / "server", HOLDFAST_GRAPH_QUERY_SECONDS="5") as served:
        assert served.until_loaded()["phase"] == "ready", served.log()
        yield served


@pytest.mark.more
@ANY
@given(
    body=st.one_of(QUERY, JSON),
    accept=st.sampled_from(["application/json", "text/csv", "*/*", "application/vnd.apache.arrow.stream"]),
)
def test_any_query(people: Served, body: Any, accept: str):
    answer = people.http.post("/query", json=body, headers={"Accept": accept})

    assert answer.status_code < 500, (body, answer.text)


@pytest.mark.more
@ANY
@given(name=st.sampled_from(["pagerank", "shortest_path", "degree", "x"]), body=st.one_of(RUN, JSON))
def test_any_run(people: Served, name: str, body: Any):
    answer = people.http.post(f"/algorithms/{name}", json=body)

    assert answer.status_code < 500, (body, answer.text)
    if answer.status_code == 202:
        people.http.delete(f"/algorithms/runs/{answer.json()['id']}")


@ANY
@given(number=st.integers(0, 3), order=st.text(max_size=5), limit=st.text(max_size=5))
def test_any_result(people: Served, number: int, order: str, limit: str):
    answer = people.http.get(f"/algorithms/runs/{number}/result", params={"order": order, "limit": limit})

    assert answer.status_code < 500, answer.text


def test_text_that_is_not_unicode(people: Served):
    for body in (
        b'{"query": "RETURN \'\\ud800\'"}',
        b'{"query": "RETURN $x", "parameters": {"x": "\\ud800"}}',
        b'{"\\ud800": 1}',
    ):
        assert people.http.post("/query", content=body).status_code == 400, body
    assert people.rows("RETURN 1") == [[1]]
