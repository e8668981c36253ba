"""Stored log lines: without secrets, within bounds, and accepted by Postgres."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from holdfast.telemetry import fields, kept, redact
from holdfast.telemetry.kept import Line, job_log, level_of, tidy
from unit.telemetry.test_log import INJECTION, claim

NOW = "2026-01-01T00:00:00+00:00"


class Pages(list[Line]):
    """A book that is only a list."""

    def keep(self, attempt: Any, line: Line) -> None:
        self.append(line)


@pytest.fixture
def book(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pages]:
    """A book for what is logged inside an attempt."""
    pages = Pages()
    monkeypatch.setattr(redact, "_hidden", {})
    kept.into(pages)
    fields.of_attempt(claim(7, "a", None))
    kept.listen()
    yield pages
    kept.stop_listening()
    fields.of_attempt(None)
    kept.into(None)


def test_line_of_any_logger_is_kept_once(book: Pages):
    job_log.bind(part=2).info("rows %s", "loaded", rows=5)
    logging.getLogger("their.module").error("old %s", "style", extra={"rows": 6})

    assert [(line.level, line.message, line.fields) for line in book] == [
        ("info", "rows loaded", {"part": 2, "rows": 5}),
        ("error", "old style", {"rows": 6, "logger": "their.module"}),
    ]


def test_nothing_is_kept_outside_an_attempt(book: Pages):
    fields.of_attempt(None)

    job_log.info("nobody's")
    logging.getLogger("theirs").error("nobody's")

    assert book == []


def test_exception_is_kept_as_text(book: Pages):
    try:
        raise ValueError("it is broken")
    except ValueError:
        job_log.exception("first")
        logging.getLogger("theirs").exception("second")

    assert ["ValueError: it is broken" in line.fields["exception"] for line in book] == [True, True]


def test_debug_line_is_kept_only_if_the_process_logs_it(book: Pages, caplog: pytest.LogCaptureFixture):
    job_log.debug("not this")
    with caplog.at_level(logging.DEBUG):
        job_log.debug("this")

    assert [(line.level, line.message) for line in book] == [("debug", "this")]


def test_processor_is_available_for_hosts_that_render_lines(book: Pages):
    theirs = structlog.wrap_logger(structlog.ReturnLogger(), processors=[kept.keep, structlog.processors.JSONRenderer()])

    said = theirs.warning("theirs", rows=5)

    assert json.loads(said) == {"event": "theirs", "rows": 5}
    assert [(line.level, line.message, line.fields) for line in book] == [("warning", "theirs", {"rows": 5})]


def test_capture_keeps_pythons_last_resort_handler(
    book: Pages, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Where nothing is configured, warnings go to standard error."""
    alone = [handler for handler in logging.getLogger().handlers if isinstance(handler, kept.LogCapture)]
    monkeypatch.setattr(logging.getLogger(), "handlers", alone)

    logging.getLogger("theirs").warning("to be seen")
    logging.getLogger("theirs").info("not to be seen")

    assert capsys.readouterr().err == "to be seen\n"


def test_f_75_secrets_are_not_kept(book: Pages):
    """Q-02, V-04: by its name, by its look, and because it is known."""
    redact.hide("the-canary")

    job_log.info("the-canary", password="other", nested={"api_key": "other", "url": "postgresql://ops:other@db/x"})
    logging.getLogger("theirs").info("Bearer %s", "otherother", extra={"x": ["the-canary"]})
    logging.getLogger("theirs").error("Bearer %s", "otherother", extra={"x": ["the-canary"]})
    try:
        raise RuntimeError("the-canary")
    except RuntimeError:
        job_log.exception("failed")

    assert len(book) >= 3
    assert "the-canary" not in str(book)
    assert "other" not in str(book)


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ("a\x00b", "a\N{SYMBOL FOR NULL}b"),
        ("\ud800", "?"),
        (float("nan"), "nan"),
        (2**70, str(2**70)),
        (True, True),
        ({1: {"x": "\x00"}}, {"1": {"x": "\N{SYMBOL FOR NULL}"}}),
        (b"raw", "b'raw'"),
    ],
)
def test_characters_that_postgres_cannot_store_are_escaped(given: Any, stored: Any):
    assert tidy(NOW, "info", "m", {"x": given}).fields == {"x": stored}


@pytest.mark.parametrize(
    "own",
    [
        {f"field {n}": n for n in range(10_000)},
        {f"f{n}": "x" * 100_000 for n in range(100)},
        {"exception": "x" * 1_000_000, "deep": [[[["y" * 5_000] * 100] * 100]]},
        {"n" * 100_000: {"m" * 100_000: 1}},
    ],
)
def test_line_size_is_bounded(own: dict[str, Any]):
    line = tidy(NOW, "info", "\N{GRINNING FACE}" * 50_000, own)

    assert len(line.message) <= kept.LONGEST_MESSAGE
    assert len(line.message.encode()) <= 20_000, "what the table takes"
    assert len(json.dumps(line.fields)) <= 2 * kept.LARGEST_FIELDS


def test_long_text_keeps_its_beginning_and_end():
    line = tidy(NOW, "error", "begin" + "x" * 10_000 + "end", {"exception": "Traceback" + "y" * 50_000 + "ValueError: no"})

    assert (line.message[:5], line.message[-3:]) == ("begin", "end")
    assert line.fields["exception"].startswith("Traceback")
    assert line.fields["exception"].endswith("ValueError: no")


def test_traceback_is_dropped_last():
    line = tidy(NOW, "error", "m", {"exception": "e" * 5_000} | {f"f{n}": "x" * 1_000 for n in range(39)})

    assert line.fields["exception"] == "e" * 5_000
    assert "left out" in str(line.fields)


@pytest.mark.parametrize(
    ("number", "level"),
    [(0, "debug"), (5, "debug"), (10, "debug"), (25, "info"), (30, "warning"), (99, "critical")],
)
def test_every_numeric_level_has_a_name(number: int, level: str):
    assert level_of(number) == level


def test_forged_line_stays_inside_its_message(book: Pages):
    logging.getLogger("theirs").error(INJECTION)

    assert [line.message for line in book] == [INJECTION]
