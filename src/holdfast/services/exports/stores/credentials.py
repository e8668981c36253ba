"""What opens a bucket: from the settings, or from files that are read anew each time, as rotated secrets are.

Without either, obstore looks where every client of the vendor looks: environment, profile of the machine, workload identity.
"""

from __future__ import annotations

import configparser
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from holdfast.services.exports.stores.port import StoreDenied
from holdfast.settings import Settings

KEYS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")


@dataclass(frozen=True, slots=True)
class Opened:
    """Options for a client, and which of their values must not be written anywhere."""

    options: dict[str, Any]
    allow_http: bool = False
    secrets: tuple[str, ...] = field(default=(), repr=False)


class Credentials(Protocol):
    """Where they come from."""

    def read(self) -> Opened: ...


@dataclass(frozen=True)
class S3Credentials:
    """An endpoint, and a key from the settings or from a file in the form of `~/.aws/credentials`."""

    endpoint: str | None = None
    region: str | None = None
    key_id: str | None = None
    key: str | None = field(default=None, repr=False)
    file: Path | None = None

    def read(self) -> Opened:
        named = {"aws_access_key_id": self.key_id, "aws_secret_access_key": self.key}
        if self.file is not None:
            named = {name: _profile(self.file).get(name) for name in KEYS}
        keys = {name.removeprefix("aws_"): value for name, value in named.items() if value}
        where = {"endpoint": self.endpoint, "region": self.region}
        options = {name: value for name, value in where.items() if value} | keys
        secrets = tuple(value for name, value in keys.items() if name != "access_key_id")
        return Opened(options, _is_http(self.endpoint), secrets)


@dataclass(frozen=True)
class GcsCredentials:
    """An endpoint, and a file with the key of a service account, or one with a token that somebody else keeps fresh."""

    endpoint: str | None = None
    file: Path | None = None
    token_file: Path | None = None

    def read(self) -> Opened:
        options: dict[str, Any] = {"base_url": self.endpoint} if self.endpoint else {}
        if self.token_file is not None:
            token = read_secret(self.token_file).strip()
            return Opened(options | {"bearer_token": token}, _is_http(self.endpoint), (token,))
        if self.file is not None:
            options["service_account_key"] = read_secret(self.file)
        return Opened(options, _is_http(self.endpoint))


def credentials_for(scheme: str, settings: Settings) -> Credentials:
    """What the settings say about a kind of store."""
    if scheme == "s3":
        key = settings.s3_secret_access_key
        return S3Credentials(
            settings.s3_endpoint,
            settings.s3_region,
            settings.s3_access_key_id,
            key.get_secret_value() if key else None,
            settings.s3_credentials_file,
        )
    return GcsCredentials(settings.gcs_endpoint, settings.gcs_credentials_file, settings.gcs_token_file)


def _profile(file: Path) -> Mapping[str, str]:
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string(read_secret(file))
    return parser["default"] if parser.has_section("default") else {}


def read_secret(file: Path) -> str:
    """What is in the file now. That it is missing for a moment, as while it is rotated, is worth another try."""
    try:
        return file.expanduser().read_text()
    except OSError as error:
        raise StoreDenied(f"the credentials cannot be read: {error}") from None


def _is_http(endpoint: str | None) -> bool:
    return endpoint is not None and endpoint.startswith("http://")
