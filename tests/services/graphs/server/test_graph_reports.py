"""Reports of a graph server to the control plane, and the plan that it fetches: with a small HTTP server in the test."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from graph_servers import SECRET, TOKEN, graph_server, social

pytestmark = pytest.mark.processes


class Plane(http.server.ThreadingHTTPServer):
    """A control plane that keeps reports and answers as it is told."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.reports: list[dict[str, Any]] = []
        self.headers: list[str] = []
        self.status, self.wanted, self.failures = 200, True, 0
        self.plan: dict[str, Any] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/api/instances/7"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Plane

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.headers.append(f"{self.path} {self.headers['Authorization']}")
        status = self.server.status  # read once: the test may change it meanwhile
        if status == 200:
            self.server.reports.append(body)
        else:
            self.server.failures += 1
        self.answer(status, {"data": {"wanted": self.server.wanted}})

    def do_GET(self) -> None:
        self.server.headers.append(f"{self.path} {self.headers['Authorization']}")
        self.answer(self.server.status, self.server.plan)

    def answer(self, status: int, body: Any) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def plane() -> Iterator[Plane]:
    made = Plane()
    thread = threading.Thread(target=made.serve_forever, args=(0.01,))
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def until(condition: Any) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.more
def test_queries_are_reported_in_batches_and_none_is_lost(plane: Plane, tmp_path: Path):
    """Every query counts as activity, also those of a time in which the control plane did not answer; none counts twice."""
    own = {"HOLDFAST_GRAPH_CALLBACK_URL": plane.url, "HOLDFAST_GRAPH_REPORT_SECONDS": "0.1"}
    with graph_server(social(tmp_path / "files"), tmp_path / "server", **own) as served:
        assert served.until_loaded()["phase"] == "ready", served.log()
        for _ in range(10):
            served.rows("RETURN 1")
        until(lambda: sum(one["queries"] for one in plane.reports) == 10)
        plane.status = 503
        for _ in range(5):
            served.rows("RETURN 1")
        until(lambda: plane.failures >= 2)
        plane.status = 200
        until(lambda: sum(one["queries"] for one in plane.reports) == 15)
        count = len(plane.reports)
        until(lambda: len(plane.reports) > count + 2)

    assert sum(one["queries"] for one in plane.reports) == 15
    assert set(plane.headers) == {f"/api/instances/7/report Bearer {SECRET}"}
    last = plane.reports[-1]
    assert last["start_token"] == TOKEN
    assert last["pod_name"].startswith("pid "), "I-06: the name for the control plane, as the server knows it"
    assert last["progress"]["share"] == 1.0
    assert last["memory_bytes"] > 10_000_000
    assert last["disk_bytes"] > 0
    assert SECRET not in served.log()


@pytest.mark.more
def test_a_graph_server_that_is_not_wanted_ends(plane: Plane, tmp_path: Path):
    own = {"HOLDFAST_GRAPH_CALLBACK_URL": plane.url, "HOLDFAST_GRAPH_REPORT_SECONDS": "0.1"}
    with graph_server(social(tmp_path / "files"), tmp_path / "server", **own) as served:
        served.until_loaded()
        plane.wanted = False

        assert served.process.wait() == 0

    assert "graph_server_not_wanted" in served.log()


def test_a_plan_is_fetched_with_the_secret(plane: Plane, tmp_path: Path):
    plane.plan = social(tmp_path / "files")

    with graph_server(None, tmp_path / "server", HOLDFAST_GRAPH_PLAN_URL=f"{plane.url}/plan") as served:
        assert served.until_loaded()["phase"] == "ready", served.log()

    assert plane.headers == [f"/api/instances/7/plan Bearer {SECRET}"]


def test_a_plan_that_is_refused_fails_the_load(plane: Plane, tmp_path: Path):
    plane.status = 403

    with graph_server(None, tmp_path / "server", HOLDFAST_GRAPH_PLAN_URL=f"{plane.url}/plan") as served:
        found = served.until_loaded()

    assert (found["error_code"], len(plane.headers)) == ("MAPPING_FETCH_ERROR", 1)
    assert "403" in found["error"]


def test_the_secret_is_not_sent_in_the_clear_to_other_machines(tmp_path: Path):
    with graph_server(None, tmp_path / "server", HOLDFAST_GRAPH_PLAN_URL="http://plane.example.com/plan") as served:
        found = served.until_loaded()

    assert found["error_code"] == "MAPPING_FETCH_ERROR"
    assert "HOLDFAST_PLAIN_HTTP" in found["error"]
