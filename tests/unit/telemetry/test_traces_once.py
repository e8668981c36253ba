"""A trace is written once, by us: what the standard logger would add by itself nobody has cleaned."""

from __future__ import annotations

import logging

import pytest

from holdfast.telemetry import redact
from holdfast.telemetry.log import log


def test_q_02_a_host_that_has_its_own_handlers_gets_no_second_trace(
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
