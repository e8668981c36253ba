"""What a keeper and an executor share, and what the keeper makes of it: no process, no database."""

from __future__ import annotations

import socket
import time

import pytest

from holdfast.jobs.model import WorkerId
from holdfast.settings import Settings
from holdfast.worker.keeper import exit_code
from holdfast.worker.noticeboard import KeptLease, Noticeboard
from holdfast.worker.orders import STOP, Line, Orders
from holdfast.worker.tally import Tally


@pytest.mark.parametrize(
    ("done", "once", "crashed", "gave_up", "signals", "code"),
    [
        (Tally(taken=3, completed=3), False, False, False, [15], 0),
        (Tally(taken=3, failed=2), False, False, False, [15], 0),  # a failed job is no failed worker
        (Tally(taken=3, given_back=3), False, True, False, [15], 0),
        (Tally(taken=1, cut_off=1), False, False, False, [15], 1),
        (Tally(), False, False, True, [15], 1),
        (Tally(), True, False, False, [], 0),
        (Tally(taken=1, completed=1), True, False, False, [15], 0),
        (Tally(taken=1, failed=1), True, False, False, [], 1),
        (Tally(taken=1, given_back=1), True, False, False, [15], 1),
        (Tally(taken=1), True, True, False, [], 1),
        (Tally(taken=1, completed=1), False, False, False, [15, 2], 130),
        (Tally(), False, False, False, [2, 15], 143),
    ],
)
def test_k_67_the_exit_code(done: Tally, once: bool, crashed: bool, gave_up: bool, signals: list[int], code: int):
    """K-67: 0 tidy, 1 failed or cut off, 128 + n for a second signal."""
    assert exit_code(done, once=once, crashed=crashed, gave_up=gave_up, signals=signals) == code


def test_tallies_add_up():
    assert Tally(1, 2, 3, 4, 5) + Tally(10, 20, 30, 40, 50) == Tally(11, 22, 33, 44, 55)


def test_orders_arrive_as_they_were_given():
    ours, theirs = socket.socketpair()
    given = Orders(url="postgresql://u:p@h/d", modules=("a", "b"), kinds=("k",), mode="once", worker_id=WorkerId("w"))

    Line(ours).say(given.to_message())
    Line(ours).say(STOP)
    ours.close()

    first, second = Line(theirs).hear()
    theirs.close()
    assert Orders.from_message(first) == given
    assert second == STOP


def test_a_line_without_anybody_at_the_other_end_is_over_and_takes_words_all_the_same():
    ours, theirs = socket.socketpair()
    theirs.close()
    line = Line(ours)

    line.say(STOP)

    assert list(line.hear()) == []
    assert line.is_over
    line.close()


def test_a_lease_is_good_for_as_long_as_either_side_says():
    board = Noticeboard.new(places=1)
    lease = KeptLease(100.0, board)
    soon, later = time.monotonic() + 200, time.monotonic() + 300

    board.keep_until(later, now=time.monotonic())
    lease.extend(soon)

    assert lease.until == later
    assert not lease.is_over


def test_a_lapsed_lease_is_not_revived_behind_the_executors_back():
    """Its jobs may be somebody else's by now. Its own beat finds out, and only then the keeper may go on."""
    board = Noticeboard.new(places=1)
    lease = KeptLease(-1.0, board)
    now = time.monotonic()

    board.keep_until(now + 100, now)
    assert lease.is_over

    lease.extend(now + 10)
    board.keep_until(now + 100, now)
    assert lease.until == now + 100


def test_what_has_begun_is_on_the_board_until_it_ends():
    board = Noticeboard.new(places=2)
    lease = KeptLease(1.0, board)

    lease.begin(7)
    lease.begin(9_000_000_000)
    lease.end(7)

    assert [job for job in board.begun if job] == [9_000_000_000]


@pytest.mark.parametrize(("given", "grace"), [({}, 25.0), ({"grace_seconds": 3}, 3.0)])
def test_the_grace_is_what_is_set(given: dict[str, float], grace: float):
    assert Settings(**given).grace == grace  # type: ignore[arg-type]


@pytest.mark.parametrize(("whole", "grace"), [(30, 25.0), (300, 295.0), (2, 0.0)])
def test_k_69_or_what_kubernetes_gives_less_five_seconds(whole: float, grace: float):
    """K-69: never beyond `terminationGracePeriodSeconds`."""
    assert Settings(termination_grace_seconds=whole, grace_seconds=7).grace == grace
