"""Credentials of object stores: given as values, or in files that are read again each time, because secrets are rotated.

Without either, obstore uses the vendor's usual chain: environment, machine profile, workload identity.
"""

from __future__ import annotations

import configparser
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from holdfast.stores.port import StoreDenied

KEYS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")


@dataclass(frozen=True, slots=True)
class Opened:
    """Options of an obstore client. `secrets` are those of their values that must not be logged."""

    options: dict[str, Any]
    allow_http: bool = False
    secrets: tuple[str, ...] = field(default=(), repr=False)


class Credentials(Protocol):
    """A source of credentials."""

    def read(self) -> Opened: ...


@dataclass(frozen=True)
class S3Credentials:
    """An endpoint, and a key as a value or in a file like `~/.aws/credentials`."""

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
    """An endpoint, and a file with a service account key or with a bearer token that another program refreshes."""

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


def _profile(file: Path) -> Mapping[str, str]:
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string(read_secret(file))
    return parser["default"] if parser.has_section("default") else {}


def read_secret(file: Path) -> str:
    """The content of the file. A missing file is a transient error: it may be missing for a moment during a rotation."""
    try:
        return file.expanduser().read_text()
    except OSError as error:
        raise StoreDenied(f"the credentials cannot be read: {error}") from None


def _is_http(endpoint: str | None) -> bool:
    return endpoint is not None and endpoint.startswith("http://")
