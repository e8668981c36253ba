"""Capture the log lines of handlers, to store them with the job: each line that is logged inside an attempt goes to a `Book`.

`ctx.log` writes there directly. Lines of the standard library's `logging`, also from structlog, are captured at the root logger
while a worker runs in this process. An application whose structlog prints directly adds `keep` to its processors.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, Protocol

import structlog
from structlog.typing import EventDict, WrappedLogger

from holdfast.telemetry import fields, redact
from holdfast.telemetry.log import BEFORE, Logger, add_exception, add_extra, add_own_handler, is_only_handler, render

LEVELS: Final = ("debug", "info", "warning", "error", "critical")
LONGEST_MESSAGE = 4_000  # characters
LONGEST_TRACE = 6_000
LONGEST_VALUE = 1_000
MOST_FIELDS = 40
LARGEST_FIELDS = 16_000  # characters of JSON
ROUGH = 4 * LONGEST_TRACE  # characters of one text that are searched for secrets
ROOM = 20 * LARGEST_FIELDS  # characters of all texts of a line
CUT = " … "
TRACES = ("exception", "stack")


class Line(NamedTuple):
    """One log line without secrets, of bounded size, that Postgres can store."""

    said_at: str  # by the clock of the process that logged it
    level: str
    message: str
    fields: dict[str, Any]


class Book(Protocol):
    """Stores the lines of attempts."""

    def keep(self, attempt: fields.Attempt, line: Line) -> None:
        """Store a line. Called from any thread."""
        ...


_book: ContextVar[Book | None] = ContextVar("holdfast_book", default=None)
into = _book.set  # in this task; tasks and threads that a handler starts inherit it


# ---------------------------------------------------------------------------------------------------------------------
# Capturing
# ---------------------------------------------------------------------------------------------------------------------


def keep(_logger: WrappedLogger, name: str, event: EventDict) -> EventDict:
    """A structlog processor that stores the line and passes it on unchanged. Outside of an attempt it does nothing."""
    book, attempt = _book.get(), fields.current()
    if book is not None and attempt is not None:
        book.keep(attempt, _line_of_event(event, event.get("level", name), _stamp(_logger, name, {})["timestamp"]))
    return event


_stamp = structlog.processors.TimeStamper(fmt="iso", utc=True)


class LogCapture(logging.Handler):
    """Captures at the root logger what is logged inside attempts."""

    def emit(self, record: logging.LogRecord) -> None:
        self._write_by_default(record)
        book, attempt = _book.get(), fields.current()
        if book is None or attempt is None or record.name == JOB_LOGGER:
            return
        try:
            book.keep(attempt, _line_of_record(record))
        except Exception:  # a line that cannot be kept must not fail the handler that wrote it
            self.handleError(record)

    def _write_by_default(self, record: logging.LogRecord) -> None:
        """Without any handler Python writes warnings to standard error. This handler must not end that."""
        last = logging.lastResort
        if last is None or record.levelno < last.level or record.name.partition(".")[0] == "holdfast":
            return  # those of `holdfast` have a handler, see `log_by_default`
        if is_only_handler(self, record.name):
            last.handle(record)


_capture = LogCapture()
add_own_handler(_capture)
_listeners = 0


def listen() -> None:
    """Start capturing: a worker starts in this process."""
    global _listeners
    _listeners += 1
    if _listeners == 1:
        logging.getLogger().addHandler(_capture)


def stop_listening() -> None:
    """Stop capturing: a worker has ended."""
    global _listeners
    _listeners -= 1
    if _listeners == 0:
        logging.getLogger().removeHandler(_capture)


# ---------------------------------------------------------------------------------------------------------------------
# `ctx.log`
# ---------------------------------------------------------------------------------------------------------------------

JOB_LOGGER: Final = "holdfast.job"


def _go_on_if_enabled(logger: WrappedLogger, name: str, event: EventDict) -> EventDict:
    """Drop a line that is below the log level of this process; it was stored before."""
    return structlog.stdlib.filter_by_level(logger, name, event)


def _keep_if_news(logger: WrappedLogger, name: str, event: EventDict) -> EventDict:
    """Store lines from level info on in any case; debug lines only if the log of the process has them too."""
    if name != "debug" or logger.isEnabledFor(logging.DEBUG):
        keep(logger, name, event)
    return event


job_log: Any = structlog.wrap_logger(
    logging.getLogger(JOB_LOGGER),
    processors=[structlog.stdlib.PositionalArgumentsFormatter(), *BEFORE, _keep_if_news, _go_on_if_enabled, render],
    wrapper_class=Logger,
)


# ---------------------------------------------------------------------------------------------------------------------
# One line
# ---------------------------------------------------------------------------------------------------------------------


def _line_of_record(record: logging.LogRecord) -> Line:
    said_at = datetime.fromtimestamp(record.created, UTC).isoformat()
    level = level_of(record.levelno)
    if isinstance(record.msg, dict):  # from structlog, not yet formatted
        return _line_of_event(record.msg, level, said_at)
    event: EventDict = {"event": record.getMessage(), "logger": record.name, "_record": record}
    if record.exc_info:
        event["exc_info"] = record.exc_info
    if record.stack_info:
        event["stack"] = record.stack_info
    return _line_of_event(add_extra(None, "", event), level, said_at)


def _line_of_event(event: Mapping[str, Any], level: str, said_at: str) -> Line:
    said = dict(event)
    said.pop("timestamp", None), said.pop("level", None)
    message = str(said.pop("event", ""))
    if said.get("exc_info"):
        said = dict(add_exception(None, "", said))
    said.pop("exc_info", None)
    known = fields.job_fields()
    own = {
        name: value
        for name, value in said.items()
        if not name.startswith("_") and not (name in known and str(known[name]) == str(value))  # the job fields are known
    }
    return tidy(said_at, level, message, own)


def level_of(number: int) -> str:
    """The name of the nearest level below."""
    return LEVELS[max(0, min(number // 10 - 1, len(LEVELS) - 1))]


def tidy(said_at: str, level: str, message: str, own: Mapping[str, Any]) -> Line:
    """A line without secrets and of bounded size. Pure, except for the registered secrets."""
    shown = redact.fields(_roughly(dict(list(own.items())[:MOST_FIELDS]), _Room(ROOM)))
    bounded = {
        _plain(name, 100): _bounded(value, LONGEST_TRACE if name in TRACES else LONGEST_VALUE) for name, value in shown.items()
    }
    if len(own) > MOST_FIELDS:
        bounded["…"] = f"{len(own) - MOST_FIELDS} more fields"
    said = _plain(redact.text(_rough_text(message)), LONGEST_MESSAGE)
    return Line(said_at, level if level in LEVELS else "info", said, _within(bounded))


@dataclass(slots=True)
class _Room:
    """How many more characters of a line are processed."""

    left: int


def _roughly(value: Any, room: _Room, depth: int = 0) -> Any:
    """Cut a huge value before the search for secrets, which would take seconds. Much more is left than is stored in the end, so
    that a secret that is cut here is not in the stored part."""
    if isinstance(value, str):
        if room.left <= 0:
            return CUT
        text = _rough_text(value)
        room.left -= len(text)
        return text
    if depth < redact.DEEPEST and isinstance(value, dict):
        return {_rough_name(name): _roughly(inner, room, depth + 1) for name, inner in list(value.items())[:MOST_FIELDS]}
    if depth < redact.DEEPEST and isinstance(value, (list, tuple)):
        return [_roughly(inner, room, depth + 1) for inner in value[:MOST_FIELDS]]
    return value


def _rough_name(name: Any) -> Any:
    return name[:ROUGH] if isinstance(name, str) else name


def _rough_text(text: str) -> str:
    return text if len(text) <= ROUGH else text[: ROUGH // 2] + text[-ROUGH // 2 :]


def _within(bounded: dict[str, Any]) -> dict[str, Any]:
    """The fields, without the largest values if they are too large together."""
    sizes = {name: len(json.dumps(value)) + len(name) for name, value in bounded.items()}
    too_much = sum(sizes.values()) - LARGEST_FIELDS
    for name in sorted(sizes, key=lambda name: (name in TRACES, -sizes[name])):
        if too_much <= 0:
            break
        bounded[name] = f"left out: {sizes[name]:,} characters"
        too_much -= sizes[name]
    return bounded


def _bounded(value: Any, longest: int) -> Any:
    """Plain data that can be stored as JSON in Postgres, with no text longer than `longest`."""
    if isinstance(value, str):
        return _plain(value, longest)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 2**63:
        return _plain(str(value), longest) if abs(value) < 10**4000 else "a very large number"
    if isinstance(value, dict):
        return {_plain(str(name), 100): _bounded(inner, longest) for name, inner in list(value.items())[:MOST_FIELDS]}
    if isinstance(value, list):
        return [_bounded(inner, longest) for inner in value[:MOST_FIELDS]]
    return value


def _plain(text: str, longest: int) -> str:
    """Text without characters that Postgres cannot store. Of a long text the beginning and a larger part of the end are
    kept."""
    if len(text) > longest:
        head = longest // 4
        text = text[:head] + CUT + text[len(text) - (longest - head - len(CUT)) :]
    return text.replace("\x00", "\N{SYMBOL FOR NULL}").encode("utf-8", "replace").decode("utf-8")
