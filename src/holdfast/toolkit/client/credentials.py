"""The API token of a user: from the environment, or from a file that only this user can read."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple, Protocol

from holdfast.errors import UsageError

FILE = "credentials.json"


class HasCredentials(Protocol):
    """What of the settings is used here."""

    @property
    def config_dir(self) -> Path: ...

    @property
    def token(self) -> str | None: ...


class Saved(NamedTuple):
    """What the last login saved."""

    api_url: str
    token: str


def path(settings: HasCredentials) -> Path:
    return settings.config_dir.expanduser() / FILE


def load(settings: HasCredentials) -> Saved | None:
    """What the last login saved; refused if other users can read the file."""
    file = path(settings)
    try:
        mode = file.stat().st_mode
        found = json.loads(file.read_text())
        saved = Saved(str(found["api_url"]), str(found["token"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError(f"{file} is not a credentials file; remove it and run `holdfast auth login` again") from None
    if mode & 0o077:
        raise UsageError(f"other users can read {file}: revoke the token in it, then run `holdfast auth login` again")
    return saved


def save(settings: HasCredentials, saved: Saved) -> Path:
    """Save a token. The file is never readable by others, not even for a moment."""
    file = path(settings)
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = file.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as writing:
        json.dump(saved._asdict(), writing)
    fresh.replace(file)
    return file


def forget(settings: HasCredentials) -> bool:
    """Remove what the last login saved; whether there was anything."""
    try:
        path(settings).unlink()
    except FileNotFoundError:
        return False
    return True


def token_for(api_url: str, settings: HasCredentials, saved: Saved | None) -> str | None:
    """The token for this API. The saved token is sent only to the address of its login."""
    if settings.token is not None:
        return settings.token
    return saved.token if saved is not None and saved.api_url.rstrip("/") == api_url.rstrip("/") else None
