"""Dashboards: generated, named in the registry, and every panel has data in a real Prometheus that scraped a real run."""

from __future__ import annotations

import json
import math
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest
import yaml

import programs
from databases import cloned, new_database
from deploy_paths import DEPLOY
from holdfast.telemetry.names import METRICS, PLANE_METRICS
from prometheus_tools import Prometheus, program, prometheus
from serving import Served, serving

sys.path.insert(0, str(DEPLOY))

import generate_monitoring as generate
from monitoring import dashboards
from monitoring.panels import Panel, metrics_of

PATIENCE = 120.0
SERVICES = generate.services()
SHOWN = [one for one in dashboards.ALL if one.service is None or one.service in SERVICES]
MAPPING = {
    "name": "numbers",
    "engine": "duckdb",
    "nodes": [{"label": "N", "sql": "SELECT 1 AS id", "primary_key": {"name": "id", "type": "INT64"}, "properties": []}],
    "edges": [],
}
EXPIRED = "UPDATE holdfast.snapshots SET ttl = 'PT1H', created_at = created_at - interval '2 hours'"
DUE = "UPDATE holdfast.loops SET next_due_at = clock_timestamp()"
NOT_RUN = "SELECT count(*) FROM holdfast.loops WHERE last_success_at IS NULL"
WAITING = "SELECT count(*) FROM holdfast.jobs WHERE kind <> 'shown.nobody' AND finished_at IS NULL"


def test_the_generated_files_are_current() -> None:
    stale = [path.name for path, text in generate.files().items() if not path.exists() or path.read_text() != text]

    assert stale == [], "run `python deploy/generate_monitoring.py`"


@pytest.mark.parametrize("dashboard", SHOWN, ids=lambda one: one.uid)
def test_a_dashboard_names_only_metrics_that_exist(dashboard: Any) -> None:
    """E-22"""
    known = {f"{name}{suffix}" for name in (*METRICS, *PLANE_METRICS) for suffix in ("", "_bucket", "_sum", "_count")}
    named = {name for panel in dashboard.panels(SERVICES) for one in panel.queries for name in metrics_of(one.expr)}

    assert named
    assert named - known == set()


def test_dashboards_have_unique_ids_and_a_data_source_that_can_be_chosen() -> None:
    made = [json.loads(path.read_text()) for path in (DEPLOY / "dashboards").glob("*.json")]

    assert len({one["uid"] for one in made}) == len(made) >= 6
    for one in made:
        assert one["templating"]["list"][0]["type"] == "datasource"
        placed = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in one["panels"]]
        assert len(set(placed)) == len(placed)
        assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in one["panels"])


# By the uid of a dashboard: the metrics of each of its documented panels.
DOCUMENTED: dict[str, dict[str, set[str]]] = {
    "holdfast-background-jobs": {
        "Executions per minute": {"background_job_execution_total"},
        "Success": {"background_job_execution_total"},
        "Duration": {"background_job_execution_duration_seconds_bucket"},
        "Errors per minute": {"background_job_execution_total"},
    },
    "holdfast-reconciliation": {
        "Orphaned pods": {"orphaned_pods_detected_total", "orphaned_pods_cleaned_total", "orphaned_pods_detected_current"},
        "Missing pods": {"missing_pods_detected_total", "missing_pods_handled_total"},
        "Status drift": {"status_drift_detected_total", "status_drift_fixed_total"},
        "Instances without a pod name": {"instances_without_pod_name"},
        "Removals that fail": {"orphaned_pods_cleanup_failures_total", "orphaned_pods_cleaned_total"},
    },
    "holdfast-lifecycle": {
        "TTL": {"ttl_snapshots_deleted_total", "ttl_mappings_deleted_total"},
        "TTL of instances": {"ttl_instances_terminated_total"},
        "Inactivity": {"inactive_snapshots_deleted_total", "inactive_mappings_deleted_total"},
        "Inactivity of instances": {"inactive_instances_terminated_total"},
        "Enforcement lag": {"lifecycle_enforcement_lag_seconds_bucket"},
    },
    "holdfast-export-reconciliation": {
        "Stale claims": {"stale_export_claims_detected_total", "stale_export_claims_reset_total"},
        "Finalised": {
            "snapshots_ready_to_finalize_total",
            "snapshots_finalized_total",
            "snapshots_finalization_failures_total",
        },
        "Finalisation lag": {"snapshot_finalization_lag_seconds"},
    },
}


def panels_of(uid: str) -> dict[str, Panel]:
    found = next(one for one in dashboards.ALL if one.uid == uid)
    return {panel.title: panel for row in found.rows.values() for panel in row}


@pytest.mark.parametrize("uid", DOCUMENTED)
def test_the_documented_dashboards_have_their_panels(uid: str) -> None:
    """V-07, V-08, V-09, V-10"""
    found = panels_of(uid)

    assert {
        title: {name for one in found[title].queries for name in metrics_of(one.expr)} for title in DOCUMENTED[uid]
    } == DOCUMENTED[uid]


def test_the_overview_of_loops_has_shares_quantiles_and_errors_by_job() -> None:
    """V-07: per minute, success as a percentage, p50, p95 and p99, and errors by job; V-08: the share of removals that fail."""
    found = panels_of("holdfast-background-jobs")
    (runs,), (success,), (errors,) = (
        found[title].queries for title in ("Executions per minute", "Success", "Errors per minute")
    )
    quantiles = [
        re.findall(r"^histogram_quantile\((.+?), sum by \(job_name, le\)", one.expr) for one in found["Duration"].queries
    ]

    by_job = "sum by (job_name) (rate(background_job_execution_total{}[$__rate_interval]))"
    assert runs.expr == "60 * " + by_job.replace("{}", "")
    assert success.expr == by_job.replace("{}", '{status="success"}') + " / " + by_job.replace("{}", "")
    assert errors.expr == "60 * " + by_job.replace("{}", '{status="failed"}')
    assert quantiles == [["0.5"], ["0.95"], ["0.99"]]
    assert found["Success"].unit == panels_of("holdfast-reconciliation")["Removals that fail"].unit == "percentunit"


# ---------------------------------------------------------------------------------------------------------------------
# A real run
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def scraped(server: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A control plane with its loops and a worker, scraped while jobs, exports and deletions happen, twice."""
    program("prometheus")
    folder = tmp_path_factory.mktemp("dashboards")
    environment = {
        "HOLDFAST_METRICS_OPEN": "true",
        "HOLDFAST_SNAPSHOTS_TO": str(folder / "snapshots"),
        "HOLDFAST_SCHEDULER_LOOK_SECONDS": "0.2",
        "HOLDFAST_BEAT_SECONDS": "0.5",
        "PYTHONPATH": str(Path(__file__).parent),
    }
    with new_database(server, cloned(template)) as database, serving(database, folder, **environment) as served:
        log = folder / "worker.log"
        with log.open("w") as out:
            words = ("worker", "run", "--dsn", database, "--http", "0", "--log-format", "json", "--import", "dashboard_jobs")
            services = ("--import", "holdfast.services.exports.kinds")
            worker = programs.start(*words, *services, env=os.environ | environment, folder=folder, out=out, err=out)
        try:
            _until(lambda: "probe_listening" in log.read_text(), log)
            targets = [served.url.removeprefix("http://"), re.search(r"http://([\d.]+:\d+)", log.read_text()).group(1)]  # type: ignore[union-attr]
            with prometheus(folder / "prometheus", targets) as running, psycopg.connect(database, autocommit=True) as conn:
                running.wait_for_scrapes(2)
                for _ in range(2):
                    _work(served, conn, folder)
                    running.wait_for_scrapes(2)
                yield running
        finally:
            worker.terminate()
            worker.wait(PATIENCE)


def _work(served: Served, conn: psycopg.Connection[Any], folder: Path) -> None:
    """Something of everything: jobs that work and fail, an export, its snapshot that expires, a job that no worker takes."""
    headers = {"Authorization": f"Bearer {served.token}"}
    with httpx2.Client(base_url=served.url, headers=headers, timeout=PATIENCE, trust_env=False) as ops:
        mapping = (
            ops.post("/api/mappings", json=MAPPING | {"name": f"numbers {time.monotonic_ns()}"})
            .raise_for_status()
            .json()["data"]
        )
        ops.post("/api/snapshots", json={"mapping_id": mapping["id"]}).raise_for_status()
        for kind in ("shown.works", "shown.fails"):
            ops.post("/api/jobs", json={"kind": kind, "payload": {}}).raise_for_status()
        conn.execute("INSERT INTO holdfast.jobs (kind) VALUES ('shown.nobody')")
        _until(lambda: conn.execute(WAITING).fetchone() == (0,), folder / "worker.log")
        conn.execute(EXPIRED)
        conn.execute(DUE)
        _until(lambda: conn.execute(NOT_RUN).fetchone() == (0,), served.log)
        _until(lambda: conn.execute("SELECT count(*) FROM holdfast.snapshots").fetchone() == (0,), served.log)


def _until(true: Any, log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline, "\n".join(
            line for line in log.read_text().splitlines() if "http_request" not in line
        )
        time.sleep(0.1)


@pytest.mark.more
@pytest.mark.processes
def test_no_panel_is_empty_after_a_real_run(scraped: Prometheus) -> None:
    """V-07, V-09, V-10: a panel that is rare may be empty, and then shows 0."""
    empty: list[str] = []
    for dashboard in SHOWN:
        for panel in dashboard.panels(SERVICES):
            empty += [f"{dashboard.uid}: {panel.title}: {one}" for one in _without_data(scraped, panel)]

    assert empty == []


def _without_data(running: Prometheus, panel: Panel) -> Iterator[str]:
    for one in panel.queries:
        expr = one.expr.replace("$__rate_interval", "2m") + (" or vector(0)" if panel.rare else "")
        found = running.query(expr)
        if not any(math.isfinite(float(series["value"][1])) for series in found):
            yield expr
        for label in re.findall(r"{{(\w+)}}", one.legend):
            if found and not panel.rare and not all(label in series["metric"] for series in found):
                yield f"the legend's label {label} is not in {expr}"


@pytest.mark.processes
def test_every_alert_can_be_evaluated_and_a_healthy_run_raises_none(scraped: Prometheus) -> None:
    """The rules on the metrics that real programs serve: only the job that no worker takes is an alert."""
    raised = {}
    for path in generate.rule_files():
        for rule in (rule for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]):
            raised[rule["alert"]] = [series["metric"] for series in scraped.query(rule["expr"])]

    assert raised.pop("NoWorkerForKind") == [{"kind": "shown.nobody"}]
    assert {alert: series for alert, series in raised.items() if series} == {}
