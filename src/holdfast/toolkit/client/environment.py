"""The few settings that the command line and the HTTP client need, read without pydantic.

Loading `holdfast.settings` takes a quarter of a second, which is more than a command needs for its work. The values, defaults
and names are those of `Settings`, and a test compares them. Whatever is not a plain value is left to `Settings`, which
reports the error.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

PREFIX = "HOLDFAST_"
OTHER_NAMES = frozenset({"CONTROL_PLANE_URL"})  # further names of these settings: `Settings` decides whether they count
BOOLEANS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}


class ClientSettings(NamedTuple):
    """The settings of a client."""

    database_url: str | None = None
    data_dir: Path = Path(".holdfast")
    port: int = 54329
    api_url: str | None = None
    token: str | None = None
    config_dir: Path = Path("~/.config/holdfast")
    plain_http: bool = False


def client_settings(environ: Mapping[str, str] | None = None) -> ClientSettings:
    """The settings as the environment has them."""
    found = os.environ if environ is None else environ
    if not OTHER_NAMES.isdisjoint(name.upper() for name in found):
        return _from_settings()
    given = {
        name.upper().removeprefix(PREFIX).lower(): value for name, value in found.items() if name.upper().startswith(PREFIX)
    }
    port, plain_http = given.get("port", "54329"), given.get("plain_http", "false").lower()
    if not (port.isascii() and port.isdecimal()) or plain_http not in BOOLEANS:
        return _from_settings()
    default = ClientSettings()
    return ClientSettings(
        given.get("database_url"),
        Path(given.get("data_dir", default.data_dir)),
        int(port),
        given.get("api_url"),
        given.get("token"),
        Path(given.get("config_dir", default.config_dir)),
        BOOLEANS[plain_http],
    )


def _from_settings() -> ClientSettings:
    full: Any = import_module("holdfast.settings").Settings()
    token = None if full.token is None else full.token.get_secret_value()
    values = {name: getattr(full, name) for name in ClientSettings._fields if name != "token"}
    return ClientSettings(**values, token=token)
