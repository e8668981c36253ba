"""Structured logs: `log.info("job_completed", job_id=7)`. The names of all events are in `names.py`.

As a library Holdfast logs to the standard logger `holdfast` and leaves the rest to the application. Where the application has
not configured logging, a worker writes warnings and errors to standard error (`log_by_default`). Our own programs call
`configure`: every line of the process, from structlog or the standard library, then has the same format.
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

VERBOSE = ("alembic", "apscheduler", "httpcore2", "httpx2")  # libraries that log every step at level info


def add_exception(logger: WrappedLogger, name: str, event: EventDict) -> EventDict:
    """Add the exception as text."""
    return structlog.processors.format_exc_info(logger, name, event)


def add_extra(logger: WrappedLogger, name: str, event: EventDict) -> EventDict:
    """Add the fields of `extra=`, but not attributes that another handler has set on the record."""
    added = structlog.stdlib.ExtraAdder()(logger, name, event)
    added.pop("message", None)
    added.pop("asctime", None)
    return added


def add_logger_name(_logger: WrappedLogger, _name: str, event: EventDict) -> EventDict:
    """Add the name of the logger: `holdfast`, or that of a handler or a library."""
    record: logging.LogRecord = event["_record"]
    event.setdefault("logger", record.name)
    return event


def _clean(_logger: WrappedLogger, _name: str, event: EventDict) -> EventDict:
    """Remove secrets, after the exception was converted to text and before rendering."""
    return redact.fields(event)


def _escape_for_terminal(_logger: WrappedLogger, _name: str, event: EventDict) -> EventDict:
    """Escape foreign text, so that it cannot imitate a log line: only tracebacks keep newlines, and they are indented."""
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
    """Leave it to our own handler, if there is one; an application gets a line of text, and the traceback below it."""
    if _configuration is not None:
        return ProcessorFormatter.wrap_for_formatter(logger, name, event)
    clean = _clean(logger, name, add_exception(logger, name, event))
    trace = clean.pop("exception", None)
    line = _plain(logger, name, clean)
    return line if trace is None else f"{line}\n{str(trace).rstrip()}"


class Logger(structlog.stdlib.BoundLogger):
    """The structlog logger, except that only our processors write a traceback: the standard logger would write it again."""

    def exception(self, event: str | None = None, *args: Any, **kw: Any) -> Any:
        """Log an error with the traceback of the current exception."""
        kw.setdefault("exc_info", True)
        return self.error(event, *args, **kw)


log: Any = structlog.wrap_logger(
    logging.getLogger("holdfast"),
    processors=[structlog.stdlib.filter_by_level, *BEFORE, render],
    wrapper_class=Logger,
)


def configuration() -> dict[str, Any] | None:
    """The arguments of `configure`, for a child process that logs in the same way; None: it was not called."""
    return None if _configuration is None else {**_configuration, "secrets": redact.hidden()}


class _Unfailing(logging.StreamHandler[Any]):
    """A stream handler that never raises: if standard error is closed, Python's error report fails too, and the exception would
    end the code that logged."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the standard library's name
        with contextlib.suppress(ValueError, OSError):
            super().handleError(record)


class _DefaultHandler(_Unfailing):
    """Writes to standard error for as long as the application has configured no handler of its own."""

    def emit(self, record: logging.LogRecord) -> None:
        if is_only_handler(self, record.name):
            self.setStream(sys.stderr)  # the current one: a program may have replaced it
            super().emit(record)


_own_handlers: set[logging.Handler] = set()  # that we have added, and the application does not count as its own


def add_own_handler(handler: logging.Handler) -> None:
    """Tell `is_only_handler` that this handler is ours."""
    _own_handlers.add(handler)


def is_only_handler(ours: logging.Handler, name: str) -> bool:
    """Whether the application has no handler for a logger of this name."""
    logger: logging.Logger | None = logging.getLogger(name)
    while logger is not None:
        if any(handler is not ours and handler not in _own_handlers for handler in logger.handlers):
            return False
        logger = logger.parent if logger.propagate else None
    return True


_default_handler: _DefaultHandler | None = None


def log_by_default() -> None:
    """Write warnings and errors of `holdfast` to standard error, unless the application configures logging, now or later."""
    global _default_handler
    if _default_handler is None:
        _default_handler = _DefaultHandler(sys.stderr)
        _default_handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        add_own_handler(_default_handler)
        logging.getLogger("holdfast").addHandler(_default_handler)


def configure(*, json: bool = False, level: int = logging.INFO, secrets: Sequence[str] = ()) -> None:
    """Write all logs of this process to standard error: as JSON lines, or as coloured text."""
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
    for name in VERBOSE:
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
