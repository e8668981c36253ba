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


@pytest.mark.parametrize("prefix", ["HOLDFAST", "GRAPH_OLAP"])
def test_presets_of_intervals_and_a_setting_that_counts_more(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """G-03: conservative 600/600, aggressive 60/300."""

    def seconds(preset: str) -> dict[str, float]:
        monkeypatch.setenv(f"{prefix}_JOB_INTERVAL_PRESET", preset)
        return {loop: every.total_seconds() for loop, every in Settings().intervals.items()}

    assert seconds("default") == {}
    assert seconds("conservative") == {"reconciliation": 600, "lifecycle": 600}
    assert seconds("aggressive") == {"reconciliation": 60, "lifecycle": 300}
    monkeypatch.setenv(f"{prefix}_LIFECYCLE_JOB_INTERVAL_SECONDS", "900")
    assert seconds("aggressive") == {"reconciliation": 60, "lifecycle": 900}


@pytest.mark.parametrize("loop", ["RECONCILIATION", "LIFECYCLE", "SCHEMA_CACHE", "RESOURCE_MONITOR"])
def test_a_loop_below_a_minute_is_refused_and_the_export_loop_is_exempt(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """G-03: never below 60 s (export exempt)."""
    monkeypatch.setenv("HOLDFAST_EXPORT_RECONCILIATION_JOB_INTERVAL_SECONDS", "1")
    monkeypatch.setenv(f"HOLDFAST_{loop}_JOB_INTERVAL_SECONDS", "60")
    Settings()

    monkeypatch.setenv(f"HOLDFAST_{loop}_JOB_INTERVAL_SECONDS", "59")
    with pytest.raises(ValueError, match="59 s is too often: this loop runs every 60 s at most"):
        Settings()
