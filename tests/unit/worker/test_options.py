"""A worker with options that cannot work is refused when it is made."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Worker, WorkerOptions
from holdfast.errors import UsageError
from holdfast.worker.modules import import_modules

SECOND = timedelta(seconds=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"queues": "default"}, "queues cannot be 'default': must be a list; use queues=['default']"),
        ({"queues": []}, "queues cannot be []: a worker needs at least one queue; use queues=['default']"),
        ({"queues": [""]}, "queue cannot be ''"),
        ({"concurrency": 0}, "concurrency cannot be 0: must be a whole number, 1 or more"),
        ({"concurrency": 2.5}, "concurrency cannot be 2.5: must be a whole number, 1 or more"),
        ({"largest_batch": 0}, "largest_batch cannot be 0"),
        ({"most": 0}, "most cannot be 0"),
        ({"beat": 5}, "beat cannot be 5: must be a timedelta; use timedelta(seconds=5)"),
        ({"lease": timedelta(0)}, "lease cannot be datetime.timedelta(0)"),
        (
            {"lease": SECOND, "beat": 5 * SECOND},
            "must be longer than the heartbeat of 0:00:05; use at least three times that",
        ),
        ({"lease": SECOND, "beat": SECOND}, "must be longer than the heartbeat"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        WorkerOptions(**options)


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        (["ok.one"], "kinds cannot be 'ok.one': each item must be a function decorated with @job; pass the function"),
        ([len], "each item must be a function decorated with @job; decorate it with @job(…)"),
        ("ok.one", "kinds cannot be 'ok.one': must be a list; use kinds=[render]"),
    ],
)
def test_a_worker_takes_functions_and_not_their_names(kinds: Any, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        Worker("postgresql://localhost/x", kinds)


@pytest.mark.parametrize(("given", "name"), [("ok.py", "ok"), ("shop/jobs.py", "shop.jobs"), ("./shop/jobs", "shop.jobs")])
def test_a_file_name_is_refused_with_the_name_of_its_module(given: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [])

    with pytest.raises(
        UsageError, match=re.escape(f"{given!r} is a file name, and a module is imported by its name; use {name!r}")
    ):
        import_modules([given])
