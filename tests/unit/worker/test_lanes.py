"""What a worker claims next: a job of any kind for a free lane, and short ones ahead of the lanes that turn quickly."""

from __future__ import annotations

import time
from typing import Any

from holdfast.jobs.model import AttemptId, Claim
from holdfast.worker.context import Lease
from holdfast.worker.lanes import ANY_KIND_EVERY, Lanes, _Running
from holdfast.worker.transport import Takes

BOTH = Takes({"short": 1, "long": 1}, ("default",))


def lanes_of(count: int, takes: Takes = BOTH, *, running: tuple[str, ...] = (), waiting: tuple[str, ...] = ()) -> Lanes:
    """Lanes that know `short` to be short, and have just claimed something of any kind."""
    nothing: Any = None
    lanes = Lanes({}, nothing, nothing, Lease(60.0), count=count, name="w", takes=lambda: takes, hungry=list, client=nothing)
    for _ in range(200):
        lanes.pace.took("short", 0.001)
    for number, kind in enumerate(running):
        lanes._running[AttemptId(str(number))] = _Running(a_claim(kind), None, time.perf_counter() + 3600)
    lanes._jobs.add([a_claim(kind) for kind in waiting])
    lanes._any_kind_at = time.perf_counter() + 3600
    return lanes


def a_claim(kind: str) -> Claim:
    nothing: dict[str, Any] = dict.fromkeys(Claim._fields)
    return Claim(**nothing | {"kind": kind})


def test_nothing_is_claimed_ahead_of_lanes_that_run_a_long_kind() -> None:
    wanted = lanes_of(10, running=("long",) * 10).wanted()

    assert wanted.limit == 0


def test_a_free_lane_takes_a_job_of_any_kind_and_lanes_that_turn_quickly_do_too() -> None:
    wanted = lanes_of(10, running=("long",) * 8 + ("short",)).wanted()

    assert wanted.any_kind
    assert wanted.takes == BOTH
    assert wanted.limit == 2, "one lane is free, another one turns quickly; what is claimed may be long"


def test_only_short_kinds_are_claimed_ahead() -> None:
    wanted = lanes_of(10, running=("short",) * 10).wanted()

    assert not wanted.any_kind
    assert wanted.takes.versions == {"short": 1}
    assert wanted.limit in range(480, 501)


def test_fewer_are_claimed_ahead_while_some_lanes_run_long_jobs() -> None:
    wanted = lanes_of(10, running=("short",) * 5 + ("long",) * 5).wanted()

    assert wanted.limit in range(240, 251)


def test_long_jobs_that_wait_for_a_lane_count_like_long_jobs_that_run() -> None:
    wanted = lanes_of(10, running=("short",) * 10, waiting=("long",) * 10).wanted()

    assert wanted.limit <= 0


def test_a_job_of_a_short_kind_that_runs_for_long_counts_as_long() -> None:
    lanes = lanes_of(1, running=("short",))
    next(iter(lanes._running.values())).started = time.perf_counter() - 1.0

    assert lanes.wanted().limit == 0


def test_where_every_kind_is_short_one_claim_fills_the_lanes_and_takes_some_ahead() -> None:
    wanted = lanes_of(10, Takes({"short": 1}, ("default",))).wanted()

    assert wanted.any_kind
    assert wanted.limit in range(490, 511)


def test_a_flow_of_short_jobs_does_not_keep_the_other_kinds_out() -> None:
    """A job of the highest priority and a kind that is not short is claimed though no lane is free: one is in a moment."""
    lanes = lanes_of(10, running=("short",) * 10, waiting=("short",) * 300)
    lanes._any_kind_at = 0.0

    first, second = lanes.wanted(), lanes.wanted()

    assert (first.any_kind, first.takes, first.limit) == (True, BOTH, 10)
    assert not second.any_kind, f"and again {ANY_KIND_EVERY} s later"


def test_a_second_batch_under_way_leaves_its_lanes_turning() -> None:
    lanes = lanes_of(10, running=("short",) * 10)
    before = lanes.wanted().limit
    lanes.expected_ahead = 100

    assert lanes.wanted().limit == before - 100
