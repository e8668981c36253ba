"""Worker options are read in one place, so that every runner follows every setting."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from holdfast.apps import in_process, scheduler, worker
from holdfast.cli import remote_worker, run_remote_worker
from holdfast.settings import Settings
from holdfast.worker.keeper import executor


def grace_of_a_keeper(given: Settings, _: pytest.MonkeyPatch) -> Any:
    return worker.executor_config(given, "postgresql:///none", ["m"]).options.grace


def grace_of_a_remote_worker(given: Settings, patch: pytest.MonkeyPatch) -> Any:
    return of_a_remote_worker(given, patch).grace


def of_a_remote_worker(given: Settings, patch: pytest.MonkeyPatch) -> Any:
    seen: list[Any] = []
    patch.setattr(run_remote_worker, "program_settings", lambda **_: given)
    patch.setattr(run_remote_worker, "kinds_of", list)
    patch.setattr(run_remote_worker, "begin_telemetry", lambda *_, **__: None)
    patch.setattr(run_remote_worker, "work_remotely", lambda _given, _kinds, options, **_: seen.append(options))
    remote_worker.command()
    return seen[0]


def grace_in_process(given: Settings, _: pytest.MonkeyPatch) -> Any:
    return in_process._options(None, given).grace


def grace_of_a_scheduler(given: Settings, _: pytest.MonkeyPatch) -> Any:
    return scheduler.scheduler_for("postgresql:///none", given).options.grace


RUNNERS = [grace_of_a_keeper, grace_of_a_remote_worker, grace_in_process, grace_of_a_scheduler]


@pytest.mark.parametrize("read", RUNNERS)
async def test_every_runner_fits_into_the_kubernetes_grace_period(read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """K-69: running jobs get 5 s less than `terminationGracePeriodSeconds`, in each of the four runners."""
    given = Settings(termination_grace_seconds=300, grace_seconds=7)

    assert read(given, monkeypatch) == timedelta(seconds=295)


@pytest.mark.parametrize("read", RUNNERS)
async def test_every_runner_uses_the_grace_setting(read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(Settings(grace_seconds=7), monkeypatch) == timedelta(seconds=7)


OPTIONS = {
    "beat_seconds": (1.5, "beat", timedelta(seconds=1.5)),
    "poll_seconds": (0.5, "poll", timedelta(seconds=0.5)),
    "lease_seconds": (90, "lease", timedelta(seconds=90)),
    "hostname": ("here", "name", "here"),
    "keep_job_logs": (False, "keep_logs", False),
    "job_max_memory": ("1GiB", "max_memory", 2**30),
}


@pytest.mark.parametrize("setting", OPTIONS)
@pytest.mark.parametrize("mode", ["serve", "once", "remote", "in process"])
async def test_every_runner_uses_every_setting(mode: str, setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    value, option, expected = OPTIONS[setting]
    given = Settings(**{setting: value})
    options: dict[str, Callable[[], Any]] = {
        "serve": lambda: executor._options(worker.executor_config(given, "postgresql:///none", ["m"])),
        "once": lambda: executor._options(worker.executor_config(given, "postgresql:///none", ["m"], mode="once")),
        "remote": lambda: of_a_remote_worker(given, monkeypatch),
        "in process": lambda: in_process._options(None, given),
    }

    assert getattr(options[mode](), option) == expected


def test_once_runs_one_job_in_one_lane() -> None:
    options = executor._options(worker.executor_config(Settings(), "postgresql:///none", ["m"], concurrency=10, mode="once"))

    assert (options.concurrency, options.most) == (1, 1)
