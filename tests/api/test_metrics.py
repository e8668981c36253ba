"""What Prometheus can scrape: every name has its line, every line its name, and a scrape is cheap."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

import holdfast.worker.loop  # noqa: F401 - everything that counts is loaded with it
from api_factories import GENEROUS
from factories import add, end, hold, silence, submit
from holdfast.api.plane import ApiOptions
from holdfast.jobs.model import Lock
from holdfast.telemetry.names import METRICS, PLANE_METRICS

Client = httpx.AsyncClient


def samples(text: str) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_v_06_every_metric_has_its_line_and_every_line_its_metric(viewer: Client) -> None:
    """V-06, P-08"""
    answer = await viewer.get("/metrics")

    assert answer.headers["Content-Type"].startswith("text/plain")
    read = [*text_string_to_metric_families(answer.text)]
    families = {family.name.removesuffix("_total"): family.documentation for family in read}
    named = {name.removesuffix("_total"): says for name, says in (METRICS | PLANE_METRICS).items()}
    since_when = {f"{name}_created" for name in named}  # added by the library to what has been counted in this process
    assert {name: says for name, says in families.items() if name not in since_when} == named


async def test_the_figures_are_those_of_the_database(viewer: Client, conn: Any) -> None:
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
    assert found["holdfast_workers", "worker", "1"] == 2
    assert found["holdfast_table_bytes", "jobs"] > 0
    assert found["holdfast_pool_connections", "open"] >= 1
    assert found["holdfast_build_info", "test"] == 1


async def test_two_scrapes_in_a_moment_look_once(app: Any, viewer: Client, conn: Any) -> None:
    await viewer.get("/metrics")
    await add(conn)
    again = samples((await viewer.get("/metrics")).text)
    app.state.plane.gauges._read_at -= 6
    later = samples((await viewer.get("/metrics")).text)

    assert (again["holdfast_jobs", "pending"], later["holdfast_jobs", "pending"]) == (0, 1)


async def test_q_04_an_autoscaler_learns_its_number_and_nothing_else(as_role: Any, conn: Any) -> None:
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


async def test_a_lone_running_job_is_demand(as_role: Any, conn: Any) -> None:
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


class TestOpen:
    @pytest.fixture
    def options(self) -> ApiOptions:
        return replace(GENEROUS, metrics_open=True, docs_open=True)

    async def test_metrics_and_documentation_are_open_only_where_that_was_said(self, anyone: Client) -> None:
        assert (await anyone.get("/metrics")).status_code == 200
        assert (await anyone.get("/docs")).status_code == 200
        assert (await anyone.get("/openapi.json")).status_code == 200
        assert (await anyone.get("/api/jobs")).status_code == 401


class TestWithoutTheDatabase:
    @pytest.fixture
    def options(self) -> ApiOptions:
        return replace(GENEROUS, metrics_open=True)

    async def test_the_process_tells_of_itself(
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
