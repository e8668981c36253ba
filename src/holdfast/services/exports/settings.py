"""The settings of exports, with those of the engines and stores that they use."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import Field

from holdfast.engines.settings import EngineSettings
from holdfast.environment import names
from holdfast.intervals import SHORTEST_INTERVAL, interval_of
from holdfast.settings import folders_of, settings_as
from holdfast.stores.settings import StoreSettings


class ExportsSettings(EngineSettings, StoreSettings):
    """What can be set for exports."""

    INTERVAL_PRESETS: ClassVar[dict[str, dict[str, float]]] = {
        "conservative": {"lifecycle": 600.0},
        "aggressive": {"lifecycle": 300.0},
    }

    export_dirs: str = Field(
        default="exports",
        description="Local folders that exports may write to, comma separated, besides HOLDFAST_SNAPSHOTS_TO; "
        "never HOLDFAST_DATA_DIR or HOLDFAST_CONFIG_DIR.",
    )
    snapshots_to: str = Field(
        default="snapshots",
        description="Where snapshots are written, one subfolder each: a folder, s3://bucket/prefix or gs://bucket/prefix.",
    )
    export_buckets: str = Field(
        default="",
        description="Addresses in object stores that `exports.run` may write below, as s3://bucket/prefix or gs://bucket, "
        "comma separated, besides HOLDFAST_SNAPSHOTS_TO. Set it for the control plane and the workers.",
    )
    direct_export: bool = Field(
        default=True,
        json_schema_extra=names("DIRECT_EXPORT"),
        description="Whether exports stream rows through the worker; false: the engine writes the files where it can.",
    )
    mappings_read_files: bool = Field(
        default=False, description="Whether the SQL of mappings may read files; only files below HOLDFAST_DUCKDB_DIRS."
    )
    export_streams: int = Field(
        default=2,
        ge=1,
        description="Maximum number of exports that stream through one worker process at once. Each needs about 100 MiB and "
        "HOLDFAST_DUCKDB_MEMORY. Exports that the engine writes are not counted.",
    )
    lifecycle_job_interval_seconds: float | None = interval_of("lifecycle", SHORTEST_INTERVAL)
    export_reconciliation_job_interval_seconds: float | None = interval_of("export_reconciliation")
    schema_cache_job_interval_seconds: float | None = interval_of("schema_cache", SHORTEST_INTERVAL)

    @property
    def writable_folders(self) -> list[Path]:
        """The local folders that exports may write to: HOLDFAST_EXPORT_DIRS, and HOLDFAST_SNAPSHOTS_TO if it is a folder."""
        snapshots = [] if "://" in self.snapshots_to else [Path(self.snapshots_to).expanduser()]
        return [*folders_of(self.export_dirs), *snapshots]

    @property
    def export_addresses(self) -> list[str]:
        """Where `exports.run` may write in object stores."""
        buckets = [one.strip() for one in self.export_buckets.split(",") if one.strip()]
        return [*buckets, self.snapshots_to] if "://" in self.snapshots_to else buckets


def exports_settings() -> ExportsSettings:
    """The settings of this process."""
    return settings_as(ExportsSettings)
