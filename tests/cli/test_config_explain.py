"""`holdfast config explain`: each value with its origin, and what is set and not read."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from running import Run

DOCUMENTS = {
    # 000
    "GRAPH_OLAP_RECONCILIATION_JOB_INTERVAL_SECONDS": ("300", "HOLDFAST_RECONCILIATION_JOB_INTERVAL_SECONDS", 300.0),
    "GRAPH_OLAP_LIFECYCLE_JOB_INTERVAL_SECONDS": ("300", "HOLDFAST_LIFECYCLE_JOB_INTERVAL_SECONDS", 300.0),
    "GRAPH_OLAP_EXPORT_RECONCILIATION_JOB_INTERVAL_SECONDS": ("5", "HOLDFAST_EXPORT_RECONCILIATION_JOB_INTERVAL_SECONDS", 5.0),
    "GRAPH_OLAP_SCHEMA_CACHE_JOB_INTERVAL_SECONDS": ("86400", "HOLDFAST_SCHEMA_CACHE_JOB_INTERVAL_SECONDS", 86400.0),
    # 002
    "STARBURST_URL": ("https://starburst.example.com", "HOLDFAST_TRINO_URL", "https://starburst.example.com"),
    "STARBURST_USER": ("export-worker", "HOLDFAST_TRINO_USER", "export-worker"),
    "STARBURST_PASSWORD": ("secret-canary", "HOLDFAST_TRINO_PASSWORD", "•••"),
    "STARBURST_CLIENT_TAGS": ("graph-olap-export", "HOLDFAST_TRINO_CLIENT_TAGS", "graph-olap-export"),
    "STARBURST_SOURCE": ("graph-olap-export-worker", "HOLDFAST_TRINO_SOURCE", "graph-olap-export-worker"),
    "CONTROL_PLANE_URL": ("http://control-plane:8080", "HOLDFAST_API_URL", "http://control-plane:8080"),
    "EMPTY_POLL_BACKOFF": ("10", "HOLDFAST_POLL_SECONDS", 10.0),
    "LOG_LEVEL": ("INFO", "HOLDFAST_LOG_LEVEL", "INFO"),
    "DIRECT_EXPORT": ("true", "HOLDFAST_DIRECT_EXPORT", True),
    # 003
    "STALE_JOB_TIMEOUT_MINUTES": ("30", "HOLDFAST_STALE_JOB_TIMEOUT_MINUTES", 30.0),
    "RUN_BACKGROUND_POLLER": ("true", "HOLDFAST_RUN_BACKGROUND_POLLER", True),
}
WITHOUT_EFFECT = {"GCP_PROJECT": "my-project"}


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("HOLDFAST_") and name != "HOLDFAST_CONFIG_DIR"]:
        monkeypatch.delenv(name)
    for name in (*DOCUMENTS, *WITHOUT_EFFECT):
        monkeypatch.delenv(name, raising=False)


def explained(run: Run, *words: str) -> dict[str, Any]:
    done = run("config", "explain", *words, "--json")
    assert done.code == 0, done.err
    return {row["variable"]: (row["value"], row["origin"]) for row in json.loads(done.out)}


def test_g_04_every_variable_of_the_documents_is_accepted_and_mapped(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """G-04, G-01: with the names switched on; what has no effect is said so with the reason."""
    monkeypatch.setenv("HOLDFAST_COMPATIBILITY_NAMES", "true")
    for name, value in {**{name: said for name, (said, _, _) in DOCUMENTS.items()}, **WITHOUT_EFFECT}.items():
        monkeypatch.setenv(name, value)

    found = explained(run)

    for name, (_, setting, value) in DOCUMENTS.items():
        assert found[setting] == (value, name)
    assert found["HOLDFAST_LEASE_SECONDS"] == (1800.0, "STALE_JOB_TIMEOUT_MINUTES"), "the value that counts"
    assert found["GCP_PROJECT"] == (None, "no effect: the credentials of Google Cloud name the project")
    monkeypatch.delenv("EMPTY_POLL_BACKOFF")
    monkeypatch.setenv("POLL_INTERVAL_SECONDS", "5")
    assert explained(run)["HOLDFAST_POLL_SECONDS"] == (5.0, "POLL_INTERVAL_SECONDS")
    assert "secret-canary" not in json.dumps(found)


def test_a_name_that_is_not_switched_on_or_misspelled_is_pointed_out(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STARBURST_URL", "https://starburst.example.com")
    monkeypatch.setenv("HOLDFAST_LEASE_SECOND", "60")

    found = explained(run)

    assert found["STARBURST_URL"] == (None, "not read: set HOLDFAST_COMPATIBILITY_NAMES=true")
    assert found["HOLDFAST_TRINO_URL"] == (None, "default")
    assert found["HOLDFAST_LEASE_SECOND"] == (None, "not read: there is no such setting")


def test_an_own_name_a_preset_and_a_default_are_told_apart(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """G-03: the preset's interval is shown with its name, and a setting of the loop counts more."""
    monkeypatch.setenv("HOLDFAST_JOB_INTERVAL_PRESET", "conservative")
    monkeypatch.setenv("HOLDFAST_TERMINATION_GRACE_SECONDS", "300")
    monkeypatch.setenv("AWS_REGION", "eu-central-2")

    found = explained(run)
    assert found["HOLDFAST_LIFECYCLE_JOB_INTERVAL_SECONDS"] == (600.0, "preset conservative")
    assert found["HOLDFAST_GRACE_SECONDS"] == (295.0, "HOLDFAST_TERMINATION_GRACE_SECONDS")
    assert found["HOLDFAST_S3_REGION"] == ("eu-central-2", "AWS_REGION")
    assert found["HOLDFAST_BEAT_SECONDS"] == (5.0, "default")

    monkeypatch.setenv("HOLDFAST_LIFECYCLE_JOB_INTERVAL_SECONDS", "120")
    assert explained(run)["HOLDFAST_LIFECYCLE_JOB_INTERVAL_SECONDS"] == (120.0, "HOLDFAST_LIFECYCLE_JOB_INTERVAL_SECONDS")


def test_only_what_is_asked_for_is_shown(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_TRINO_USER", "ada")

    assert set(explained(run, "--changed", "trino")) == {"HOLDFAST_TRINO_USER"}
    assert set(explained(run, "beat", "lease_s")) == {"HOLDFAST_BEAT_SECONDS", "HOLDFAST_LEASE_SECONDS"}


def test_g_07_the_lease_and_heartbeat_of_the_document_are_accepted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """G-07"""
    monkeypatch.setenv("HOLDFAST_LEASE_SECONDS", "1800")
    monkeypatch.setenv("HOLDFAST_BEAT_SECONDS", "60")

    found = explained(run, "lease_seconds", "beat")

    assert found == {
        "HOLDFAST_BEAT_SECONDS": (60.0, "HOLDFAST_BEAT_SECONDS"),
        "HOLDFAST_LEASE_SECONDS": (1800.0, "HOLDFAST_LEASE_SECONDS"),
    }


def test_a_value_out_of_range_is_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_BEAT_SECONDS", "-1")

    done = run("config", "explain")

    assert done.code != 0
    assert "HOLDFAST_BEAT_SECONDS=-1 is not valid: it must be greater than 0" in done.err
