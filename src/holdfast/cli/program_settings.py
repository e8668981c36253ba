"""The settings of a program with the options of its command line. Called by: up, serve, worker, scheduler."""

from __future__ import annotations

from typing import Any

from holdfast.settings import Settings, settings
from holdfast.toolkit.cli.transport import checked_dsn


def program_settings(*, dsn: str | None = None, **options: Any) -> Settings:
    """The settings; options that are None are left as they are."""
    given = {"database_url": None if dsn is None else checked_dsn(dsn), **options}
    return settings().model_copy(update={name: value for name, value in given.items() if value is not None})
