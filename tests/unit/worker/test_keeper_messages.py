"""The messages and the memory that a keeper and an executor share, and the keeper's exit code: no process, no database."""

from __future__ import annotations

import socket
import time
from datetime import timedelta

import pytest

from holdfast.jobs.model import WorkerId
from holdfast.settings import Settings
from holdfast.worker.job_counts import JobCounts
from holdfast.worker.keeper.keeper import exit_code
from holdfast.worker.keeper.messages import STOP, ExecutorConfig, MessageChannel
from holdfast.worker.keeper.shared_page import SharedLease, SharedPage
from holdfast.worker.options import WorkerOptions


@pytest.mark.parametrize(
    ("done", "once", "crashed", "gave_up", "signals", "code"),
    [
        (JobCounts(taken=3, completed=3), False, False, False, [15], 0),
        (JobCounts(taken=3, failed=2), False, False, False, [15], 0),  # a failed job is no failed worker
        (JobCounts(taken=3, given_back=3), False, True, False, [15], 0),
        (JobCounts(taken=1, cut_off=1), False, False, False, [15], 1),
        (JobCounts(), False, False, True, [15], 1),
        (JobCounts(), True, False, False, [], 0),
        (JobCounts(taken=1, completed=1), True, False, False, [15], 0),
        (JobCounts(taken=1, failed=1), True, False, False, [], 1),
        (JobCounts(taken=1, given_back=1), True, False, False, [15], 1),
        (JobCounts(taken=1), True, True, False, [], 1),
        (JobCounts(taken=1, completed=1), False, False, False, [15, 2], 130),
        (JobCounts(), False, False, False, [2, 15], 143),
    ],
)
def test_k_67_exit_codes(done: JobCounts, once: bool, crashed: bool, gave_up: bool, signals: list[int], code: int):
    """K-67: 0 tidy, 1 failed or cut off, 128 + n for a second signal."""
    assert exit_code(done, once=once, crashed=crashed, gave_up=gave_up, signals=signals) == code


def test_tallies_are_summed():
    assert JobCounts(1, 2, 3, 4, 5) + JobCounts(10, 20, 30, 40, 50) == JobCounts(11, 22, 33, 44, 55)


OPTIONS = WorkerOptions(queues=("a", "b"), grace=timedelta(seconds=7), poll=timedelta(milliseconds=200), max_memory=5)


def test_configuration_is_transferred_unchanged():
    ours, theirs = socket.socketpair()
    given = ExecutorConfig(
        url="postgresql://u:p@h/d", modules=("a", "b"), kinds=("k",), mode="once", options=OPTIONS, worker_id=WorkerId("w")
    )

    MessageChannel(ours).send(given.to_message())
    MessageChannel(ours).send(STOP)
    ours.close()

    first, second = MessageChannel(theirs).receive()
    theirs.close()
    assert ExecutorConfig.from_message(first) == given
    assert second == STOP


def test_channel_without_a_peer_is_closed_and_accepts_messages():
    ours, theirs = socket.socketpair()
    theirs.close()
    channel = MessageChannel(ours)

    channel.send(STOP)

    assert list(channel.receive()) == []
    assert channel.is_closed
    channel.close()


def test_a_lease_expires_at_the_later_of_the_two_times():
    page = SharedPage.new(slots=1)
    lease = SharedLease(100.0, page)
    soon, later = time.monotonic() + 200, time.monotonic() + 300

    page.extend_lease(later, now=time.monotonic())
    lease.extend(soon)

    assert lease.until == later
    assert not lease.is_over


def test_the_keeper_does_not_extend_a_lease_that_has_expired():
    """Other workers may have its jobs. The executor's own heartbeat finds that out; then the keeper may extend it again."""
    page = SharedPage.new(slots=1)
    lease = SharedLease(-1.0, page)
    now = time.monotonic()

    page.extend_lease(now + 100, now)
    assert lease.is_over

    lease.extend(now + 10)
    page.extend_lease(now + 100, now)
    assert lease.until == now + 100


def test_begun_job_is_listed_until_it_ends():
    page = SharedPage.new(slots=2)
    lease = SharedLease(1.0, page)

    lease.begin(7)
    lease.begin(9_000_000_000)
    lease.end(7)

    assert [job for job in page.begun if job] == [9_000_000_000]


@pytest.mark.parametrize(("given", "grace"), [({}, 25.0), ({"grace_seconds": 3}, 3.0)])
def test_grace_setting_is_used(given: dict[str, float], grace: float):
    assert Settings(**given).grace == grace  # type: ignore[arg-type]


@pytest.mark.parametrize(("whole", "grace"), [(30, 25.0), (300, 295.0), (2, 0.0)])
def test_k_69_grace_defaults_to_the_kubernetes_period_less_five_seconds(whole: float, grace: float):
    """K-69: never beyond `terminationGracePeriodSeconds`."""
    assert Settings(termination_grace_seconds=whole, grace_seconds=7).grace == grace
