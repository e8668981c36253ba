"""What a handler says is kept for people who ask why: each line that is written inside an attempt goes to a book.

`ctx.log` writes there by itself. Whatever goes through the standard library's `logging`, also from structlog, is seen at the
root logger while a worker runs in this process. A host whose structlog prints by itself puts `keep` among its processors.
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
from holdfast.telemetry.log import BEFORE, Logger, add_exception, add_extra, render

LEVELS: Final = ("debug", "info", "warning", "error", "critical")
LONGEST_MESSAGE = 4_000  # characters
LONGEST_TRACE = 6_000
LONGEST_VALUE = 1_000
MOST_FIELDS = 40
LARGEST_FIELDS = 16_000  # characters of JSON
ROUGH = 4 * LONGEST_TRACE  # of one text, before it is searched for secrets
ROOM = 20 * LARGEST_FIELDS  # of all of them
CUT = " … "
TRACES = ("exception", "stack")


class Line(NamedTuple):
    """One line, tidy: without secrets, within bounds, and such that Postgres can store it."""

    said_at: str  # by the clock of whoever said it
    level: str
    message: str
    fields: dict[str, Any]


class Book(Protocol):
    """Where lines are kept."""

    def keep(self, attempt: fields.Attempt, line: Line) -> None:
        """From any thread."""
        ...


_book: ContextVar[Book | None] = ContextVar("holdfast_book", default=None)
into = _book.set  # in this task; tasks and threads that a handler starts inherit it


# ---------------------------------------------------------------------------------------------------------------------
# Hearing
# ---------------------------------------------------------------------------------------------------------------------


def keep(_logger: WrappedLogger, name: str, event: EventDict) -> EventDict:
    """A structlog processor: the line is kept, and goes on as it is. Outside of an attempt it does nothing."""
    book, attempt = _book.get(), fields.current()
    if book is not None and attempt is not None:
        book.keep(attempt, _line_of_event(event, event.get("level", name), _stamp(_logger, name, {})["timestamp"]))
    return event


_stamp = structlog.processors.TimeStamper(fmt="iso", utc=True)


class Ear(logging.Handler):
    """Hears what is logged inside attempts, at the root logger."""

    def emit(self, record: logging.LogRecord) -> None:
        self._speak_for_nobody(record)
        book, attempt = _book.get(), fields.current()
        if book is None or attempt is None or record.name == JOB_LOGGER:
            return
        try:
            book.keep(attempt, _line_of_record(record))
        except Exception:  # what cannot be said must not fail whoever says it
            self.handleError(record)

    def _speak_for_nobody(self, record: logging.LogRecord) -> None:
        """Where nobody has configured anything, Python writes warnings to standard error; that we listen must not end that."""
        last = logging.lastResort
        if last is not None and record.levelno >= last.level and _is_alone(self, record.name):
            last.handle(record)


def _is_alone(ear: logging.Handler, name: str) -> bool:
    """Whether no other handler hears a logger of this name."""
    logger: logging.Logger | None = logging.getLogger(name)
    while logger is not None:
        if any(handler is not ear for handler in logger.handlers):
            return False
        logger = logger.parent if logger.propagate else None
    return True


_ear = Ear()
_listeners = 0


def listen() -> None:
    """A worker begins in this process."""
    global _listeners
    _listeners += 1
    if _listeners == 1:
        logging.getLogger().addHandler(_ear)


def stop_listening() -> None:
    """It has ended."""
    global _listeners
    _listeners -= 1
    if _listeners == 0:
        logging.getLogger().removeHandler(_ear)


# ---------------------------------------------------------------------------------------------------------------------
# `ctx.log`
# ---------------------------------------------------------------------------------------------------------------------

JOB_LOGGER: Final = "holdfast.job"


def _go_on_if_enabled(logger: WrappedLogger, name: str, event: EventDict) -> EventDict:
    """What is kept need not be written to this process's log as well: its level decides that."""
    return structlog.stdlib.filter_by_level(logger, name, event)


def _keep_if_news(logger: WrappedLogger, name: str, event: EventDict) -> EventDict:
    """From news on, whatever the level of the process's log is; what is finer, if that log would have it too."""
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
    if isinstance(record.msg, dict):  # structlog's, on its way to its formatter
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
        if not name.startswith("_") and not (name in known and str(known[name]) == str(value))  # which job it is, is known
    }
    return tidy(said_at, level, message, own)


def level_of(number: int) -> str:
    """The nearest level below that has a name of ours."""
    return LEVELS[max(0, min(number // 10 - 1, len(LEVELS) - 1))]


def tidy(said_at: str, level: str, message: str, own: Mapping[str, Any]) -> Line:
    """A line without secrets and within bounds, whoever said it. Pure, but for what is known to be secret."""
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
    """How many characters of a line are still looked at."""

    left: int


def _roughly(value: Any, room: _Room, depth: int = 0) -> Any:
    """No more of it than could be kept, before it is searched for secrets: that takes seconds for what is huge. Far more than
    is kept in the end, so that a secret which is cut here is cut off there."""
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
    """All of it if it is not too much; else the largest values are named and left out."""
    sizes = {name: len(json.dumps(value)) + len(name) for name, value in bounded.items()}
    too_much = sum(sizes.values()) - LARGEST_FIELDS
    for name in sorted(sizes, key=lambda name: (name in TRACES, -sizes[name])):
        if too_much <= 0:
            break
        bounded[name] = f"left out: {sizes[name]:,} characters"
        too_much -= sizes[name]
    return bounded


def _bounded(value: Any, longest: int) -> Any:
    """Plain data that JSON and Postgres can have, with no text longer than this."""
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
    """Without what Postgres cannot store; of a text that is too long, the beginning and, more of it, the end."""
    if len(text) > longest:
        head = longest // 4
        text = text[:head] + CUT + text[len(text) - (longest - head - len(CUT)) :]
    return text.replace("\x00", "\N{SYMBOL FOR NULL}").encode("utf-8", "replace").decode("utf-8")
