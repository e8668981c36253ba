"""The settings of maintenance."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr

from holdfast.engines.settings import EngineSettings
from holdfast.intervals import interval_of
from holdfast.settings import settings_as
from holdfast.stores.settings import StoreSettings


class MaintenanceSettings(EngineSettings, StoreSettings):
    """What can be set for the maintenance of tables."""

    maintenance_engine: Literal["pyiceberg", "trino", "spark"] = Field(
        default="pyiceberg", description="Engine of maintenance jobs that name none."
    )
    iceberg_catalogs: dict[str, dict[str, str]] = Field(
        default_factory=dict,
        repr=False,
        description='Catalogs by name with their PyIceberg properties, as JSON: {"lake": {"type": "rest", "uri": "…"}}. '
        "The first is the default. The type `embedded` is the SQL catalog in our Postgres; a name without properties is looked "
        "up in PyIceberg's configuration. Default: an embedded catalog `default`.",
    )
    iceberg_warehouse: str = Field(
        default="warehouse",
        description="Where the embedded catalog `default` keeps its tables: a folder, s3://bucket/prefix or gs://bucket/prefix.",
    )
    maintenance_trino_catalogs: dict[str, str] = Field(
        default_factory=dict,
        description='Catalogs that Trino knows by another name, as JSON: {"lake": "iceberg"}. Trino is at HOLDFAST_TRINO_URL.',
    )
    maintenance_trino_role: str | None = Field(default=None, description="Role under which Trino runs maintenance.")
    maintenance_spark_catalogs: dict[str, str] = Field(
        default_factory=dict, description='Catalogs that Spark knows by another name, as JSON: {"lake": "iceberg"}.'
    )
    spark_connect_url: str | None = Field(
        default=None, description="Address of Spark Connect, as sc://host:15002, for the engine `spark`."
    )
    spark_thrift_url: str | None = Field(
        default=None,
        description="Address of a Spark Thrift Server or Kyuubi, as thrift://host:10000, or thrifts://… with TLS, for the "
        "engine `spark` instead of Spark Connect. It must be one server, not a load balancer: only that server knows its "
        "sessions.",
    )
    spark_thrift_user: str = Field(default="holdfast", min_length=1, description="User of the Spark Thrift Server.")
    spark_thrift_password: SecretStr | None = Field(
        default=None, description="Password of that user (SASL PLAIN, LDAP); sent over TLS or to loopback only."
    )
    spark_thrift_sasl: bool = Field(
        default=True, description="Whether the Spark Thrift Server uses SASL; false if its authentication is NOSASL."
    )
    spark_thrift_ca_file: Path | None = Field(
        default=None, description="File with CA certificates to trust for thrifts:// instead of the system's."
    )
    maintenance_on_sigterm: Literal["release", "fail"] = Field(
        default="release",
        description="What becomes of a maintenance job whose worker gets SIGTERM, within 2 s: `release` returns it to the "
        "queue without using an attempt, `fail` fails it. A request may choose for its job.",
    )
    maintenance_streams: int = Field(
        default=2,
        ge=1,
        description="Maximum number of tables that one worker process maintains at once. Each may need 800 MiB.",
    )
    maintenance_history_days: int = Field(
        default=400, ge=1, description="Days for which ended maintenance runs and their results are kept."
    )
    table_lookup_seconds: float = Field(
        default=5.0,
        ge=0,
        description="How long a catalog's answer that a table does not exist is repeated without asking it again.",
    )
    storage_price_per_gib_month: float | None = Field(
        default=None, ge=0, description="Price of a GiB of storage for a month. Savings in money are shown only if it is set."
    )
    engine_price_per_hour: float | None = Field(
        default=None, ge=0, description="Price of an hour of an engine; without it the cost of maintenance has no price."
    )
    price_currency: str = Field(default="USD", min_length=1, max_length=10, description="Currency of the two prices.")
    table_health_job_interval_seconds: float | None = interval_of("table_health")
    maintenance_policies_job_interval_seconds: float | None = interval_of("maintenance_policies")


def maintenance_settings() -> MaintenanceSettings:
    """The settings of this process."""
    return settings_as(MaintenanceSettings)
