"""Every crash point is reached by a real process that dies there, in every way of running jobs; nothing is lost or doubled."""

from __future__ import annotations

import os

import pytest
from proof.processes.modes import WORKER_POINTS
from tests.faults.conftest import Scene

from holdfast.jobs.model import Lock

pytestmark = pytest.mark.processes

EVERYTHING = "HOLDFAST_TEST_EVERYTHING" in os.environ  # as `make prove` has it
LOCKED = {"key": "k", "pause": 0.0, "_locks": (Lock("k"),)}
# What it takes to come to a point; where nothing is said, any job does.
ON_THE_WAY = {
    "run.mid": ("proof.steps", {"steps": 2, "pause": 0.0}),
    "lock.after": ("proof.locked", LOCKED),
    "unlock.after": ("proof.locked", LOCKED),
    "complete.in_tx_after_unlock": ("proof.locked", LOCKED),
    "complete.in_tx_after_child": ("proof.fan", {"width": 1}),
    "publish.in_tx_before": ("proof.publish", {}),
    "publish.in_tx_after": ("proof.publish", {}),
    **{point: ("proof.engine", {"seconds": 0.0}) for point in WORKER_POINTS if point.startswith(("submit.", "poll."))},
}


@pytest.mark.more
@pytest.mark.parametrize("mode", ["worker", "in process"])
def test_a_process_dies_at_every_crash_point_and_nothing_is_lost(scene: Scene, mode: str):
    points = WORKER_POINTS if mode == "worker" or EVERYTHING else WORKER_POINTS[::5]
    for point in sorted(points, key=lambda point: point.startswith(("submit.", "poll."))):  # polls take their time
        kind, arguments = ON_THE_WAY.get(point, ("proof.quick", {}))
        scene.add(kind, **arguments)
        if point.startswith("reap."):  # somebody has to have died before
            scene.doomed("claim.after_commit", mode=mode, concurrency=1)
        scene.doomed(point, mode=mode, concurrency=1)

    scene.everything_ends()


@pytest.mark.parametrize("point", ["claim.in_tx", "run.mid", "complete.in_tx_after_update"])
def test_executor_dies_at_every_crash_point_and_its_keeper_recovers_the_job(scene: Scene, point: str):
    """The keeper lives, so nobody waits for a lease: the job is given back with the cause at once."""
    job = scene.add("proof.steps", steps=2, pause=0.0)
    scene.worker(point, mode="keeper", concurrency=1, lease=60.0)

    scene.all_is_well()

    assert [line["cause"] for line in scene.said("executor_died")] == ["SIGKILL"]
    assert scene.job(job, "state, crashes") == ("completed", int(point == "run.mid"))  # only there was it at work
