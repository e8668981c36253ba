"""Settings: one class from the parts of the services, HOLDFAST_ names only by default, and one line for an invalid value."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

import holdfast.catalog  # noqa: F401 - all services
from holdfast import lifespan
from holdfast.errors import InvalidSetting, UsageError
from holdfast.settings import Settings as KernelSettings
from holdfast.settings import settings_class

Settings = settings_class()
NAMES = {
    "STARBURST_URL": ("trino_url", "https://trino"),
    "STARBURST_USER": ("trino_user", "u"),
    "STARBURST_CLIENT_TAGS": ("trino_client_tags", "a,b"),
    "STARBURST_SOURCE": ("trino_source", "s"),
    "CONTROL_PLANE_URL": ("api_url", "https://plane"),
    "EMPTY_POLL_BACKOFF": ("poll_seconds", 7.0),
    "LOG_LEVEL": ("log_level", "DEBUG"),
    "DIRECT_EXPORT": ("direct_export", False),
    "STALE_JOB_TIMEOUT_MINUTES": ("stale_job_timeout_minutes", 30.0),
    "GRAPH_OLAP_LIFECYCLE_JOB_INTERVAL_SECONDS": ("lifecycle_job_interval_seconds", 900.0),
    "HOSTNAME": ("hostname", "pod-7"),
    "POD_NAME": ("pod", "pod-7"),
}


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("HOLDFAST_", "STARBURST_", "AWS_"))]:
        monkeypatch.delenv(name)


@pytest.fixture
def _compatible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_COMPATIBILITY_NAMES", "true")


def test_one_class_has_the_fields_of_the_kernel_and_of_the_services() -> None:
    assert Settings.__name__ == "Settings"
    assert issubclass(Settings, KernelSettings)
    assert {"beat_seconds", "snapshots_to", "trino_url", "s3_region"} <= set(Settings.model_fields)
    assert not {"snapshots_to", "trino_url", "s3_region"} & set(KernelSettings.model_fields)


def test_names_without_the_prefix_are_ignored_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    bare = Settings()
    for name, (_, value) in NAMES.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("LOG_LEVEL", "trace")

    assert Settings() == bare


@pytest.mark.usefixtures("_compatible")
def test_g_06_compatibility_name_of_the_lease_is_in_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    """G-06, K-23. HOLDFAST_LEASE_SECONDS takes precedence."""
    assert Settings().lease == 30
    monkeypatch.setenv("STALE_JOB_TIMEOUT_MINUTES", "30")
    assert Settings().lease == 1800
    monkeypatch.setenv("HOLDFAST_LEASE_SECONDS", "45")
    assert Settings().lease == 45


@pytest.mark.usefixtures("_compatible")
def test_compatibility_names_configure_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """W-06, W-13, G-04: with the compatibility names switched on. GCP_PROJECT is not read: nothing uses it.

    An idle worker waits 10 s by default: that of EMPTY_POLL_BACKOFF, which takes precedence over the 5 s of
    POLL_INTERVAL_SECONDS.
    """
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    bare = Settings()
    assert (bare.poll_seconds, bare.direct_export, bare.log_level) == (10, True, "INFO")
    assert (bare.trino_client_tags, bare.trino_source) == ("graph-olap-export", "graph-olap-export-worker")
    monkeypatch.setenv("HOLDFAST_COMPATIBILITY_NAMES", "false")
    assert (Settings().trino_client_tags, Settings().trino_source) == ("holdfast", "holdfast")
    monkeypatch.setenv("HOLDFAST_COMPATIBILITY_NAMES", "true")

    for name, (_, value) in NAMES.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("STARBURST_PASSWORD", "secret")
    found = Settings()

    assert {name: getattr(found, field) for name, (field, _) in NAMES.items()} == {
        name: want for name, (_, want) in NAMES.items()
    }
    assert found.trino_password is not None
    assert found.trino_password.get_secret_value() == "secret"
    monkeypatch.setenv("HOLDFAST_API_URL", "https://ours")
    assert Settings().api_url == "https://ours", "HOLDFAST_ names take precedence"


@pytest.mark.usefixtures("_compatible")
def test_two_compatibility_names_set_the_interval_of_an_idle_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """G-04: a worker of the document sleeps for EMPTY_POLL_BACKOFF when it found nothing; that one takes precedence."""
    monkeypatch.setenv("POLL_INTERVAL_SECONDS", "5")
    assert Settings().poll_seconds == 5
    monkeypatch.setenv("EMPTY_POLL_BACKOFF", "12")
    assert Settings().poll_seconds == 12


def test_standard_aws_variables_are_always_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-central-2")
    assert Settings().s3_region == "eu-central-2"
    monkeypatch.setenv("HOLDFAST_S3_REGION", "us-east-1")
    assert Settings().s3_region == "us-east-1"


@pytest.mark.parametrize("prefix", ["HOLDFAST", "GRAPH_OLAP"])
@pytest.mark.usefixtures("_compatible")
def test_explicit_interval_overrides_the_preset(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """G-03: of each preset, and a setting of one loop counts more."""

    def seconds(preset: str) -> dict[str, float]:
        monkeypatch.setenv(f"{prefix}_JOB_INTERVAL_PRESET", preset)
        return {loop: every.total_seconds() for loop, every in Settings().intervals.items()}

    assert seconds("default") == {}
    assert seconds("conservative") == {"reconciliation": 600, "lifecycle": 600, "instance_lifecycle": 600}
    assert seconds("aggressive") == {"reconciliation": 60, "lifecycle": 300, "instance_lifecycle": 300}
    monkeypatch.setenv(f"{prefix}_LIFECYCLE_JOB_INTERVAL_SECONDS", "900")
    assert seconds("aggressive") == {"reconciliation": 60, "lifecycle": 900, "instance_lifecycle": 300}


@pytest.mark.parametrize("loop", ["RECONCILIATION", "LIFECYCLE", "SCHEMA_CACHE"])
def test_a_loop_below_a_minute_is_refused_and_the_export_loop_is_exempt(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """G-03: never below 60 s (export exempt)."""
    monkeypatch.setenv("HOLDFAST_EXPORT_RECONCILIATION_JOB_INTERVAL_SECONDS", "1")
    monkeypatch.setenv(f"HOLDFAST_{loop}_JOB_INTERVAL_SECONDS", "60")
    Settings()

    monkeypatch.setenv(f"HOLDFAST_{loop}_JOB_INTERVAL_SECONDS", "59")
    with pytest.raises(InvalidSetting, match="=59 is not valid: it must be greater than or equal to 60"):
        Settings()


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("LOG_LEVEL", "warn", "HOLDFAST_LOG_LEVEL=WARN is not valid: use DEBUG, INFO, WARNING, ERROR or CRITICAL"),
        ("PORT", "abc", "HOLDFAST_PORT=abc is not valid: use a whole number"),
        ("BEAT_SECONDS", "often", "HOLDFAST_BEAT_SECONDS=often is not valid: use a number"),
        ("BEAT_SECONDS", "0", "HOLDFAST_BEAT_SECONDS=0 is not valid: it must be greater than 0"),
        ("DIRECT_EXPORT", "maybe", "HOLDFAST_DIRECT_EXPORT=maybe is not valid: use true or false"),
        ("OIDC_ROLES", "ops", 'HOLDFAST_OIDC_ROLES=ops is not valid: use a JSON object, such as {"key": "value"}'),
    ],
)
def test_an_invalid_value_is_one_line_with_variable_value_and_rule(
    name: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"HOLDFAST_{name}", value)
    with pytest.raises(UsageError) as refused:
        Settings()
    assert str(refused.value) == said


@pytest.mark.usefixtures("_compatible")
def test_an_invalid_value_names_the_variable_that_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOG_LEVEL", "trace")
    with pytest.raises(InvalidSetting, match="^LOG_LEVEL=TRACE is not valid: use DEBUG"):
        Settings()


def test_invalid_compatibility_switch_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_COMPATIBILITY_NAMES", "perhaps")
    with pytest.raises(InvalidSetting, match="HOLDFAST_COMPATIBILITY_NAMES=perhaps is not valid: use true or false"):
        Settings()


async def test_an_application_with_an_invalid_variable_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it connects: there is no database at this address."""
    monkeypatch.setenv("HOLDFAST_BEAT_SECONDS", "often")

    with pytest.raises(InvalidSetting, match="^HOLDFAST_BEAT_SECONDS=often is not valid: use a number$"):
        async with lifespan("postgresql://127.0.0.1:1/none")(SimpleNamespace()):
            pytest.fail("it started")
