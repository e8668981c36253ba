"""Every crash point is reached by a real process that dies there, in every way of running jobs; nothing is lost or doubled."""

from __future__ import annotations

import pytest
from proof.modes import MODES, WORKER_POINTS
from tests.faults.conftest import Scene

from holdfast.jobs.model import Lock

pytestmark = pytest.mark.processes

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


@pytest.mark.parametrize("mode", list(MODES))
def test_a_process_dies_at_every_crash_point_and_nothing_is_lost(scene: Scene, mode: str):
    for point in sorted(WORKER_POINTS, key=lambda point: point.startswith(("submit.", "poll."))):  # polls take their time
        kind, arguments = ON_THE_WAY.get(point, ("proof.quick", {}))
        scene.add(kind, **arguments)
        if point.startswith("reap."):  # somebody has to have died before
            scene.doomed("claim.after_commit", mode=mode, concurrency=1)
        scene.doomed(point, mode=mode, concurrency=1)

    scene.everything_ends()
