"""When a worker polls, as a table."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast.worker.options import WorkerOptions
from holdfast.worker.poller import JUST_AFTER, PollClock

USUAL = PollClock.of(WorkerOptions().beat, WorkerOptions().poll, WorkerOptions().lease)


def test_idle_worker_polls_every_10_to_12_seconds() -> None:
    """K-52, K-58, W-02: ten of them together send less than one query a second."""
    waits = [USUAL.next_poll(chance / 10, None) for chance in range(11)]

    assert (min(waits), max(waits)) == (10.0, 12.0)
    assert sum(10 / wait for wait in waits) / len(waits) < 1.0


def test_an_idle_worker_without_hints_claims_40_jobs_a_minute() -> None:
    """W-23: in cycles of at most 15 seconds. 500 concurrent jobs are measured by `benchmarks/submitted.py`."""
    cycle = USUAL.next_poll(1.0, None)

    assert cycle <= 15
    assert WorkerOptions().concurrency * 60 / cycle >= 40


def test_a_worker_with_jobs_sends_heartbeats_for_its_lease() -> None:
    """K-21, W-02: and polls with each heartbeat, every five seconds or a little less."""
    assert (USUAL.next_beat(0.0), USUAL.next_beat(1.0)) == (4.5, 5.0)


@pytest.mark.parametrize(("expiry", "wait"), [(3.0, 3.0 + JUST_AFTER), (-1.0, JUST_AFTER), (25.0, 10.0)])
def test_worker_polls_just_after_the_end_of_a_lease(expiry: float, wait: float) -> None:
    """It adapts: a dead worker's jobs do not wait for the interval on top of the lease."""
    assert USUAL.next_poll(0.0, timedelta(seconds=expiry)) == pytest.approx(wait)


def test_lease_of_an_idle_worker_is_renewed_in_time() -> None:
    clock = PollClock.of(timedelta(seconds=5), timedelta(minutes=5), timedelta(seconds=30))

    assert clock.next_poll(1.0, None) == 15.0
