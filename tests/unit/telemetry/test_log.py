"""The log on standard error: one line per event, JSON or text, the same format for every logger."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from holdfast.apps.telemetry import begin_telemetry
from holdfast.settings import Settings
from holdfast.telemetry import fields, log, redact

INJECTION = 'x\n2026-01-01 [info] job_completed job_id=1\r\x1b[31mred\x1b[0m \u2028","level":"critical'


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """Standard error, a terminal; what was configured before is there again afterwards."""
    stream = Terminal()
    for module in ("holdfast.telemetry.log", "holdfast.apps.telemetry"):
        monkeypatch.setattr(f"{module}.sys", SimpleNamespace(stderr=stream))
    monkeypatch.setattr(redact, "_hidden", {})
    monkeypatch.setattr(log, "_configuration", None)
    root, names = logging.getLogger(), ("", *log.VERBOSE)
    levels = {name: logging.getLogger(name).level for name in names}
    yield stream
    fields.of_attempt(None)
    structlog.contextvars.clear_contextvars()
    if log._handler is not None:
        root.removeHandler(log._handler)
        log._handler = None
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    structlog.reset_defaults()


def claim(job_id: int, attempt_id: str, pipeline_id: str | None) -> Any:
    return SimpleNamespace(id=job_id, attempt_id=attempt_id, attempt_no=1, kind="k", pipeline_id=pipeline_id, trace=None)


def lines(written: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in written.getvalue().splitlines()]


def test_failed_log_write_does_not_raise(written: Terminal, monkeypatch: pytest.MonkeyPatch):
    """Standard error is gone, as after the end of whoever read it; Python's report of that cannot be written either."""
    log.configure(json=True)
    written.close()
    monkeypatch.setattr("sys.stderr", written)

    log.log.warning("job_failed", job_id=1)


def test_all_loggers_use_the_same_format_with_the_job_id(written: Terminal):
    """V-04, B-05: JSON, a timestamp, the logger, the request if there is one."""
    log.configure(json=True)

    fields.of_worker("w")
    fields.of_attempt(claim(7, "a", "p"))
    structlog.contextvars.bind_contextvars(request_id="r")
    log.log.info("job_retried", error="no")
    structlog.get_logger().warning("theirs", rows=5)
    logging.getLogger("their.module").error("old %s", "style", extra={"rows": 6})

    about = {"job_id": 7, "attempt_id": "a", "attempt": 1, "kind": "k", "pipeline_id": "p", "request_id": "r", "worker": "w"}
    ours, theirs, old = lines(written)
    assert ours | about == ours
    assert theirs | about == theirs
    assert old | about == old
    assert (ours["event"], theirs["event"], old["event"]) == ("job_retried", "theirs", "old style")
    assert (ours["error"], theirs["rows"], old["rows"]) == ("no", 5, 6)
    assert (ours["logger"], theirs["logger"], old["logger"]) == ("holdfast", __name__, "their.module")
    assert [line["level"] for line in (ours, theirs, old)] == ["info", "warning", "error"]
    assert all(line["timestamp"].endswith("Z") for line in (ours, theirs, old))


def test_next_job_of_a_lane_inherits_no_fields(written: Terminal):
    log.configure(json=True)

    fields.of_attempt(claim(7, "a", "p"))
    fields.of_attempt(claim(8, "b", None))
    log.log.info("job_ended")

    (line,) = lines(written)
    assert (line["job_id"], line["attempt_id"]) == (8, "b")
    assert "pipeline_id" not in line


@pytest.mark.parametrize(
    ("given", "is_json"),
    [({}, False), ({"HOLDFAST_LOG_FORMAT": "json"}, True), ({"HOLDFAST_LOG_FORMAT": "console"}, False)],
)
def test_terminal_gets_colours_and_pipes_get_json(
    written: Terminal, monkeypatch: pytest.MonkeyPatch, given: dict[str, str], is_json: bool
):
    """V-04: console in development, JSON in production."""
    for name, value in given.items():
        monkeypatch.setenv(name, value)

    begin_telemetry(Settings())
    log.log.info("job_ended")

    assert written.getvalue().startswith("{") is is_json
    assert ("\x1b[" in written.getvalue()) is not is_json


def test_json_is_the_default_without_a_terminal(written: Terminal, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Terminal, "isatty", lambda _: False)

    begin_telemetry(Settings())
    log.log.info("job_ended")

    assert lines(written)[0]["event"] == "job_ended"


def test_log_level_setting_accepts_the_compatibility_name(written: Terminal, monkeypatch: pytest.MonkeyPatch):
    """LOG_LEVEL counts only with the compatibility names switched on."""
    monkeypatch.setenv("HOLDFAST_COMPATIBILITY_NAMES", "true")
    monkeypatch.setenv("LOG_LEVEL", "warning")

    begin_telemetry(Settings(), as_json=True)
    log.log.info("job_ended")
    logging.getLogger("theirs").info("not this")
    logging.getLogger("theirs").warning("this")

    assert [line["event"] for line in lines(written)] == ["this"]


def raise_and_log(secret: str) -> None:
    try:
        raise ValueError(f"{INJECTION} {secret}")
    except ValueError:
        log.log.exception("job_failed", error=INJECTION, where={"deep": [INJECTION, secret]})
        logging.getLogger("theirs").exception("%s %s", INJECTION, secret)
        structlog.get_logger().error(INJECTION, exc_info=True)


def test_f_75_text_cannot_break_out_of_its_json_line(written: Terminal):
    redact.hide("the-canary")
    log.configure(json=True)

    raise_and_log("the-canary")

    assert len(lines(written)) == 3
    assert all(line["level"] == "error" for line in lines(written))
    assert written.getvalue().isascii()
    assert "\x1b" not in written.getvalue()
    assert "the-canary" not in written.getvalue()


def test_f_75_text_cannot_forge_a_terminal_line(written: Terminal, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Terminal, "isatty", lambda _: False)  # so that every escape sequence is somebody else's
    redact.hide("the-canary")
    log.configure(json=False)

    raise_and_log("the-canary")

    said = written.getvalue()
    assert "\x1b" not in said
    assert "\r" not in said
    assert "\u2028" not in said
    assert "the-canary" not in said
    assert not [line for line in said.splitlines() if line.startswith("2026-01-01 [info]")]
    assert len([line for line in said.splitlines() if not line.startswith(" ")]) == 3


def test_f_75_host_logging_gets_redacted_lines(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(log, "_configuration", None)
    redact.hide("the-canary")

    with caplog.at_level(logging.INFO, logger="holdfast"):
        log.log.info("worker_database_lost", error="could not log in with the-canary\nhere")

    assert "the-canary" not in caplog.text
    assert "\\nhere" in caplog.text
