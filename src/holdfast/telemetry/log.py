"""Structured logs: `log.info("job_completed", job_id=7)`. Every event's name stands in `names.py`.

As a library Holdfast logs to the standard logger `holdfast` and leaves the rest to its host; our own programs call
`configure`.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog

_renderer: Any = structlog.processors.KeyValueRenderer(key_order=["event"])


def _render(logger: Any, name: str, event: Any) -> Any:
    return _renderer(logger, name, event)


log: Any = structlog.wrap_logger(
    logging.getLogger("holdfast"),
    processors=[
        structlog.stdlib.filter_by_level,
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        _render,
    ],
    wrapper_class=structlog.stdlib.BoundLogger,
)


_configuration: dict[str, Any] | None = None


def configuration() -> dict[str, Any] | None:
    """What `configure` was called with, for a process that is to log like this one; None: the host does as it likes."""
    return _configuration


def configure(*, json: bool = False, level: int = logging.INFO) -> None:
    """Write the logs of this process to its standard error: JSON lines for machines, colours for people."""
    global _renderer, _configuration
    _configuration = {"json": json, "level": level}
    _renderer = structlog.processors.JSONRenderer() if json else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.getLogger("holdfast")
    logger.handlers[:] = [handler]
    logger.setLevel(level)
    logger.propagate = False
