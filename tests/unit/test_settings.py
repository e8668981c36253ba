"""Names that the documents use are accepted beside our own."""

from __future__ import annotations

import pytest

from holdfast.settings import Settings


def test_g_06_a_lease_is_said_in_minutes_by_the_documents_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """G-06 with RUN_BACKGROUND_POLLER, which has tests of its own; ours counts more where both are set."""
    assert Settings().lease == 30
    monkeypatch.setenv("STALE_JOB_TIMEOUT_MINUTES", "30")
    assert Settings().lease == 1800
    monkeypatch.setenv("HOLDFAST_LEASE_SECONDS", "45")
    assert Settings().lease == 45
