"""A worker that is killed while it enqueues a periodic job: the due time is enqueued once, whatever the moment."""

from __future__ import annotations

import pytest
from tests.faults.conftest import Scene

pytestmark = pytest.mark.processes

MODULES = ("tests.faults.periodic_kinds",)
MAKE_DUE = "UPDATE holdfast.periodic_jobs SET next_due_at = clock_timestamp() RETURNING pg_notify('holdfast', '@')"


def test_a_worker_killed_while_it_enqueues_a_due_time_neither_loses_nor_doubles_it(scene: Scene) -> None:
    for number, (point, committed) in enumerate([("periodic.in_tx_after_enqueue", 0), ("periodic.after_commit", 1)], start=1):
        doomed = scene.worker(point, modules=MODULES)
        scene.until(lambda: scene.value("SELECT count(*) FROM holdfast.periodic_jobs") == 1)
        scene.conn.execute(MAKE_DUE)
        scene.until(lambda one=doomed: not one.is_alive, what=f"a process that dies at {point}")
        scene.expire(doomed)
        assert doomed.wait() == -9
        assert scene.value("SELECT count(*) FROM holdfast.jobs WHERE kind = 'fault.periodic'") == number - 1 + committed

        honest = scene.worker(modules=MODULES)
        scene.until(lambda n=number: scene.value("SELECT count(*) FROM holdfast.jobs WHERE state = 'completed'") == n)
        honest.kill()

    assert scene.value("SELECT count(*) FROM holdfast.jobs") == 2
