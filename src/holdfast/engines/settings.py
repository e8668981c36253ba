"""The settings of the SQL engines, for every service that uses one."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr

from holdfast.environment import names
from holdfast.settings import Settings, folders_of


class EngineSettings(Settings):
    """DuckDB and Trino."""

    duckdb_dirs: str = Field(
        default="",
        description="Folders whose files DuckDB may read, comma separated. Default: none. "
        "A folder that contains HOLDFAST_DATA_DIR or HOLDFAST_CONFIG_DIR is refused.",
    )
    duckdb_attach: dict[str, Path] = Field(
        default_factory=dict, description='Databases that DuckDB attaches, read-only, as JSON: {"shop": "/data/shop.duckdb"}.'
    )
    duckdb_memory: str = Field(
        default="128MB", description="Memory limit of DuckDB; it spills to HOLDFAST_SCRATCH_DIR beyond it."
    )
    duckdb_max_spill: str = Field(
        default="10GB",
        pattern=r"(?i)^\s*\d+(\.\d+)?\s*([KMGT]i?B|B)\s*$",
        description="Disk limit of one DuckDB query in HOLDFAST_SCRATCH_DIR, like `10GB`; a query that needs more fails. "
        "HOLDFAST_EXPORT_STREAMS queries may run at once.",
    )
    duckdb_threads: int | None = Field(default=None, ge=1, description="Threads that DuckDB uses. Default: one per core.")
    trino_url: str | None = Field(
        default=None,
        json_schema_extra=names("STARBURST_URL"),
        description="Address of Trino, as https://trino.example.com; requests go to this origin only.",
    )
    trino_user: str | None = Field(
        default=None,
        json_schema_extra=names("STARBURST_USER"),
        description="User that queries run as.",
    )
    trino_password: SecretStr | None = Field(
        default=None,
        json_schema_extra=names("STARBURST_PASSWORD"),
        description="Password of that user; sent over https or to loopback only.",
    )
    trino_token: SecretStr | None = Field(default=None, description="Bearer token instead of the password.")
    trino_ca_file: Path | None = Field(default=None, description="File with CA certificates to trust instead of the system's.")
    trino_client_tags: str = Field(
        default="holdfast",
        json_schema_extra=names("STARBURST_CLIENT_TAGS", default="graph-olap-export"),
        description="Client tags of every query, comma separated, for Trino's resource groups.",
    )
    trino_source: str = Field(
        default="holdfast",
        json_schema_extra=names("STARBURST_SOURCE", default="graph-olap-export-worker"),
        description="Source of every query; the tag of the attempt follows after a slash.",
    )
    trino_request_timeout_seconds: float = Field(
        default=30.0,
        gt=0,
        json_schema_extra=names("STARBURST_REQUEST_TIMEOUT_SECONDS"),
        description="Read timeout of one request.",
    )
    trino_role_required: bool = Field(
        default=True, description="Refuse to run a query without a role. There is no default role."
    )
    trino_role_catalog: str = Field(default="system", description="Catalog that a query's role belongs to.")
    trino_encodings: str = Field(
        default="json+zstd,json+lz4,json", description="Accepted encodings of spooled results, best first; empty: no spooling."
    )
    trino_segment_origins: str = Field(
        default="",
        description="Origins of object stores from which spooled segments may be fetched, comma separated; "
        "credentials are not sent to them.",
    )
    trino_unload_function: str = Field(default="system.unload", description="Starburst's table function for unloading.")
    trino_ctas_schema: str | None = Field(
        default=None, description="The catalog.schema in which CTAS exports create their tables."
    )
    trino_ctas_location: Literal["location", "external_location"] = Field(
        default="location",
        description="Table property for the location of files: `location` for Iceberg, `external_location` for Hive.",
    )

    @property
    def duckdb_folders(self) -> list[Path]:
        """The folders whose files DuckDB may read."""
        return folders_of(self.duckdb_dirs)
