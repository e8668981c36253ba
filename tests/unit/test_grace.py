"""How long what runs may go on at shutdown is read in one place, for every program that runs something."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from holdfast.apps import in_process, scheduler, worker
from holdfast.cli import remote_worker
from holdfast.settings import Settings


def grace_of_a_keeper(given: Settings, _: pytest.MonkeyPatch) -> Any:
    return timedelta(seconds=worker.orders_from(given, "postgresql:///none", ["m"]).grace)


def grace_of_a_remote_worker(given: Settings, patch: pytest.MonkeyPatch) -> Any:
    seen: list[Any] = []
    patch.setattr(remote_worker, "settings", lambda: given)
    patch.setattr(remote_worker, "kinds_of", list)
    patch.setattr(remote_worker, "begin_telemetry", lambda *_, **__: None)
    patch.setattr(remote_worker, "work_remotely", lambda _given, _kinds, options, **_: seen.append(options.grace))
    remote_worker.command()
    return seen[0]


def grace_in_process(given: Settings, _: pytest.MonkeyPatch) -> Any:
    return in_process._options(None, given).grace


def grace_of_a_scheduler(given: Settings, _: pytest.MonkeyPatch) -> Any:
    return scheduler.scheduler_for("postgresql:///none", given).options.grace


RUNNERS = [grace_of_a_keeper, grace_of_a_remote_worker, grace_in_process, grace_of_a_scheduler]


@pytest.mark.parametrize("read", RUNNERS)
async def test_every_runner_stays_within_what_kubernetes_gives(read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """K-69: running jobs get 5 s less than `terminationGracePeriodSeconds`, in each of the four runners."""
    given = Settings(termination_grace_seconds=300, grace_seconds=7)

    assert read(given, monkeypatch) == timedelta(seconds=295)


@pytest.mark.parametrize("read", RUNNERS)
async def test_every_runner_takes_the_grace_that_is_set(read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(Settings(grace_seconds=7), monkeypatch) == timedelta(seconds=7)
