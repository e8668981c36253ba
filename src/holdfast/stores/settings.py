"""The settings of the object stores, for every service that writes files."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, SecretStr

from holdfast.environment import names
from holdfast.settings import Settings


class StoreSettings(Settings):
    """S3, GCS and local folders."""

    s3_endpoint: str | None = Field(
        default=None,
        json_schema_extra=names(standard=("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")),
        description="Endpoint of an S3-compatible server. Default: AWS.",
    )
    s3_region: str | None = Field(
        default=None,
        json_schema_extra=names(standard=("AWS_REGION", "AWS_DEFAULT_REGION")),
        description="Region of S3 buckets.",
    )
    s3_access_key_id: str | None = Field(
        default=None,
        description="Access key for S3. Default: the credential chain of the AWS SDKs (AWS_ACCESS_KEY_ID, profile, role).",
    )
    s3_secret_access_key: SecretStr | None = Field(default=None, description="Secret of that key.")
    s3_credentials_file: Path | None = Field(
        default=None, description="File like ~/.aws/credentials; it is read again when the server refuses the credentials."
    )
    gcs_endpoint: str | None = Field(default=None, description="Endpoint of a GCS-compatible server. Default: Google Cloud.")
    gcs_credentials_file: Path | None = Field(
        default=None,
        description="Key file of a service account; it is read again when GCS refuses it. Default: application default "
        "credentials.",
    )
    gcs_token_file: Path | None = Field(default=None, description="File with a bearer token that another program renews.")

    @property
    def writable_folders(self) -> list[Path]:
        """The local folders that a store may write to. A service overrides it with its own."""
        return []
