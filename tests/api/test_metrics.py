"""What Prometheus can scrape: every name has its line, every line its name, and a scrape is cheap."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import httpx2
import pytest
import structlog
from prometheus_client.parser import text_string_to_metric_families

import holdfast.services.graphs.measures
import holdfast.worker.loop  # noqa: F401 - everything that counts is loaded with these
from api_factories import GENEROUS
from factories import add, end, hold, silence, submit
from holdfast.api.plane import ApiOptions
from holdfast.jobs.model import Lock
from holdfast.telemetry.names import METRICS, PLANE_METRICS

Client = httpx2.AsyncClient


def samples(text: str) -> dict[tuple[str, ...], float]:
    """All but the buckets of histograms: tests that ran before left ten thousand of them in the registry of this process."""
    lines = "".join(line for line in text.splitlines(keepends=True) if "_bucket{" not in line)
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(lines)
        for sample in family.samples
    }


async def test_v_06_metrics_page_lists_exactly_the_exported_metrics(viewer: Client) -> None:
    """V-06, P-08"""
    answer = await viewer.get("/metrics")

    assert answer.headers["Content-Type"].startswith("text/plain")
    read = [*text_string_to_metric_families(answer.text)]
    families = {family.name.removesuffix("_total"): family.documentation for family in read}
    named = {name.removesuffix("_total"): says for name, says in (METRICS | PLANE_METRICS).items()}
    since_when = {f"{name}_created" for name in named}  # added by the library to what has been counted in this process
    assert {name: says for name, says in families.items() if name not in since_when} == named


async def test_requests_are_counted_and_timed_by_route_template_method_and_status(viewer: Client, anyone: Client) -> None:
    """V-06: latency, traffic and errors of the HTTP API; a caller's path or method never becomes a series."""
    before = samples((await viewer.get("/metrics")).text)
    await viewer.get("/api/jobs/4711")
    await viewer.get("/api/jobs/4712")
    await anyone.get("/api/jobs/4711")
    await viewer.get("/no/such/page")
    await viewer.request("BREW", "/no/such/pot")

    after = samples((await viewer.get("/metrics")).text)
    grown = {key: value - before.get(key, 0) for key, value in after.items() if key[0] == "holdfast_http_requests_total"}

    assert grown["holdfast_http_requests_total", "GET", "/api/jobs/{job_id}", "404"] == 2
    assert grown["holdfast_http_requests_total", "GET", "/api/jobs/{job_id}", "401"] == 1
    assert grown["holdfast_http_requests_total", "GET", "none", "404"] == 1
    assert [key[2] for key in grown if key[1] == "other"] == ["none"]
    timed = ("holdfast_http_request_duration_seconds_count", "GET", "/api/jobs/{job_id}", "404")
    assert after[timed] - before.get(timed, 0) == 2


async def test_client_that_disconnects_in_the_body_is_logged_once_without_error(
    app: Any, ops: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[dict[str, Any]] = []

    def keep(_: Any, level: str, event: dict[str, Any]) -> str:
        said.append({**event, "level": level})
        raise structlog.DropEvent

    recorder = structlog.wrap_logger(None, processors=[keep], wrapper_class=structlog.BoundLogger)
    monkeypatch.setattr("holdfast.api.edge.log", recorder)
    messages = [{"type": "http.request", "body": b'{"kind"', "more_body": True}, {"type": "http.disconnect"}]

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        raise AssertionError(f"there is nobody to answer: {message}")

    headers = [(b"authorization", ops.headers["Authorization"].encode()), (b"content-type", b"application/json")]
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/api/jobs",
        "raw_path": b"/api/jobs",
        "query_string": b"",
        "headers": headers,
        "scheme": "http",
        "server": ("plane", 80),
        "client": ("1.2.3.4", 1),
        "http_version": "1.1",
    }
    await app(scope, receive, send)

    assert [(line["event"], line["level"], line["status"]) for line in said] == [("http_request", "info", 499)]


async def test_metrics_match_the_database(viewer: Client, conn: Any) -> None:
    await add(conn, "waits")
    await conn.execute("UPDATE holdfast.jobs SET created_at = created_at - interval '100 s'")
    silent = await hold(conn, "silent", locks=(Lock("a"),))
    await silence(conn, silent)
    asked = await hold(conn, "asked")
    await submit(conn, asked, poll_after=timedelta(0))
    await conn.execute("UPDATE holdfast.jobs SET next_poll_at = clock_timestamp() - interval '50 s' WHERE state = 'submitted'")
    await end(conn, await hold(conn, "done"))

    found = samples((await viewer.get("/metrics")).text)

    assert found["holdfast_jobs", "pending"] == 1
    assert found["holdfast_jobs", "completed"] == 1
    assert found["holdfast_demand", "waiting"] == found["holdfast_demand", "to_poll"] == found["holdfast_demand", "stale"] == 1
    assert found["holdfast_stale_leases",] == 1
    assert found["holdfast_locks_held",] == 1
    assert found["holdfast_poll_lag_seconds",] >= 50
    assert found["holdfast_oldest_pending_seconds", "waits"] >= 100
    assert found["holdfast_job_run_seconds", "done", "0.95"] >= 0
    assert found["holdfast_job_wait_seconds", "done", "0.5"] >= 0
    assert found["holdfast_workers", "remote", "1"] == 2
    assert found["holdfast_table_bytes", "jobs"] > 0
    assert found["holdfast_pool_connections", "open"] >= 1
    assert found["holdfast_build_info", "test"] == 1


async def test_pool_metrics_have_the_documented_names(app: Any, viewer: Client) -> None:
    """R-13, V-06: saturation of the pool."""
    async with app.state.plane.pool.connection():
        found = samples((await viewer.get("/metrics")).text)

    by_state = {key[1]: value for key, value in found.items() if key[0] == "graph_olap_database_connections"}
    assert set(by_state) == {"available", "in_use", "total"}
    assert by_state["in_use"] >= 1
    assert by_state["available"] + by_state["in_use"] == by_state["total"]


async def test_scrapes_within_seconds_query_once(app: Any, viewer: Client, conn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.api.metrics.GOOD_FOR", 3600.0)
    await viewer.get("/metrics")
    await add(conn)
    again = samples((await viewer.get("/metrics")).text)
    app.state.plane.gauges._read_at -= 3601
    later = samples((await viewer.get("/metrics")).text)

    assert (again["holdfast_jobs", "pending"], later["holdfast_jobs", "pending"]) == (0, 1)


async def test_q_04_autoscaler_role_reads_only_its_number(as_role: Any, conn: Any) -> None:
    """Q-04: KEDA needs no database; the number counts what is due, what is to be polled and what was left behind."""
    keda = await as_role("autoscaler")
    await add(conn)
    await add(conn, run_after=timedelta(hours=1))
    await add(conn, queue="other")
    await silence(conn, await hold(conn))

    depth = (await keda.get("/api/stats/queue-depth", params={"queue": "default"})).json()["data"]
    assert depth == {"value": 2, "backlog": 2, "waiting": 1, "due": 0, "to_poll": 0, "stale": 1, "running": 1}
    assert (await keda.get("/api/stats/queue-depth")).json()["data"]["value"] == 3
    assert (await keda.get("/api/jobs")).status_code == 403


async def test_single_running_job_is_demand(as_role: Any, conn: Any) -> None:
    """E-03: with a demand of 0 KEDA would stop the worker, the job would be released, and KEDA would start it again."""
    keda, viewer = await as_role("autoscaler"), await as_role("viewer")
    await hold(conn)

    depth = (await keda.get("/api/stats/queue-depth")).json()["data"]
    shown = samples((await viewer.get("/metrics")).text)

    assert (depth["value"], depth["backlog"], depth["running"]) == (1, 0, 1)
    assert sum(value for key, value in shown.items() if key[0] == "holdfast_demand") == 1


async def test_a_job_of_a_silent_worker_is_counted_once(as_role: Any, conn: Any) -> None:
    """E-03"""
    keda, viewer = await as_role("autoscaler"), await as_role("viewer")
    await silence(conn, await hold(conn))

    depth = (await keda.get("/api/stats/queue-depth")).json()["data"]
    shown = samples((await viewer.get("/metrics")).text)

    assert (depth["value"], depth["backlog"], depth["running"], depth["stale"]) == (1, 1, 1, 1)
    assert sum(value for key, value in shown.items() if key[0] == "holdfast_demand") == 1


async def test_api_returns_the_same_demand_by_kind(as_role: Any, conn: Any) -> None:
    keda = await as_role("autoscaler")
    await add(conn, "exports.run")
    await hold(conn, "maintenance.run")

    async def value(kind: str) -> tuple[int, int]:
        found: httpx2.Response = await keda.get("/api/stats/queue-depth", params={"kind": kind})
        return found.json()["data"]["value"], found.json()["data"]["backlog"]

    assert (await value("exports.*"), await value("maintenance.*")) == ((1, 1), (1, 0))


class TestOpen:
    @pytest.fixture
    def options(self) -> ApiOptions:
        return replace(GENEROUS, metrics_open=True, docs_open=True)

    async def test_metrics_and_documentation_need_a_token_unless_public(self, anyone: Client) -> None:
        assert (await anyone.get("/metrics")).status_code == 200
        assert (await anyone.get("/docs")).status_code == 200
        assert (await anyone.get("/openapi.json")).status_code == 200
        assert (await anyone.get("/api/jobs")).status_code == 401


class TestWithoutTheDatabase:
    @pytest.fixture
    def options(self) -> ApiOptions:
        return replace(GENEROUS, metrics_open=True)

    async def test_process_metrics_are_exported(
        self, anyone: Client, conn: Any, app: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The scrape during an outage is the one that somebody will look at."""
        await add(conn)
        monkeypatch.setattr("holdfast.api.metrics.GOOD_FOR", 0.0)
        monkeypatch.setattr("holdfast.api.metrics.PATIENCE", 0.1)
        before = samples((await anyone.get("/metrics")).text)
        pool = app.state.plane.pool
        taken = [await pool.getconn() for _ in range(pool.max_size)]

        answer = await anyone.get("/metrics")

        during = samples(answer.text)
        assert (before["holdfast_database_reachable",], during["holdfast_database_reachable",]) == (1, 0)
        assert during["holdfast_build_info", "test"] == 1
        assert ("holdfast_jobs", "pending") in before
        assert ("holdfast_jobs", "pending") not in during, "no figure rather than an old one"
        for one in taken:
            await pool.putconn(one)
        assert samples((await anyone.get("/metrics")).text)["holdfast_jobs", "pending"] == 1
