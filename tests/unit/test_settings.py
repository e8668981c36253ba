"""Names that the documents use are accepted beside our own."""

from __future__ import annotations

import os

import pytest

from holdfast.settings import Settings


def test_g_06_a_lease_is_said_in_minutes_by_the_documents_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """G-06 with RUN_BACKGROUND_POLLER, which has tests of its own; ours counts more where both are set."""
    assert Settings().lease == 30
    monkeypatch.setenv("STALE_JOB_TIMEOUT_MINUTES", "30")
    assert Settings().lease == 1800
    monkeypatch.setenv("HOLDFAST_LEASE_SECONDS", "45")
    assert Settings().lease == 45


def test_g_04_a_worker_is_set_up_by_the_names_of_its_document(monkeypatch: pytest.MonkeyPatch) -> None:
    """G-04 by every name; two of them are accepted and do nothing, and the reference says so."""
    for name in [name for name in os.environ if name.startswith(("HOLDFAST_", "STARBURST_"))]:
        monkeypatch.delenv(name)
    bare = Settings()
    assert (bare.poll_seconds, bare.direct_export, bare.log_level) == (10, True, "INFO")
    assert (bare.trino_client_tags, bare.trino_source) == ("graph-olap-export", "graph-olap-export-worker")

    said = {
        "GCP_PROJECT": ("gcp_project", "p"),
        "STARBURST_URL": ("trino_url", "https://trino"),
        "STARBURST_USER": ("trino_user", "u"),
        "STARBURST_CLIENT_TAGS": ("trino_client_tags", "a,b"),
        "STARBURST_SOURCE": ("trino_source", "s"),
        "CONTROL_PLANE_URL": ("api_url", "https://plane"),
        "POLL_INTERVAL_SECONDS": ("poll_interval_seconds", 5.0),
        "EMPTY_POLL_BACKOFF": ("poll_seconds", 7.0),
        "LOG_LEVEL": ("log_level", "DEBUG"),
        "DIRECT_EXPORT": ("direct_export", False),
    }
    for name, (_, value) in said.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("STARBURST_PASSWORD", "secret")
    found = Settings()
    assert {name: getattr(found, field) for name, (field, _) in said.items()} == {
        name: want for name, (_, want) in said.items()
    }
    assert found.trino_password is not None
    assert found.trino_password.get_secret_value() == "secret"
    for field in ("gcp_project", "poll_interval_seconds"):
        assert "without a meaning here" in (Settings.model_fields[field].description or "")

    monkeypatch.setenv("HOLDFAST_API_URL", "https://ours")
    assert Settings().api_url == "https://ours", "our own name counts more"
