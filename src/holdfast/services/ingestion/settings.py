"""The settings of ingestion, with those of the stores that it uses."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, SecretStr

from holdfast.intervals import interval_of
from holdfast.settings import settings_as
from holdfast.stores.settings import StoreSettings


class IngestionSettings(StoreSettings):
    """What can be set for ingestion."""

    ingestion_to: str = Field(
        default="uploads",
        description="Where uploaded files and files of bad rows are kept: a folder, s3://bucket/prefix or gs://bucket/prefix. "
        "The same for the control plane and the workers.",
    )
    ingestion_largest_upload: int = Field(
        default=2 * 1024**3, ge=1, description="Maximum size of an uploaded file in bytes; larger uploads are refused with 413."
    )
    ingestion_most_errors: int = Field(
        default=10_000, ge=1, description="Maximum number of errors that are listed for a job. The file of bad rows has all."
    )
    ingestion_model: str = Field(default="co2", description="Name of the data model that requests without one refer to.")
    ingestion_api_origins: str = Field(
        default="",
        description="Origins that `api_ingest` may call, as https://host, comma separated. The model has the address.",
    )
    ingestion_api_token: SecretStr | None = Field(
        default=None, description="Bearer token for these origins. It is sent to no other origin, and redirects are refused."
    )
    ingestion_staging_job_interval_seconds: float | None = interval_of("ingestion_staging")

    @property
    def upload_folders(self) -> list[Path]:
        """The local folders that ingestion may write to."""
        return [] if "://" in self.ingestion_to else [Path(self.ingestion_to).expanduser()]


def ingestion_settings() -> IngestionSettings:
    """The settings of this process."""
    return settings_as(IngestionSettings)
