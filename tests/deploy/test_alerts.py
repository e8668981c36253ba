"""Alerts fire and stay silent as their texts say, name metrics that exist, and have a section in a runbook."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy_paths import DEPLOY, ROOT
from holdfast import catalog
from holdfast.telemetry.names import METRICS, PLANE_METRICS
from prometheus_tools import program

sys.path.insert(0, str(DEPLOY))

from generate_monitoring import rule_files
from monitoring.panels import metrics_of

FILES = sorted(path for path in (DEPLOY / "alerts").glob("*.yaml") if "groups" in yaml.safe_load(path.read_text()))
DOCUMENTED = {
    "BackgroundJobNotRunning": "15m",
    "BackgroundJobHighFailureRate": "10m",
    "HighOrphanedPodRate": "30m",
    "InstancesWithoutPodName": "15m",
}
THRESHOLDS = {"BackgroundJobHighFailureRate": "> 0.1", "HighOrphanedPodRate": "> 5", "InstancesWithoutPodName": "> 10"}


def rules(path: Path) -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]


RULES = [(path, rule) for path in FILES for rule in rules(path)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_alerts_fire_and_stay_silent(path: Path) -> None:
    """R-09, V-11, V-14, E-21: the unit tests beside the rules, run by promtool."""
    promtool = program("promtool")
    for words in (["check", "rules", str(path)], ["test", "rules", str(path.parent / "tests" / path.name)]):
        done = subprocess.run([promtool, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_alert_is_tested_for_firing_and_for_staying_silent(path: Path) -> None:
    tests = [
        case
        for test in yaml.safe_load((path.parent / "tests" / path.name).read_text())["tests"]
        for case in test["alert_rule_test"]
    ]
    fires = {case["alertname"] for case in tests if case["exp_alerts"]}
    silent = {case["alertname"] for case in tests if not case["exp_alerts"]}

    assert fires == silent == {rule["alert"] for rule in rules(path)}


def test_one_orphan_is_enough_for_an_alert() -> None:
    """R-09: also one that was removed between two looks at the metrics."""
    (rule,) = [rule for _, rule in RULES if rule["alert"] == "OrphanedPods"]

    assert rule["expr"] == "max(orphaned_pods_detected_current) > 0 or max(increase(orphaned_pods_detected_total[1h])) > 0"


def test_the_documented_alerts_are_there_with_their_times() -> None:
    """V-11: and their thresholds"""
    assert {rule["alert"]: rule["for"] for _, rule in RULES if rule["alert"] in DOCUMENTED} == DOCUMENTED
    ends = {rule["alert"]: rule["expr"].split()[-2:] for _, rule in RULES if rule["alert"] in THRESHOLDS}
    assert {name: " ".join(words) for name, words in ends.items()} == THRESHOLDS
    orphans = next(rule["expr"] for _, rule in RULES if rule["alert"] == "HighOrphanedPodRate")
    assert "increase(orphaned_pods_detected_total[1h])" in orphans, "by the hour"


@pytest.mark.parametrize(("path", "rule"), RULES, ids=[rule["alert"] for _, rule in RULES])
def test_an_alert_has_a_severity_a_summary_and_a_section_in_a_runbook(path: Path, rule: dict[str, Any]) -> None:
    page, _, heading = rule["annotations"]["runbook"].partition("#")
    headings = re.findall(r"^## (\w+)$", (ROOT / page).read_text(), re.M)

    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert rule["annotations"]["summary"]
    assert heading == rule["alert"].lower()
    assert rule["alert"] in headings


def test_the_runbooks_describe_no_alert_that_does_not_exist() -> None:
    pages = (ROOT / "docs/runbooks/alerts").glob("*.md")
    described = {name for page in pages for name in re.findall(r"^## (\w+)$", page.read_text(), re.M)}

    assert described == {rule["alert"] for _, rule in RULES}


def test_alerts_name_only_metrics_that_exist() -> None:
    """E-22: of the kernel and of the services that are registered."""
    known = {f"{name}{suffix}" for name in (*METRICS, *PLANE_METRICS) for suffix in ("", "_bucket", "_sum", "_count")}
    named = {(rule["alert"], name) for path in rule_files() for rule in rules(path) for name in metrics_of(rule["expr"])}

    assert len(named) > 20
    assert {(alert, name) for alert, name in named if name not in known} == set()


def test_every_service_has_its_rules() -> None:
    assert {service.name for service in catalog.SERVICES} <= {path.stem for path in FILES}
