"""A worker does not take kinds whose extra is not installed: it would fail their jobs."""

from __future__ import annotations

import pytest

from holdfast import job
from holdfast.errors import UsageError
from holdfast.services.exports.kinds import KINDS
from holdfast.worker import modules
from holdfast.worker.modules import _runnable


@job("extra.heavy", extra="exports")
async def heavy() -> None: ...


@job("extra.light")
async def light() -> None: ...


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules, "missing_modules", lambda extra: ["sqlglot"] if extra == "exports" else [])


def test_kinds_with_their_extra_are_registered():
    assert _runnable([heavy, light]) == [heavy, light]


@pytest.mark.usefixtures("missing")
def test_kind_without_its_extra_is_skipped_and_logged(caplog: pytest.LogCaptureFixture):
    assert _runnable([heavy, light]) == [light]

    assert all(word in caplog.text for word in ("kinds_skipped", "extra.heavy", "sqlglot", "holdfast-jobs[exports]"))


@pytest.mark.usefixtures("missing")
def test_worker_without_usable_kinds_does_not_start():
    with pytest.raises(UsageError, match=r"no kind can run here: extra.heavy need pip install 'holdfast-jobs\[exports\]'"):
        _runnable([heavy])


def test_export_kinds_name_their_extra():
    assert {kind.kind for kind in KINDS if kind.policy.extra == "exports"} == {"exports.run", "exports.export"}
