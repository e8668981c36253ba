"""The logger for modules that many programs import and that log rarely: structlog is loaded when the first line is written.

structlog brings rich and takes a fifth of the time in which a command starts. Used by: the kernel.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


class LazyLog:
    """The logger of `log.py`, loaded when it is first used."""

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module("holdfast.telemetry.log").log, name)


log: Any = LazyLog()
