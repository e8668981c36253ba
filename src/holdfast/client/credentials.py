"""The token of the person at this terminal: in the environment, or in a file that only they can read."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple

from holdfast.errors import UsageError
from holdfast.settings import Settings

FILE = "credentials.json"


class Saved(NamedTuple):
    """What the last login left."""

    api_url: str
    token: str


def path(settings: Settings) -> Path:
    return settings.config_dir.expanduser() / FILE


def load(settings: Settings) -> Saved | None:
    """What the last login left, unless others could read it."""
    file = path(settings)
    try:
        mode = file.stat().st_mode
        found = json.loads(file.read_text())
        saved = Saved(str(found["api_url"]), str(found["token"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError(f"{file} cannot be read as credentials; remove it and run `holdfast auth login` again") from None
    if mode & 0o077:
        raise UsageError(f"others can read {file}, so the token in it is no secret: revoke it, then run `holdfast auth login`")
    return saved


def save(settings: Settings, saved: Saved) -> Path:
    """Keep a token; the file is never readable by others, not even for a moment."""
    file = path(settings)
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = file.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as writing:
        json.dump(saved._asdict(), writing)
    fresh.replace(file)
    return file


def forget(settings: Settings) -> bool:
    """Remove what the last login left; whether there was anything."""
    try:
        path(settings).unlink()
    except FileNotFoundError:
        return False
    return True


def token_for(api_url: str, settings: Settings, saved: Saved | None) -> str | None:
    """The token to send there. The one from a login goes to the address that it was made for, and nowhere else."""
    if settings.token is not None:
        return settings.token.get_secret_value()
    return saved.token if saved is not None and saved.api_url.rstrip("/") == api_url.rstrip("/") else None
