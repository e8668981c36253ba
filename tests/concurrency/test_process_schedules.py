"""Real worker processes under real faults, checked against both logs: some of the thousand that `make prove` plays.

A failure prints the command that plays it again.
"""

from __future__ import annotations

import os
from multiprocessing import resource_tracker

import pytest
from proof.processes.run import HOW_TO_REPLAY, play_many

EVERYTHING = "HOLDFAST_TEST_EVERYTHING" in os.environ
SEEDS = list(range(8 if EVERYTHING else 2))
pytestmark = pytest.mark.processes


@pytest.fixture(scope="session")
def tracker() -> None:
    """`multiprocessing` starts this helper with the first queue, and ends it with this process."""
    resource_tracker.ensure_running()


@pytest.mark.usefixtures("tracker")
def test_process_schedules_keep_every_invariant() -> None:
    summary = play_many(SEEDS, stages=2)

    assert summary.played == len(SEEDS)
    assert not summary.violations, "\n".join(f"{what}\n  replay: {HOW_TO_REPLAY} {seed}" for seed, what in summary.violations)
    if EVERYTHING:  # in one of two schedules a fault may meet a worker that holds nothing
        assert summary.exercised["move: rescue"], "nobody was ever rescued: the faults did not happen"
