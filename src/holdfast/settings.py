"""Every setting of the kernel, with its default and its meaning. The only reader of the environment, with `environment.py`.

`HOLDFAST_<NAME>` sets a value. Shared packages and services declare their fields in a subclass (`engines/settings.py`,
`stores/settings.py`, `services/<name>/settings.py`). `settings()` has the fields of the kernel and of every service whose
package is imported, in one class; programs import the catalog, and with it all services.
"""

from __future__ import annotations

from datetime import timedelta
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict
from pydantic_settings.exceptions import SettingsError

from holdfast.environment import OtherNames, OwnNames, explained, names
from holdfast.errors import InvalidSetting, ServiceInvalid
from holdfast.intervals import INTERVAL, interval_of
from holdfast.setting_parts import PARTS

S = TypeVar("S", bound="Settings")
BEFORE_SIGKILL = 5.0  # seconds that are kept for releasing jobs, and for a slow machine


class Settings(BaseSettings):
    """What can be set from outside."""

    model_config = SettingsConfigDict(env_prefix="HOLDFAST_", frozen=True, extra="ignore", populate_by_name=True)

    # Intervals of loops in seconds, by preset. A service's part adds those of its loops under the same name.
    INTERVAL_PRESETS: ClassVar[dict[str, dict[str, float]]] = {}

    compatibility_names: bool = Field(
        default=False,
        description="Also read the variables in the column `Compatibility name`. Without it they are ignored, because other "
        "programs may use the same names.",
    )
    database_url: str | None = Field(
        default=None, description="Address of a Postgres (15 or newer) to use instead of the embedded one."
    )
    data_dir: Path = Field(default=Path(".holdfast"), description="Data folder of the embedded Postgres.")
    port: int = Field(
        default=54329, description="Port of the embedded Postgres. If it is busy, a free port is used and printed."
    )
    beat_seconds: float = Field(default=5.0, gt=0, description="Interval of a worker's heartbeat, which renews its lease.")
    poll_seconds: float = Field(
        default=10.0,
        gt=0,
        json_schema_extra=names("EMPTY_POLL_BACKOFF", "EMPTY_POLL_BACKOFF_SECONDS", "POLL_INTERVAL_SECONDS"),
        description="Interval at which an idle worker polls for jobs without a notification; up to a fifth is added as jitter. "
        "A worker with jobs claims the next one at once.",
    )
    run_background_poller: bool = Field(
        default=True,
        json_schema_extra=names("RUN_BACKGROUND_POLLER"),
        description="Whether a web application with `holdfast.lifespan()` runs jobs; false: it only enqueues, as in tests.",
    )
    lease_seconds: float = Field(default=30.0, gt=0, description="How long a worker keeps its jobs without a heartbeat.")
    stale_job_timeout_minutes: float | None = Field(
        default=None,
        gt=0,
        json_schema_extra=names("STALE_JOB_TIMEOUT_MINUTES"),
        description="The lease in minutes. HOLDFAST_LEASE_SECONDS takes precedence.",
    )
    rescue_on_disconnect: bool = Field(
        default=False,
        description="Rescue the jobs of a worker within 5 s after its database session has ended, instead of waiting for its "
        "lease. All workers must connect to Postgres directly, without a pooler. See docs/decisions/0014.",
    )
    grace_seconds: float = Field(
        default=25.0,
        ge=0,
        description="How long running jobs may continue after a worker got SIGTERM. The shutdown takes at most 3 s more.",
    )
    termination_grace_seconds: float | None = Field(
        default=None,
        ge=0,
        description="The pod's `terminationGracePeriodSeconds`, in place of HOLDFAST_GRACE_SECONDS: running jobs get 5 s less.",
    )
    worker_http: str | None = Field(
        default=None,
        description="Address at which a worker serves /health, /ready and /metrics: HOST:PORT, or PORT for loopback. "
        "Default: none.",
    )
    scheduler_http: str | None = Field(
        default=None,
        description="The same for `holdfast scheduler run`: HOST:PORT, or PORT for loopback. Default: none.",
    )
    http_host: str = Field(
        default="127.0.0.1",
        description="Address at which the control plane listens. Addresses other than loopback need authentication.",
    )
    http_port: int = Field(default=8080, ge=0, le=65535, description="Port of the control plane; 0 takes a free one.")
    http_connections: int = Field(default=10, ge=2, description="Size of the control plane's connection pool.")
    proxies: str | None = Field(
        default=None,
        description="Addresses of proxies whose X-Forwarded-For and -Proto are trusted, comma separated; `*` is refused.",
    )
    docs_open: bool = Field(
        default=False, description="Serve the interactive API documentation at /docs without authentication."
    )
    metrics_open: bool = Field(default=False, description="Serve /metrics without authentication.")
    streams: int = Field(default=1000, ge=1, description="Maximum number of open event streams of one control plane.")
    streams_each: int = Field(default=50, ge=1, description="Maximum number of open event streams of one principal.")
    requests_per_minute: int = Field(default=600, ge=1, description="Requests per minute of one principal.")
    request_burst: int = Field(default=120, ge=1, description="Requests of one principal that may arrive at once.")
    oidc_issuer: str | None = Field(
        default=None, description="Issuer of an OpenID Connect provider whose tokens are accepted; needs the extra `oidc`."
    )
    oidc_audience: str | None = Field(default=None, description="Audience that its tokens must have.")
    oidc_jwks_url: str | None = Field(default=None, description="Address of its keys. Default: from its discovery document.")
    oidc_groups_claim: str = Field(default="groups", description="Claim that has the groups of the user.")
    oidc_client_id: str | None = Field(
        default=None,
        description="Client id of the console at the provider: users sign in there. Its redirect address is "
        "`https://…/console/login/callback`.",
    )
    oidc_client_secret: SecretStr | None = Field(
        default=None, description="Secret of this client. Default: none, a public client; PKCE is used in both cases."
    )
    oidc_scopes: str = Field(default="openid profile", description="Scopes that the console asks for, space separated.")
    oidc_session_hours: float = Field(
        default=8.0, gt=0, le=168, description="How long a browser stays signed in after a sign-in at the provider."
    )
    console_links: dict[str, str] = Field(
        default_factory=dict,
        description="External links on the page of a job, as JSON: a name, and an address with `{job_id}`, `{kind}`, "
        "`{queue}`, `{worker_id}` or `{pipeline_id}`.",
    )
    oidc_roles: dict[str, str] = Field(default_factory=dict, description='Role of each group, as JSON: {"data-ops": "ops"}.')
    gateway_secret: SecretStr | None = Field(
        default=None, description="Secret that a gateway sends in X-Holdfast-Gateway so that its X-Forwarded-User is trusted."
    )
    gateway_roles: dict[str, str] = Field(
        default_factory=dict, description="Role of each group in X-Forwarded-Groups, as JSON."
    )
    token: SecretStr | None = Field(
        default=None, description="API token that the command line and the client send to the control plane."
    )
    config_dir: Path = Field(
        default=Path("~/.config/holdfast"),
        description="Folder in which `holdfast auth login` stores a token, in a file of mode 0600.",
    )
    hostname: str | None = Field(
        default=None,
        json_schema_extra=names("HOSTNAME"),
        description="Display name of a worker. Default: the host name, which is the pod's name in Kubernetes.",
    )
    log_format: Literal["auto", "json", "console"] = Field(
        default="auto",
        description="Format of the log on standard error; `auto`: readable on a terminal, JSON lines otherwise.",
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"] = Field(
        default="INFO",
        json_schema_extra=names("LOG_LEVEL"),
        description="Minimum level that is logged.",
    )
    keep_job_logs: bool = Field(
        default=True, description="Whether a worker stores the last 1,000 log lines of each attempt, for `holdfast job logs`."
    )
    job_max_memory: str | None = Field(
        default=None,
        description="Memory limit of a job that runs in a separate process, like `512MiB` or `2GiB`, if its kind does not set "
        "`max_memory`. Linux only. Default: no limit.",
    )
    plain_http: bool = Field(
        default=False,
        description="Allow tokens over plain http to other machines, too. Only for networks that cannot be intercepted, such "
        "as within a pod.",
    )
    api_url: str | None = Field(
        default=None,
        json_schema_extra=names("CONTROL_PLANE_URL"),
        description="Address of the HTTP API, for the command line, the client and remote workers.",
    )
    api_token: SecretStr | None = Field(default=None, description="Token of a remote worker, with the role `worker`.")
    api_token_file: Path | None = Field(
        default=None, description="File with the token of a remote worker; it is read again for each request."
    )
    pod: str | None = Field(
        default=None,
        json_schema_extra=names("POD_NAME"),
        description="Pod that a worker runs in, as shown by `holdfast worker list`: `metadata.name` of the downward API.",
    )
    git_sha: str | None = Field(default=None, description="Commit that a worker runs, as shown by `holdfast worker list`.")
    traces: str | None = Field(
        default=None,
        description="Export OpenTelemetry spans of jobs with this exporter: `otlp`, `console`, …; `host`: with the tracer "
        "provider that the process has configured. Needs the extra `otel`.",
    )
    crash_at: str | None = Field(
        default=None,
        description="For tests of crash safety: the crash point (`name` or `name:n`) at which the first executor of a keeper "
        "gets a SIGKILL. Also for `holdfast db migrate`.",
    )
    crash_keeper_at: str | None = Field(default=None, description="The same for the keeper.")
    scratch_dir: Path | None = Field(
        default=None,
        description="Folder for files before their upload, and for DuckDB's spill files. "
        "Default: the system's folder for temporary files.",
    )
    scheduler_look_seconds: float = Field(
        default=2.0,
        gt=0,
        description="Interval at which a scheduler polls the rows of its loops; a triggered run starts within it.",
    )
    retention_days: float = Field(
        default=30.0, ge=0, description="Days after which the loop `prune` deletes ended jobs; 0: never."
    )
    loop_history_days: float = Field(default=7.0, gt=0, description="Days for which runs of periodic loops are kept.")
    job_interval_preset: Literal["default", "conservative", "aggressive"] = Field(
        default="default",
        json_schema_extra=names("GRAPH_OLAP_JOB_INTERVAL_PRESET"),
        description="Intervals of the loops that have presets, such as `lifecycle`: `conservative` (600 s) for many resources, "
        "`aggressive` (300 s) for few. The setting of a loop takes precedence.",
    )
    rescue_job_interval_seconds: float | None = interval_of("rescue")
    promote_job_interval_seconds: float | None = interval_of("promote")
    wake_job_interval_seconds: float | None = interval_of("wake")
    effects_job_interval_seconds: float | None = interval_of("effects")
    pipeline_status_job_interval_seconds: float | None = interval_of("pipeline_status")
    prune_job_interval_seconds: float | None = interval_of("prune")

    def __init__(self, **given: Any) -> None:
        try:
            super().__init__(**given)
        except (ValidationError, SettingsError) as error:
            raise InvalidSetting(explained(type(self), error)) from None

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The first that has a value counts."""
        return init_settings, OwnNames(settings_cls), OtherNames(settings_cls)

    @property
    def intervals(self) -> dict[str, timedelta]:
        """The loops whose interval is set from outside."""
        preset: dict[str, float] = {}
        for part in type(self).__mro__:
            preset |= vars(part).get("INTERVAL_PRESETS", {}).get(self.job_interval_preset, {})
        single = {name.removesuffix(INTERVAL): value for name, value in self if name.endswith(INTERVAL) and value is not None}
        return {loop: timedelta(seconds=seconds) for loop, seconds in (preset | single).items()}

    @field_validator("log_level", mode="before")
    @classmethod
    def _upper_case(cls, given: object) -> object:
        return given.upper() if isinstance(given, str) else given

    @property
    def secrets(self) -> list[str]:
        """Values that must never be logged or shown."""
        values = (getattr(self, name) for name in type(self).model_fields)
        return [value.get_secret_value() for value in values if isinstance(value, SecretStr)]

    @property
    def closed_folders(self) -> list[Path]:
        """Folders that no job reads or writes through an engine or a store: they contain passwords and tokens."""
        return [folder.expanduser().resolve() for folder in (self.data_dir, self.config_dir)]

    @property
    def lease(self) -> float:
        """How many seconds a worker keeps its jobs without a heartbeat."""
        minutes = self.stale_job_timeout_minutes
        return self.lease_seconds if minutes is None or "lease_seconds" in self.model_fields_set else minutes * 60

    @property
    def grace(self) -> float:
        """How many seconds running jobs get at shutdown."""
        whole = self.termination_grace_seconds
        return self.grace_seconds if whole is None else max(0.0, whole - BEFORE_SIGKILL)


def folders_of(text: str) -> list[Path]:
    """Folders from a comma-separated list."""
    return [Path(one.strip()).expanduser() for one in text.split(",") if one.strip()]


# ---------------------------------------------------------------------------------------------------------------------
# The settings of this process
# ---------------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def settings() -> Settings:
    """The settings of this process, read once. They have the fields of every service whose package is imported."""
    return settings_class()()


def settings_as(part: type[S]) -> S:
    """The settings of this process with the fields of this part."""
    if not isinstance(settings(), part):  # they were read before the service was imported
        settings.cache_clear()
    found = settings()
    assert isinstance(found, part), f"{part.__name__} belongs to a service that is not registered"
    return found


def settings_class() -> type[Settings]:
    """The one class that users see: the fields of the kernel and of every service whose package is imported."""
    return _composed(tuple(PARTS.items()))


@lru_cache(maxsize=4)
def _composed(targets: tuple[tuple[str, str], ...]) -> type[Settings]:
    parts: list[type[Settings]] = []
    owners: dict[str, type] = dict.fromkeys(Settings.model_fields, Settings)
    for service, target in targets:
        module, _, name = target.partition(":")
        part = getattr(import_module(module), name, None)
        if not (isinstance(part, type) and issubclass(part, Settings)):
            raise ServiceInvalid(service, "settings", f"{target} is not a subclass of Settings", "derive it from Settings")
        _refuse_second_owner(service, part, owners)
        parts.append(part)
    if not parts:
        return Settings
    return type("Settings", tuple(parts), {"__doc__": Settings.__doc__, "__module__": __name__})


def _refuse_second_owner(service: str, part: type[Settings], owners: dict[str, type]) -> None:
    """Two services must not declare one field. A class that both derive from may."""
    for cls in part.__mro__:
        for field in vars(cls).get("__annotations__", {}):
            if field in part.model_fields and owners.setdefault(field, cls) is not cls:
                other = f"{owners[field].__module__}.{owners[field].__name__}"
                raise ServiceInvalid(service, "settings", f"the field {field!r} is already declared by {other}", "rename it")
