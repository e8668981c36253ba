"""The checker notices a worker that keeps jobs waiting which another could run, and a claim that passes over a job."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from proof.actors.lanes import Clock, SteppedLanes
from proof.checker.check import check
from proof.checker.fairness import FAIR

from executions import Broken, ExecutionBuilder, MakeExecution
from holdfast.worker import prefetch as product

SHORT, LONG = "short", "long"
BOTH = [LONG, SHORT]
BROKEN = Broken()
breaks = BROKEN.breaks


def facts(**more: Any) -> dict[str, Any]:
    """A worker with two lanes, both free, whose short jobs take 25 ms: it may hold four ahead, and one for each lane."""
    usual = {SHORT: 0.025, LONG: 2.0}
    free = {"lanes": 2, "free": 2, "knows": BOTH, "kinds": BOTH, "clock": 100.0, "usual": usual, "last": usual, "ended": 0}
    return free | more


def holding(built: ExecutionBuilder, count: int, kind: str, *, worker: str = "busy", **more: Any) -> None:
    """A worker claims so many for its lanes, and none of them begins."""
    begun = built.witness.tick()
    for number in range(1, count + 1):
        built.enqueue(number, attempt_no=1, kind=kind)
        claim = built.claim(number, f"{worker}{number}", worker=worker, kind=kind, begins=False, for_lanes=True)
        built.witness.events[-1] = replace(claim, begun=begun)
    built.witness.note("claims", begun, worker=worker, limit=count, got=count, taken=[], **facts(free=0) | more)


def asking(built: ExecutionBuilder, *, limit: int = 2, **more: Any) -> None:
    """Another worker with free lanes asks, and gets nothing."""
    built.note("claims", worker="idle", limit=limit, got=0, taken=[], **facts(**more))


def broken(built: ExecutionBuilder) -> set[str]:
    return {violation.invariant for violation in check(built.execution())} & set(FAIR)


@breaks("fair")
def more_long_jobs_than_lanes_wait(built: ExecutionBuilder) -> None:
    holding(built, 3, LONG)
    asking(built)


@breaks("fair")
def a_kind_that_was_short_once_is_held_ahead(built: ExecutionBuilder) -> None:
    holding(built, 3, SHORT, last={SHORT: 0.2, LONG: 2.0})
    asking(built)


@breaks("fair")
def more_short_jobs_wait_than_the_lanes_finish_in_a_moment(built: ExecutionBuilder) -> None:
    holding(built, 7, SHORT)
    asking(built)


@breaks("fair")
def a_beat_that_returns_nothing(built: ExecutionBuilder) -> None:
    holding(built, 1, SHORT)
    built.note("return", worker="busy", clock=101.5, jobs=[])
    asking(built)


@breaks("fair")
def a_free_lane_that_no_long_job_may_use(built: ExecutionBuilder) -> None:
    asking(built)
    asking(built, kinds=[SHORT])


def claims(
    built: ExecutionBuilder, claimable: list[tuple[int, str, bool]], taken: list[int], *, limit: int = 2, **more: Any
) -> None:
    facts = {"kinds": ["k"], "claimable": claimable} | more
    built.note("claims", worker="w", limit=limit, got=len(taken), taken=taken, **facts)


@breaks("priority")
def a_claim_that_takes_the_last_first(built: ExecutionBuilder) -> None:
    claims(built, [(3, "k", False), (1, "k", False), (2, "k", False)], [1, 2])


@breaks("priority")
def a_claim_that_leaves_what_it_could_take(built: ExecutionBuilder) -> None:
    claims(built, [(3, "k", False), (1, "k", False)], [3])


@breaks("priority")
def a_job_that_took_the_place_of_one_with_a_lock(built: ExecutionBuilder) -> None:
    claims(built, [(3, "k", True), (1, "k", False)], [1], limit=1)


@breaks("priority")
def a_worker_that_never_asks_for_long_jobs(built: ExecutionBuilder) -> None:
    asking(built, free=0)
    asking(built, free=0, kinds=[SHORT], clock=100.6)


@pytest.mark.parametrize(("invariant", "execution"), BROKEN, ids=lambda value: getattr(value, "__name__", value))
def test_violation_is_detected(invariant: str, execution: MakeExecution) -> None:
    built = ExecutionBuilder()

    execution(built)

    assert broken(built) == {invariant}


def test_every_invariant_has_a_violating_history() -> None:
    assert {invariant for invariant, _ in BROKEN} == set(FAIR)


@pytest.mark.parametrize(("count", "kind"), [(2, LONG), (6, SHORT)])
def test_permitted_prefetch_is_no_violation(count: int, kind: str) -> None:
    built = ExecutionBuilder()
    holding(built, count, kind)
    built.note("return", worker="busy", clock=100.9, jobs=[])

    asking(built)

    assert broken(built) == set()


def test_begun_or_released_jobs_do_not_wait() -> None:
    built = ExecutionBuilder()
    holding(built, 4, LONG)
    built.note("start", job=1, attempt="busy1", worker="busy")
    built.end(2, "busy2", 1, "release", "pending")

    asking(built)

    assert broken(built) == set()


def test_jobs_that_may_have_begun_during_the_claim_are_ignored() -> None:
    built = ExecutionBuilder()
    holding(built, 3, LONG)
    begun = built.witness.tick()
    built.note("start", job=1, attempt="busy1", worker="busy")

    built.witness.note("claims", begun, worker="idle", limit=2, got=0, taken=[], **facts())

    assert broken(built) == set()


def test_worker_that_gets_all_requested_jobs_is_no_violation() -> None:
    built = ExecutionBuilder()
    holding(built, 3, LONG)

    built.note("claims", worker="idle", limit=2, got=2, taken=[8, 9], **facts())

    assert broken(built) == set()


@pytest.mark.parametrize(
    ("claimable", "kinds"),
    [
        ([(3, "k", False), (1, "k", False), (2, "k", False)], ["k"]),
        ([(9, "other", False), (3, "k", False), (1, "k", False)], ["k"]),
        ([(3, "k", False), (1, "k", False)], ["k", "other"]),
        (None, ["k"]),
    ],
    ids=["more than it may take", "a kind that it does not ask for", "all", "beside other transactions"],
)
def test_claim_of_the_first_job_is_no_violation(claimable: Any, kinds: list[str]) -> None:
    built = ExecutionBuilder()

    claims(built, claimable, [3, 1], kinds=kinds)

    assert broken(built) == set()


def test_job_with_a_busy_lock_may_be_skipped_and_counts_in_the_batch() -> None:
    built = ExecutionBuilder()

    claims(built, [(3, "k", True), (1, "k", False), (2, "k", False)], [1])

    assert broken(built) == set()


def test_claims_of_short_kinds_only_are_allowed_within_half_a_second() -> None:
    built = ExecutionBuilder()

    asking(built, free=0)
    asking(built, free=0, kinds=[SHORT], clock=100.4)

    assert broken(built) == set()


def a_flow_of_short_jobs(built: ExecutionBuilder, rounds: int = 120) -> int:
    """A worker works through short jobs, and asks once more while its lanes run; how often it left out the long kind."""
    clock, left_out = Clock(), 0
    lanes = SteppedLanes(built.witness, clock, "busy", queues=["default"], usual={SHORT: 0.02, LONG: 2.0})
    running: list[Any] = []
    for number in range(rounds):
        wanted = lanes.wanted()
        if wanted.limit > 0:
            asked = {"kinds": sorted(wanted.takes.versions), "limit": wanted.limit, "got": wanted.limit, "taken": []}
            built.note("claims", worker="busy", **lanes.facts() | asked)
            left_out += not wanted.any_kind
            running += lanes.hand_out([_short_job(f"{number}-{count}") for count in range(wanted.limit)])
        if number % 2:
            clock.now += 0.02
            running = [begun for one in running for begun in lanes.end(one)]
    return left_out


def _short_job(attempt: str) -> Any:
    return SimpleNamespace(id=1, kind=SHORT, attempt_id=attempt, attempt_no=2, waited=None)


def test_claims_include_long_kinds_during_a_stream_of_short_jobs() -> None:
    built = ExecutionBuilder()

    assert a_flow_of_short_jobs(built) > 10
    assert broken(built) == set()


def test_claims_of_short_kinds_only_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product, "ANY_KIND_EVERY", 3600.0)
    built = ExecutionBuilder()

    assert a_flow_of_short_jobs(built) > 10
    assert broken(built) == {"priority"}
