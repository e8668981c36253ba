"""Queries over HTTP, on a real graph server: formats, limits, timeouts, many at once."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import httpx2
import pyarrow as pa
import pytest

from graph_servers import KNOWS, Served, graph_server, ring, social

pytestmark = pytest.mark.processes
ARROW = "application/vnd.apache.arrow.stream"
ENDLESS = "MATCH (a:N)-[:E*1..9]->(b:N) RETURN count(*)"
# Needs no memory; the one above needs more than there is after some seconds.
LASTING = (
    "UNWIND range(1, 100000) AS a UNWIND range(1, 100000) AS b UNWIND range(1, 100000) AS c "
    "WITH a, b, c WHERE a + b * c < 0 RETURN count(*)"
)


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("people")
    with graph_server(social(folder / "files"), folder / "server", HOLDFAST_GRAPH_ROWS="3") as served:
        assert served.until_loaded()["phase"] == "ready", served.log()
        yield served


@pytest.fixture(scope="module")
def tangle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A graph with very many paths, and two query threads."""
    folder = tmp_path_factory.mktemp("tangle")
    plan = ring(folder / "files", 3000, more=20)
    own = {"HOLDFAST_GRAPH_SESSIONS": "2", "HOLDFAST_GRAPH_WAITING_QUERIES": "1", "HOLDFAST_GRAPH_MOST_ROWS": "1000000"}
    with graph_server(plan, folder / "server", **own) as served:
        assert served.until_loaded()["phase"] == "ready", served.log()
        yield served


# ---------------------------------------------------------------------------------------------------------------------
# Who may ask
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [None, "Bearer wrong", "Bearer", f"Basic {'s' * 43}"])
def test_everything_but_the_probes_needs_the_secret(people: Served, given: str | None):
    """E-25: no route that reads data or changes something answers without the secret of this instance."""
    with httpx2.Client(base_url=people.url, headers={} if given is None else {"Authorization": given}, trust_env=False) as http:
        statuses = {
            path: http.get(path).status_code
            for path in ("/health", "/ready", "/status", "/schema", "/metrics", "/lock", "/algorithms", "/algorithms/runs")
        }
        statuses["/query"] = http.post("/query", json={"query": "RETURN 1"}).status_code
        statuses["run"] = http.post("/algorithms/pagerank", json={}).status_code

    assert statuses.pop("/health") == statuses.pop("/ready") == 200
    assert set(statuses.values()) == {401}


def test_the_schema_has_types_keys_and_counts(people: Served):
    found = people.http.get("/schema").json()

    person = found["nodes"][0]
    assert (person["label"], person["primary_key"], person["rows"]) == ("Person", "id", 4)
    assert person["properties"][2] == {"name": "age", "type": "DOUBLE"}
    assert found["edges"][1] == {"type": "LIVES_IN", "from": "Person", "to": "City", "properties": [], "rows": 3}


def test_an_unknown_path_and_method_are_problems(people: Served):
    missing, wrong = people.http.get("/nothing"), people.http.get("/query")

    assert (missing.status_code, missing.json()["code"]) == (404, "NOT_FOUND")
    assert (wrong.status_code, wrong.json()["code"]) == (405, "REFUSED")


# ---------------------------------------------------------------------------------------------------------------------
# Formats
# ---------------------------------------------------------------------------------------------------------------------


def test_rows_as_json(people: Served):
    found = people.query("MATCH (p:Person {id: $id}) RETURN p, p.age AS age, [1, null] AS list", parameters={"id": 2}).json()

    assert found["columns"] == ["p", "age", "list"]
    assert found["column_types"][:2] == ["NODE", "DOUBLE"]
    ((person, age, numbers),) = found["rows"]
    assert (person["_LABEL"], person["name"], "age" in person) == ("Person", "Bob", False), "null properties are left out"
    assert (age, numbers) == (None, [1, None])
    assert (found["row_count"], found["truncated"]) == (1, False)


def test_values_that_json_does_not_have(people: Served):
    cypher = "RETURN date('2024-02-29') AS d, timestamp('2024-02-29 12:00:00') AS t, 0.0/0.0 AS nan, blob('\\\\xFF') AS b"

    ((day, moment, nan, blob),) = people.rows(cypher)

    assert (day, moment, nan, blob) == ("2024-02-29", "2024-02-29T12:00:00", None, "/w==")


def test_rows_as_csv(people: Served):
    answer = people.query("MATCH (p:Person) RETURN p.name, p.age, [p.id] AS l ORDER BY p.id LIMIT 2", accept="text/csv")

    assert answer.headers["content-type"].startswith("text/csv")
    assert list(csv.reader(io.StringIO(answer.text))) == [["p.name", "p.age", "l"], ["Ada", "36.0", "[1]"], ["Bob", "", "[2]"]]


def test_rows_as_an_arrow_stream(people: Served):
    answer = people.query("MATCH (a)-[k:KNOWS]->(b) RETURN a.id, b.id, k.weight ORDER BY a.id, b.id", accept=ARROW, max_rows=9)

    table = pa.ipc.open_stream(answer.content).read_all()
    assert table.schema.types == [pa.int64(), pa.int64(), pa.float64()]
    assert [tuple(row.values()) for row in table.to_pylist()] == sorted(KNOWS)


def test_a_format_that_does_not_exist_is_refused(people: Served):
    answer = people.query("RETURN 1", accept="image/png")

    assert (answer.status_code, answer.json()["code"]) == (406, "NOT_ACCEPTABLE")


# ---------------------------------------------------------------------------------------------------------------------
# Limits
# ---------------------------------------------------------------------------------------------------------------------


def test_more_rows_than_the_limit_are_cut_off_and_it_is_said(people: Served):
    cut = people.query("MATCH (p:Person) RETURN p.id ORDER BY p.id").json()
    whole = people.query("MATCH (p:Person) RETURN p.id", max_rows=4).json()
    arrow = pa.ipc.open_stream(people.query("MATCH (p:Person) RETURN p.id", accept=ARROW).content).schema.metadata

    assert (cut["rows"], cut["truncated"]) == ([[1], [2], [3]], True)
    assert (whole["row_count"], whole["truncated"]) == (4, False)
    assert arrow == {b"holdfast_truncated": b"true"}


def test_a_result_that_no_limit_can_cut_is_refused(people: Served):
    answer = people.query("MATCH (a:Person) RETURN a.id UNION ALL MATCH (b:Person) RETURN b.id AS `a.id`")

    assert (answer.status_code, answer.json()["code"]) == (413, "RESULT_TOO_LARGE")


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"query": 1}, "query"),
        ([], "query"),
        ({"query": "RETURN 1", "extra": 1}, "extra"),
        ({"query": "RETURN 1", "parameters": []}, ""),
        ({"query": "RETURN 1", "parameters": [1]}, "parameters"),
        ({"query": "RETURN $x", "parameters": {"x": 2**64}}, "64 bits"),
        ({"query": "RETURN 1", "timeout_ms": 0}, "timeout_ms"),
        ({"query": "RETURN 1", "timeout_ms": True}, "timeout_ms"),
        ({"query": "RETURN 1", "timeout_ms": 10**9}, "timeout_ms"),
        ({"query": "RETURN 1", "max_rows": 10**12}, "max_rows"),
        ({"query": "RETURN $x"}, "$x"),
        ({"query": "MATCH (n:Nope) RETURN n"}, "Nope"),
        ({"query": "not cypher"}, "begins with"),
    ],
)
def test_a_wrong_request_is_answered_with_what_is_wrong(people: Served, body: object, named: str):
    answer = people.http.post("/query", json=body)

    expected = 200 if not named else 400
    assert answer.status_code == expected, answer.text
    assert named in answer.text


def test_a_body_that_is_not_json_or_too_large_is_refused(people: Served):
    wrong = people.http.post("/query", content=b"{")
    large = people.http.post("/query", content=b" " * 5_000_000)

    assert (wrong.status_code, wrong.json()["code"]) == (400, "INVALID_REQUEST")
    assert (large.status_code, large.json()["code"]) == (413, "BODY_TOO_LARGE")


def test_the_engine_refuses_a_write_that_begins_like_a_query(people: Served):
    """E-26: the database is open read-only; nothing in the statement decides that."""
    answer = people.query("MATCH (p:Person) SET p.age = 0.0")

    assert (answer.status_code, answer.json()["code"]) == (400, "READ_ONLY")
    assert people.rows("MATCH (p:Person {id: 1}) RETURN p.age") == [[36.0]]


# ---------------------------------------------------------------------------------------------------------------------
# Time
# ---------------------------------------------------------------------------------------------------------------------


def test_a_timeout_stops_the_query(tangle: Served):
    answer = tangle.query(LASTING, timeout_ms=200)

    assert (answer.status_code, answer.json()["code"]) == (408, "QUERY_TIMEOUT")
    assert tangle.status()["queries_running"] == 0, "its thread is free, so the engine has stopped"


def test_a_client_that_goes_away_stops_its_query(tangle: Served):
    http = httpx2.Client(base_url=tangle.url, headers=tangle.http.headers, trust_env=False)
    with http, pytest.raises(httpx2.ReadTimeout):
        http.post("/query", json={"query": LASTING, "timeout_ms": 600_000}, timeout=0.3)

    wait_until_idle(tangle)


def test_more_queries_than_threads_wait_and_too_many_are_refused(tangle: Served):
    with closing(begun(tangle, timeout_ms=600_000)) as first, closing(begun(tangle, timeout_ms=600_000)):
        wait_until(lambda: tangle.status()["queries_running"] == 2)
        with closing(begun(tangle, timeout_ms=1)) as third:
            wait_until(lambda: tangle.status()["queries_running"] == 3)
            fourth = tangle.query(LASTING, timeout_ms=1)
            first.close()  # its thread looks at the third
            waited = json.load(third.getresponse())

    assert (fourth.status_code, fourth.json()["code"]) == (503, "BUSY")
    assert waited["code"] == "QUERY_TIMEOUT", "the third waited until its timeout"
    wait_until_idle(tangle)
    assert tangle.rows("RETURN 1") == [[1]]


def test_many_small_queries_at_once(people: Served):
    with ThreadPoolExecutor(20) as pool:
        found = [*pool.map(lambda number: people.rows("RETURN $n AS n", parameters={"n": number}), range(200))]

    assert found == [[[number]] for number in range(200)]


@pytest.mark.more
def test_a_large_result_is_streamed_and_its_memory_is_freed(tangle: Served):
    """Rows come in several batches; a reader that stops early leaves nothing behind."""
    cypher = "MATCH (a:N)-[:E]->(b:N)-[:E]->(c:N) RETURN a.id, b.id, c.id"
    with tangle.http.stream(
        "POST", "/query", json={"query": cypher, "max_rows": 1_000_000}, headers={"Accept": ARROW}
    ) as answer:
        reader = pa.ipc.open_stream(io.BufferedReader(Reader(answer)))
        first = reader.read_next_batch()
        rest = sum(batch.num_rows for batch in reader)
    with tangle.http.stream(
        "POST", "/query", json={"query": cypher, "max_rows": 1_000_000}, headers={"Accept": ARROW}
    ) as stopped:
        next(stopped.iter_bytes(1000))

    assert 0 < first.num_rows < 100_000
    assert first.num_rows + rest == 1_000_000
    wait_until_idle(tangle)
    assert tangle.query(cypher, accept=ARROW, max_rows=1_000_000).status_code == 200, "the budget was given back"


def test_queries_are_counted(people: Served):
    people.rows("RETURN 1")
    people.query("MATCH (n:Nope) RETURN n")

    text = people.http.get("/metrics").text
    assert 'graph_queries_total{outcome="ok"}' in text
    assert 'graph_queries_total{outcome="QUERY_INVALID"}' in text
    assert "graph_nodes 7.0" in text
    assert "graph_edges 7.0" in text


@pytest.mark.more
def test_it_ends_in_order_while_a_query_runs(tmp_path: Path):
    with graph_server(ring(tmp_path / "files", 3000, more=20), tmp_path / "server") as served:
        assert served.until_loaded()["phase"] == "ready", served.log()
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(served.query, ENDLESS, timeout_ms=600_000)
            wait_until(lambda: served.status()["queries_running"] == 1)
            served.process.terminate()
            code = served.process.wait()
            asked.exception()

    assert code == 0, served.log()
    assert "Traceback" not in served.log()
    assert not list((tmp_path / "server" / "data").glob("graph-*")), "the database is removed"


def begun(served: Served, timeout_ms: int) -> HTTPConnection:
    """A query whose answer nobody waits for yet."""
    http = HTTPConnection(served.url.removeprefix("http://"), timeout=120)
    body = json.dumps({"query": LASTING, "timeout_ms": timeout_ms})
    http.request("POST", "/query", body, {"Authorization": served.http.headers["Authorization"]})
    return http


class Reader(io.RawIOBase):
    """The body of a response as a file."""

    def __init__(self, answer: httpx2.Response) -> None:
        self._parts, self._left = answer.iter_bytes(65_536), b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:
        if not self._left:
            self._left = next(self._parts, b"")
        count = min(len(buffer), len(self._left))
        buffer[:count], self._left = self._left[:count], self._left[count:]
        return count


def wait_until(condition: object) -> None:
    deadline = time.monotonic() + 60
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def wait_until_idle(served: Served) -> None:
    wait_until(lambda: served.status()["queries_running"] == 0)
