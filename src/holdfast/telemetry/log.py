"""Structured logs: `log.info("job_completed", job_id=7)`. Every event's name stands in `names.py`.

As a library Holdfast logs to the standard logger `holdfast` and leaves the rest to its host; our own programs call
`configure`, and then whatever a handler writes, with structlog or with the standard library, becomes a line of the same form.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Sequence
from typing import Any

import structlog
from structlog.stdlib import ProcessorFormatter
from structlog.typing import EventDict, WrappedLogger

from holdfast.telemetry import redact
from holdfast.telemetry.fields import add_job

TALKATIVE = ("alembic", "apscheduler", "httpcore", "httpx")  # libraries that tell every step at the level of news


def add_exception(logger: WrappedLogger, name: str, event: EventDict) -> EventDict:
    """What was raised, as text."""
    return structlog.processors.format_exc_info(logger, name, event)


def add_extra(logger: WrappedLogger, name: str, event: EventDict) -> EventDict:
    """What was given as `extra=`, but not what another handler has left on the record."""
    added = structlog.stdlib.ExtraAdder()(logger, name, event)
    added.pop("message", None)
    added.pop("asctime", None)
    return added


def add_logger_name(_logger: WrappedLogger, _name: str, event: EventDict) -> EventDict:
    """Which logger wrote the line, on every line: `holdfast`, or the name of a handler's or a library's logger."""
    record: logging.LogRecord = event["_record"]
    event.setdefault("logger", record.name)
    return event


def _clean(_logger: WrappedLogger, _name: str, event: EventDict) -> EventDict:
    """After the exception became text, and before anything is rendered."""
    return redact.fields(event)


def _escape_for_terminal(_logger: WrappedLogger, _name: str, event: EventDict) -> EventDict:
    """A text of somebody else cannot look like a line of ours: new lines stay in tracebacks alone, and those are indented."""
    shown = {redact.escaped(name): redact.escaped(v) if isinstance(v, str) else v for name, v in event.items()}
    for name in ("exception", "stack"):
        if name in event:
            shown[name] = "\n".join(f"    {line}" for line in redact.escaped(str(event[name]), but="\n").split("\n"))
    return shown


BEFORE: list[Any] = [
    structlog.contextvars.merge_contextvars,
    add_job,
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]
_plain = structlog.processors.KeyValueRenderer(key_order=["event"])
_configuration: dict[str, Any] | None = None
_handler: logging.Handler | None = None


def render(logger: WrappedLogger, name: str, event: EventDict) -> Any:
    """Left to our handler where there is one; a host gets a line of text."""
    if _configuration is not None:
        return ProcessorFormatter.wrap_for_formatter(logger, name, event)
    return _plain(logger, name, _clean(logger, name, add_exception(logger, name, event)))


class Logger(structlog.stdlib.BoundLogger):
    """As structlog's, but a trace goes through our processors only: the standard logger would write it again, as it is."""

    def exception(self, event: str | None = None, *args: Any, **kw: Any) -> Any:
        """An error with the trace of what is being handled."""
        kw.setdefault("exc_info", True)
        return self.error(event, *args, **kw)


log: Any = structlog.wrap_logger(
    logging.getLogger("holdfast"),
    processors=[structlog.stdlib.filter_by_level, *BEFORE, render],
    wrapper_class=Logger,
)


def configuration() -> dict[str, Any] | None:
    """What `configure` was called with, for a process that is to log like this one; None: the host does as it likes."""
    return None if _configuration is None else {**_configuration, "secrets": redact.hidden()}


class _Unfailing(logging.StreamHandler[Any]):
    """A log that cannot be written must not end what it is about: where standard error is gone, Python's own report of that
    fails too, and whoever said something in a worker would be ended by having said it."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the standard library's name
        with contextlib.suppress(ValueError, OSError):
            super().handleError(record)


def configure(*, json: bool = False, level: int = logging.INFO, secrets: Sequence[str] = ()) -> None:
    """Write all logs of this process to its standard error: JSON lines for machines, colours for people."""
    global _configuration, _handler
    root = logging.getLogger()
    if _handler is not None:
        root.removeHandler(_handler)
    _configuration = {"json": json, "level": level}
    redact.hide(*secrets)
    _handler = _Unfailing(sys.stderr)
    _handler.setFormatter(_formatter(json=json))
    root.addHandler(_handler)
    root.setLevel(level)
    for name in TALKATIVE:
        logging.getLogger(name).setLevel(max(level, logging.WARNING) if level > logging.DEBUG else level)
    if not structlog.is_configured():  # a handler's own `structlog.get_logger()`; modules that configure it come later
        structlog.configure(
            processors=[structlog.stdlib.filter_by_level, *BEFORE, ProcessorFormatter.wrap_for_formatter],
            wrapper_class=Logger,
            logger_factory=structlog.stdlib.LoggerFactory(),
        )


def _formatter(*, json: bool) -> logging.Formatter:
    ending: list[Any] = [add_logger_name, ProcessorFormatter.remove_processors_meta, add_exception, _clean]
    if json:
        ending.append(structlog.processors.JSONRenderer())
    else:
        colours = sys.stderr.isatty()
        ending += [_escape_for_terminal, structlog.dev.ConsoleRenderer(colors=colours)]
    return ProcessorFormatter(foreign_pre_chain=[*BEFORE, add_extra], processors=ending)
