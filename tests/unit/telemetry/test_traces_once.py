"""A traceback is logged once, redacted: the standard logger adds no second one."""

from __future__ import annotations

import logging

import pytest

from holdfast.telemetry import redact
from holdfast.telemetry.log import log


def test_q_02_existing_trace_handlers_are_not_duplicated(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Q-02"""
    monkeypatch.setattr(redact, "_hidden", {})
    redact.hide("canary-of-a-host")
    caplog.set_level(logging.INFO, "holdfast")
    try:
        raise ValueError("it was canary-of-a-host")
    except ValueError:
        log.exception("http_fault")

    assert "it was ***" in caplog.text
    assert "canary" not in caplog.text
