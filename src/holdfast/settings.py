"""Every setting, with its default and what it means. The only reader of the environment.

`HOLDFAST_<NAME>` sets it; the names that the documents use are accepted too where they differ.
"""

from __future__ import annotations

from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Literal

from pydantic import AliasChoices, Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from holdfast.intervals import INTERVAL, PRESETS, SHORTEST_INTERVAL, SLOW_LOOPS, interval_of

BEFORE_SIGKILL = 5.0  # seconds that are kept for giving back, and for a slow machine


class Settings(BaseSettings):
    """What can be set from outside."""

    model_config = SettingsConfigDict(env_prefix="HOLDFAST_", frozen=True, extra="ignore", populate_by_name=True)

    database_url: str | None = Field(default=None, description="A Postgres (15 or newer) to use instead of the embedded one.")
    data_dir: Path = Field(default=Path(".holdfast"), description="Where the embedded Postgres keeps its data.")
    port: int = Field(default=54329, description="Port of the embedded Postgres; another is taken, and said, when it is busy.")

    beat_seconds: float = Field(default=5.0, gt=0, description="How often a worker renews its lease.")
    poll_seconds: float = Field(
        default=10.0,
        gt=0,
        validation_alias=AliasChoices("HOLDFAST_POLL_SECONDS", "EMPTY_POLL_BACKOFF", "EMPTY_POLL_BACKOFF_SECONDS"),
        description="How often an idle worker looks for what no hint told it of, and up to a fifth later.",
    )
    poll_interval_seconds: float | None = Field(
        default=None,
        validation_alias=AliasChoices("HOLDFAST_POLL_INTERVAL_SECONDS", "POLL_INTERVAL_SECONDS"),
        description="Accepted because the documents name it, and without a meaning here: a worker that has room takes the next "
        "job at once, and one that has found none waits HOLDFAST_POLL_SECONDS.",
    )
    run_background_poller: bool = Field(
        default=True,
        validation_alias=AliasChoices("HOLDFAST_RUN_BACKGROUND_POLLER", "RUN_BACKGROUND_POLLER"),
        description="Whether a web application with `holdfast.lifespan()` runs jobs; false: it only enqueues, as in tests.",
    )
    lease_seconds: float = Field(default=30.0, gt=0, description="How long a silent worker keeps its jobs.")
    stale_job_timeout_minutes: float | None = Field(
        default=None,
        gt=0,
        validation_alias=AliasChoices("HOLDFAST_STALE_JOB_TIMEOUT_MINUTES", "STALE_JOB_TIMEOUT_MINUTES"),
        description="The same in minutes, by the documents' name; HOLDFAST_LEASE_SECONDS counts more.",
    )
    rescue_on_disconnect: bool = Field(
        default=False,
        description="Take the jobs of a worker within 5 s when its database session ends and it does not come back, instead of "
        "waiting for its lease; for workers that connect to Postgres directly, as both sides of it. See docs/decisions/0014.",
    )
    grace_seconds: float = Field(
        default=25.0,
        ge=0,
        description="How long running jobs may go on when a worker is told to stop. The end takes at most 3 s more.",
    )
    termination_grace_seconds: float | None = Field(
        default=None,
        ge=0,
        description="The pod's `terminationGracePeriodSeconds`, if you would rather say that: running jobs get 5 s less.",
    )
    worker_http: str | None = Field(
        default=None,
        description="Where a worker serves /health, /ready and /metrics: HOST:PORT, or PORT for this machine alone. "
        "Default: nowhere.",
    )
    http_host: str = Field(
        default="127.0.0.1", description="Where the control plane listens; beyond this machine only with auth."
    )
    http_port: int = Field(
        default=8080, ge=0, le=65535, description="On which port the control plane listens; 0 takes a free one."
    )
    http_connections: int = Field(
        default=10, ge=2, description="How many connections to Postgres the control plane opens at most."
    )
    proxies: str | None = Field(
        default=None, description="Addresses of proxies whose X-Forwarded-For and -Proto count, comma separated; never `*`."
    )
    docs_open: bool = Field(default=False, description="Serve the interactive API documentation at /docs, to anybody.")
    metrics_open: bool = Field(default=False, description="Serve /metrics to anybody; by default a token is needed.")
    streams: int = Field(default=1000, ge=1, description="How many event streams one control plane keeps open.")
    streams_each: int = Field(default=50, ge=1, description="How many of those one person may have.")
    requests_per_minute: int = Field(default=600, ge=1, description="How many requests one person may send in a minute.")
    request_burst: int = Field(default=120, ge=1, description="How many of those may come at once.")
    oidc_issuer: str | None = Field(
        default=None, description="An OpenID Connect provider whose tokens count; needs holdfast[oidc]."
    )
    oidc_audience: str | None = Field(default=None, description="The audience that such a token must name.")
    oidc_jwks_url: str | None = Field(
        default=None, description="Where its keys are; default: what its discovery document says."
    )
    oidc_groups_claim: str = Field(default="groups", description="The claim that names the groups of the user.")
    oidc_roles: dict[str, str] = Field(
        default_factory=dict, description='Which group has which role, as JSON: {"data-ops": "ops"}.'
    )
    gateway_secret: SecretStr | None = Field(
        default=None, description="What a gateway shows in X-Holdfast-Gateway so that its X-Forwarded-User counts."
    )
    gateway_roles: dict[str, str] = Field(
        default_factory=dict, description="Which of the groups in X-Forwarded-Groups has which role, as JSON."
    )
    token: SecretStr | None = Field(default=None, description="The API token that the command line sends to the control plane.")
    config_dir: Path = Field(
        default=Path("~/.config/holdfast"), description="Where `holdfast auth login` keeps a token, in a file of mode 0600."
    )

    hostname: str | None = Field(
        default=None,
        validation_alias=AliasChoices("HOLDFAST_HOSTNAME", "HOSTNAME"),
        description="The display name of a worker; in Kubernetes the pod's name. Default: the host's name.",
    )
    log_format: Literal["auto", "json", "console"] = Field(
        default="auto",
        description="How logs are written to standard error; `auto`: for people on a terminal, else as JSON lines.",
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"] = Field(
        default="INFO",
        validation_alias=AliasChoices("HOLDFAST_LOG_LEVEL", "LOG_LEVEL"),
        description="The least level that is logged.",
    )
    keep_job_logs: bool = Field(
        default=True, description="Whether a worker keeps the last 1,000 lines that each attempt logs, for `holdfast job logs`."
    )
    job_max_memory: str | None = Field(
        default=None,
        description="How much memory a job in a process of its own may allocate, like `512MiB` or `2GiB`, unless its kind says "
        "`max_memory`. Linux only. Default: no limit.",
    )
    plain_http: bool = Field(
        default=False,
        description="Send tokens to an API over plain http, too, and not only to this machine: for a network where nobody can "
        "listen, such as within a pod.",
    )
    api_url: str | None = Field(
        default=None,
        validation_alias=AliasChoices("HOLDFAST_API_URL", "CONTROL_PLANE_URL"),
        description="The HTTP API that the command line and a remote worker speak to.",
    )
    api_token: SecretStr | None = Field(default=None, description="The token of a remote worker, of role `worker`.")
    api_token_file: Path | None = Field(
        default=None, description="A file with the token of a remote worker; read anew for every request."
    )
    pod: str | None = Field(
        default=None,
        validation_alias=AliasChoices("HOLDFAST_POD", "POD_NAME"),
        description="The pod that a worker runs in, for people: `metadata.name` through the downward API.",
    )
    git_sha: str | None = Field(default=None, description="Which commit a worker runs, for people.")
    traces: str | None = Field(
        default=None,
        description="Make OpenTelemetry spans of jobs and send them with this exporter: `otlp`, `console`, …; `host`: with "
        "what the process has set up already. Needs holdfast[otel].",
    )
    crash_at: str | None = Field(
        default=None,
        description="For tests of crash safety: the point (`name` or `name:n`) at which an executor gets a SIGKILL: the "
        "first that a keeper starts, and none after it. Also for `holdfast db migrate`.",
    )
    crash_keeper_at: str | None = Field(default=None, description="The same for the keeper.")

    # Exports
    export_dirs: str = Field(
        default="exports",
        description="Folders that exports may write to on the worker's machine, comma separated, beside HOLDFAST_SNAPSHOTS_TO; "
        "never HOLDFAST_DATA_DIR or HOLDFAST_CONFIG_DIR.",
    )
    export_buckets: str = Field(
        default="",
        description="Addresses in object stores that `export.run` may write below, as s3://bucket/prefix or gs://bucket, comma "
        "separated, beside HOLDFAST_SNAPSHOTS_TO. Set it for the control plane and the workers.",
    )
    export_max_seconds: float = Field(
        default=3600.0,
        gt=0,
        validation_alias=AliasChoices("HOLDFAST_EXPORT_MAX_SECONDS", "EXPORT_MAX_DURATION_SECONDS"),
        description="How long an `export.run` may take unless its job says otherwise. Snapshots follow "
        "`export.max_duration_seconds` of the configuration, whichever way they run.",
    )
    snapshots_to: str = Field(
        default="snapshots",
        description="Where snapshots go, each into a folder of its own: a folder, s3://bucket/prefix or gs://bucket/prefix.",
    )
    direct_export: bool = Field(
        default=True,
        validation_alias=AliasChoices("HOLDFAST_DIRECT_EXPORT", "DIRECT_EXPORT"),
        description="Whether exports stream rows through the worker; false: the engine unloads them by itself where it can.",
    )
    mappings_read_files: bool = Field(
        default=False, description="Whether the SQL of mappings may name files, below HOLDFAST_DUCKDB_DIRS and nowhere else."
    )
    export_streams: int = Field(
        default=2,
        ge=1,
        description="How many exports stream through one worker process at once, which bounds its memory: "
        "each takes some 100 MiB and HOLDFAST_DUCKDB_MEMORY. What an engine writes by itself is not counted.",
    )
    scratch_dir: Path | None = Field(
        default=None,
        description="Where files wait for their upload and DuckDB puts what does not fit into its memory; "
        "default: the system's folder for temporary files.",
    )
    duckdb_dirs: str = Field(
        default="",
        description="Folders whose files DuckDB may read, comma separated; everything else is closed to it. Default: none. "
        "A folder that holds HOLDFAST_DATA_DIR or HOLDFAST_CONFIG_DIR is refused.",
    )
    duckdb_attach: dict[str, Path] = Field(
        default_factory=dict, description='Databases that DuckDB attaches, read-only, as JSON: {"shop": "/data/shop.duckdb"}.'
    )
    duckdb_memory: str = Field(default="128MB", description="How much memory DuckDB takes before it spills to the scratch.")
    duckdb_max_spill: str = Field(
        default="10GB",
        pattern=r"(?i)^\s*\d+(\.\d+)?\s*([KMGT]i?B|B)\s*$",
        description="How much disk one query of DuckDB may take in the scratch, like `10GB`; a query that needs more fails. "
        "HOLDFAST_EXPORT_STREAMS queries may take it at once.",
    )
    duckdb_threads: int | None = Field(default=None, ge=1, description="How many threads DuckDB uses; default: one a core.")
    s3_endpoint: str | None = Field(
        default=None,
        validation_alias=AliasChoices("HOLDFAST_S3_ENDPOINT", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
        description="An S3 server other than the vendor's.",
    )
    s3_region: str | None = Field(
        default=None,
        validation_alias=AliasChoices("HOLDFAST_S3_REGION", "AWS_REGION", "AWS_DEFAULT_REGION"),
        description="The region of S3 buckets.",
    )
    s3_access_key_id: str | None = Field(default=None, description="The key for S3; default: where every S3 client looks.")
    s3_secret_access_key: SecretStr | None = Field(default=None, description="The secret of that key.")
    s3_credentials_file: Path | None = Field(
        default=None, description="A file like ~/.aws/credentials, read anew when a server refuses what it held before."
    )
    gcp_project: str | None = Field(
        default=None,
        validation_alias=AliasChoices("HOLDFAST_GCP_PROJECT", "GCP_PROJECT"),
        description="Accepted because the documents name it, and without a meaning here: a bucket is found by its name alone.",
    )
    gcs_endpoint: str | None = Field(default=None, description="A GCS server other than the vendor's.")
    gcs_credentials_file: Path | None = Field(
        default=None, description="The key of a service account, read anew when GCS refuses; default: the machine's identity."
    )
    gcs_token_file: Path | None = Field(default=None, description="A file with a bearer token that somebody else keeps fresh.")

    # Exports from Trino or Starburst
    trino_url: str | None = Field(
        default=None,
        validation_alias=AliasChoices("HOLDFAST_TRINO_URL", "STARBURST_URL"),
        description="Where Trino answers, as https://trino.example.com; nothing is sent anywhere else.",
    )
    trino_user: str | None = Field(
        default=None,
        validation_alias=AliasChoices("HOLDFAST_TRINO_USER", "STARBURST_USER"),
        description="The user that exports run as.",
    )
    trino_password: SecretStr | None = Field(
        default=None,
        validation_alias=AliasChoices("HOLDFAST_TRINO_PASSWORD", "STARBURST_PASSWORD"),
        description="Its password; goes over https, or to this machine, only.",
    )
    trino_token: SecretStr | None = Field(default=None, description="A bearer token instead of the password.")
    trino_ca_file: Path | None = Field(default=None, description="Certificates to trust instead of the system's.")
    trino_client_tags: str = Field(
        default="graph-olap-export",
        validation_alias=AliasChoices("HOLDFAST_TRINO_CLIENT_TAGS", "STARBURST_CLIENT_TAGS"),
        description="Client tags of every query, comma separated, for Trino's resource groups.",
    )
    trino_source: str = Field(
        default="graph-olap-export-worker",
        validation_alias=AliasChoices("HOLDFAST_TRINO_SOURCE", "STARBURST_SOURCE"),
        description="The source of every query; the tag of the attempt follows after a slash.",
    )
    trino_request_timeout_seconds: float = Field(
        default=30.0,
        gt=0,
        validation_alias=AliasChoices("HOLDFAST_TRINO_REQUEST_TIMEOUT_SECONDS", "STARBURST_REQUEST_TIMEOUT_SECONDS"),
        description="How long one request may go without a byte of an answer.",
    )
    trino_role_required: bool = Field(
        default=True, description="Refuse to run a query without a role; there is no default role either way."
    )
    trino_role_catalog: str = Field(default="system", description="The catalog whose role a query's role is.")
    trino_encodings: str = Field(
        default="json+zstd,json+lz4,json", description="Encodings of spooled results, best first; empty: plain pages only."
    )
    trino_segment_origins: str = Field(
        default="",
        description="Object stores that spooled segments may be fetched from, comma separated; never with our credentials.",
    )
    trino_unload_function: str = Field(default="system.unload", description="Starburst's table function for unloading.")
    trino_ctas_schema: str | None = Field(
        default=None, description="The catalog.schema in which CTAS exports create their tables."
    )
    trino_ctas_location: Literal["location", "external_location"] = Field(
        default="location", description="Where a table's files go: `location` for Iceberg, `external_location` for Hive."
    )

    # Periodic loops
    scheduler_look_seconds: float = Field(
        default=2.0, gt=0, description="How often a scheduler looks at the rows of its loops; a triggered run begins within it."
    )
    retention_days: float = Field(
        default=30.0, ge=0, description="How long jobs that have ended stay before the loop `prune` removes them; 0: for ever."
    )
    loop_history_days: float = Field(default=7.0, gt=0, description="How long runs of periodic loops stay in the history.")
    job_interval_preset: Literal["default", "conservative", "aggressive"] = Field(
        default="default",
        validation_alias=AliasChoices("HOLDFAST_JOB_INTERVAL_PRESET", "GRAPH_OLAP_JOB_INTERVAL_PRESET"),
        description="Intervals of `reconciliation` and `lifecycle`: `conservative` (600 s and 600 s) for many resources, "
        "`aggressive` (60 s and 300 s) for few. A setting of one loop counts more.",
    )
    rescue_job_interval_seconds: float | None = interval_of("rescue")
    promote_job_interval_seconds: float | None = interval_of("promote")
    wake_job_interval_seconds: float | None = interval_of("wake")
    effects_job_interval_seconds: float | None = interval_of("effects")
    pipeline_status_job_interval_seconds: float | None = interval_of("pipeline_status")
    prune_job_interval_seconds: float | None = interval_of("prune")
    reconciliation_job_interval_seconds: float | None = interval_of("reconciliation")
    lifecycle_job_interval_seconds: float | None = interval_of("lifecycle")
    export_reconciliation_job_interval_seconds: float | None = interval_of("export_reconciliation")
    schema_cache_job_interval_seconds: float | None = interval_of("schema_cache")
    instance_orchestration_job_interval_seconds: float | None = interval_of("instance_orchestration")
    resource_monitor_job_interval_seconds: float | None = interval_of("resource_monitor")

    @property
    def intervals(self) -> dict[str, timedelta]:
        """The loops whose interval is set from outside."""
        said = {name.removesuffix(INTERVAL): value for name, value in self if name.endswith(INTERVAL) and value is not None}
        return {loop: timedelta(seconds=seconds) for loop, seconds in (PRESETS[self.job_interval_preset] | said).items()}

    @field_validator(*(f"{loop}{INTERVAL}" for loop in SLOW_LOOPS))
    @classmethod
    def _not_too_often(cls, given: float | None) -> float | None:
        if given is not None and given < SHORTEST_INTERVAL:
            raise ValueError(f"{given:g} s is too often: this loop runs every {SHORTEST_INTERVAL:g} s at most")
        return given

    @field_validator("log_level", mode="before")
    @classmethod
    def _in_capitals(cls, given: object) -> object:
        return given.upper() if isinstance(given, str) else given

    @property
    def secrets(self) -> list[str]:
        """Values of settings that must never be written anywhere."""
        values = (getattr(self, name) for name in type(self).model_fields)
        return [value.get_secret_value() for value in values if isinstance(value, SecretStr)]

    @property
    def export_folders(self) -> list[Path]:
        """Where exports may write: what was said, and where snapshots go if that is a folder."""
        snapshots = [] if "://" in self.snapshots_to else [Path(self.snapshots_to).expanduser()]
        return [*_folders(self.export_dirs), *snapshots]

    @property
    def export_addresses(self) -> list[str]:
        """Where `export.run` may write in object stores: what was said, and where snapshots go if that is a bucket."""
        said = [one.strip() for one in self.export_buckets.split(",") if one.strip()]
        return [*said, self.snapshots_to] if "://" in self.snapshots_to else said

    @property
    def duckdb_folders(self) -> list[Path]:
        return _folders(self.duckdb_dirs)

    @property
    def closed_folders(self) -> list[Path]:
        """What no export reads or writes, whatever else is said: passwords and tokens lie there."""
        return [folder.expanduser().resolve() for folder in (self.data_dir, self.config_dir)]

    @property
    def lease(self) -> float:
        """How many seconds a silent worker really keeps its jobs."""
        minutes = self.stale_job_timeout_minutes
        return self.lease_seconds if minutes is None or "lease_seconds" in self.model_fields_set else minutes * 60

    @property
    def grace(self) -> float:
        """How long running jobs really get."""
        whole = self.termination_grace_seconds
        return self.grace_seconds if whole is None else max(0.0, whole - BEFORE_SIGKILL)


def _folders(said: str) -> list[Path]:
    """Folders from a list with commas."""
    return [Path(one.strip()).expanduser() for one in said.split(",") if one.strip()]


@lru_cache(maxsize=1)
def settings() -> Settings:
    """The settings of this process, read once."""
    return Settings()
