"""One finding of `holdfast doctor`: a check, how serious its result is, and how to fix it. Services yield these, too."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Level(StrEnum):
    """How serious a finding is."""

    OK = "ok"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Finding(NamedTuple):
    """The result of one check."""

    check: str
    level: Level
    message: str
    fix: str | None = None


def ok(check: str, message: str) -> Finding:
    """A check without a problem."""
    return Finding(check, Level.OK, message)
