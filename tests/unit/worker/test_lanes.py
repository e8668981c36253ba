"""What a worker claims next: a job of any kind for a free lane, and short ones ahead of the lanes that turn quickly."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.jobs.model import AttemptId, Claim
from holdfast.telemetry.metrics import stale_writebacks
from holdfast.worker.context import Lease
from holdfast.worker.isolated.parent import IsolatedAttempt
from holdfast.worker.lanes import Lanes, RunningAttempt
from holdfast.worker.prefetch import Prefetch
from holdfast.worker.transports.interface import Takes

BOTH = Takes({"short": 1, "long": 1}, ("default",))


def prefetch_for(count: int, takes: Takes = BOTH, *, running: tuple[str, ...] = (), waiting: tuple[str, ...] = ()) -> Prefetch:
    """The prefetch of lanes that know `short` to be short, and have just claimed something of any kind."""
    lanes = Lanes({}, count)
    prefetch = Prefetch(lanes, takes, Lease(60.0))
    for _ in range(200):
        prefetch.note_ended("short", 0.001)
    for number, kind in enumerate(running):
        claim = a_claim(kind)._replace(attempt_id=AttemptId(str(number)))
        lanes.begin(RunningAttempt(claim, None, time.perf_counter() + 3600))
    lanes.jobs.add([a_claim(kind) for kind in waiting])
    prefetch._any_kind_at = time.perf_counter() + 3600
    return prefetch


def a_claim(kind: str) -> Claim:
    nothing: dict[str, Any] = dict.fromkeys(Claim._fields)
    return Claim(**nothing | {"kind": kind})


def test_nothing_is_prefetched_while_lanes_run_a_long_kind() -> None:
    wanted = prefetch_for(10, running=("long",) * 10).wanted()

    assert wanted.limit == 0


def test_free_or_fast_lane_claims_any_kind() -> None:
    wanted = prefetch_for(10, running=("long",) * 8 + ("short",)).wanted()

    assert wanted.any_kind
    assert wanted.takes == BOTH
    assert wanted.limit == 2, "one lane is free, another one turns quickly; what is claimed may be long"


def test_only_short_kinds_are_prefetched() -> None:
    wanted = prefetch_for(10, running=("short",) * 10).wanted()

    assert not wanted.any_kind
    assert wanted.takes.versions == {"short": 1}
    assert wanted.limit in range(480, 501)


def test_prefetch_is_smaller_while_some_lanes_run_long_jobs() -> None:
    wanted = prefetch_for(10, running=("short",) * 5 + ("long",) * 5).wanted()

    assert wanted.limit in range(240, 251)


def test_waiting_long_jobs_count_like_running_ones() -> None:
    wanted = prefetch_for(10, running=("short",) * 10, waiting=("long",) * 10).wanted()

    assert wanted.limit <= 0


def test_long_running_job_of_a_short_kind_counts_as_long() -> None:
    prefetch = prefetch_for(1, running=("short",))
    prefetch._lanes.attempts()[0].started = time.perf_counter() - 1.0

    assert prefetch.wanted().limit == 0


def test_one_claim_fills_the_lanes_and_prefetches_when_all_kinds_are_short() -> None:
    wanted = prefetch_for(10, Takes({"short": 1}, ("default",))).wanted()

    assert wanted.any_kind
    assert wanted.limit in range(490, 511)


def test_stream_of_short_jobs_does_not_exclude_other_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job of the highest priority and a kind that is not short is claimed though no lane is free: one is in a moment."""
    monkeypatch.setattr("holdfast.worker.prefetch.ANY_KIND_EVERY", 3600.0)
    prefetch = prefetch_for(10, running=("short",) * 10, waiting=("short",) * 300)
    prefetch._any_kind_at = 0.0

    first, second = prefetch.wanted(), prefetch.wanted()

    assert (first.any_kind, first.takes, first.limit) == (True, BOTH, 10)
    assert not second.any_kind, "and again some time later"


def test_claim_under_way_reduces_the_next_limit() -> None:
    prefetch = prefetch_for(10, running=("short",) * 10)
    before = prefetch.wanted().limit
    prefetch.reserve(100, ahead=True)

    assert prefetch.wanted().limit == before - 100


def test_loss_of_an_attempt_in_a_child_process_is_not_reported_before_the_child_answers() -> None:
    """The heartbeat cannot tell whether another worker has the job or the child has just written its end."""
    told: list[Any] = []
    child: Any = SimpleNamespace(send=told.append, kill_in=lambda _: None)
    running = RunningAttempt(a_claim("short"), None, 0.0)
    running.use_process(IsolatedAttempt(child))
    refused = stale_writebacks.labels("heartbeat")._value.get
    before = refused()

    running.lose()

    assert told == [{"type": "lose"}]
    assert refused() == before
