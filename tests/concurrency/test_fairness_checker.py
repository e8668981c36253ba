"""The checker notices a worker that keeps jobs waiting which another could run, and a claim that passes over a job."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from proof.actors.lanes import Clock, SteppedLanes
from proof.checker.check import check
from proof.checker.fairness import FAIR

from holdfast.worker import prefetch as product
from tales import Broken, MakeStory, Tale

SHORT, LONG = "short", "long"
BOTH = [LONG, SHORT]
BROKEN = Broken()
breaks = BROKEN.breaks


def facts(**more: Any) -> dict[str, Any]:
    """A worker with two lanes, both free, whose short jobs take 25 ms: it may hold four ahead, and one for each lane."""
    usual = {SHORT: 0.025, LONG: 2.0}
    free = {"lanes": 2, "free": 2, "knows": BOTH, "kinds": BOTH, "clock": 100.0, "usual": usual, "last": usual, "ended": 0}
    return free | more


def holding(tale: Tale, count: int, kind: str, *, worker: str = "busy", **more: Any) -> None:
    """A worker claims so many for its lanes, and none of them begins."""
    begun = tale.witness.tick()
    for number in range(1, count + 1):
        tale.enqueue(number, attempt_no=1, kind=kind)
        claim = tale.claim(number, f"{worker}{number}", worker=worker, kind=kind, begins=False, for_lanes=True)
        tale.witness.events[-1] = replace(claim, begun=begun)
    tale.witness.note("claims", begun, worker=worker, limit=count, got=count, taken=[], **facts(free=0) | more)


def asking(tale: Tale, *, limit: int = 2, **more: Any) -> None:
    """Another worker with free lanes asks, and gets nothing."""
    tale.note("claims", worker="idle", limit=limit, got=0, taken=[], **facts(**more))


def broken(tale: Tale) -> set[str]:
    return {violation.invariant for violation in check(tale.story())} & set(FAIR)


@breaks("fair")
def more_long_jobs_than_lanes_wait(tale: Tale) -> None:
    holding(tale, 3, LONG)
    asking(tale)


@breaks("fair")
def a_kind_that_was_short_once_is_held_ahead(tale: Tale) -> None:
    holding(tale, 3, SHORT, last={SHORT: 0.2, LONG: 2.0})
    asking(tale)


@breaks("fair")
def more_short_jobs_wait_than_the_lanes_finish_in_a_moment(tale: Tale) -> None:
    holding(tale, 7, SHORT)
    asking(tale)


@breaks("fair")
def a_beat_that_returns_nothing(tale: Tale) -> None:
    holding(tale, 1, SHORT)
    tale.note("return", worker="busy", clock=101.5, jobs=[])
    asking(tale)


@breaks("fair")
def a_free_lane_that_no_long_job_may_use(tale: Tale) -> None:
    asking(tale)
    asking(tale, kinds=[SHORT])


def claims(tale: Tale, claimable: list[tuple[int, str, bool]], taken: list[int], *, limit: int = 2, **more: Any) -> None:
    facts = {"kinds": ["k"], "claimable": claimable} | more
    tale.note("claims", worker="w", limit=limit, got=len(taken), taken=taken, **facts)


@breaks("priority")
def a_claim_that_takes_the_last_first(tale: Tale) -> None:
    claims(tale, [(3, "k", False), (1, "k", False), (2, "k", False)], [1, 2])


@breaks("priority")
def a_claim_that_leaves_what_it_could_take(tale: Tale) -> None:
    claims(tale, [(3, "k", False), (1, "k", False)], [3])


@breaks("priority")
def a_job_that_took_the_place_of_one_with_a_lock(tale: Tale) -> None:
    claims(tale, [(3, "k", True), (1, "k", False)], [1], limit=1)


@breaks("priority")
def a_worker_that_never_asks_for_long_jobs(tale: Tale) -> None:
    asking(tale, free=0)
    asking(tale, free=0, kinds=[SHORT], clock=100.6)


@pytest.mark.parametrize(("invariant", "story"), BROKEN, ids=lambda value: getattr(value, "__name__", value))
def test_a_broken_story_is_noticed(invariant: str, story: MakeStory) -> None:
    tale = Tale()

    story(tale)

    assert broken(tale) == {invariant}


def test_every_invariant_is_broken_by_some_story() -> None:
    assert {invariant for invariant, _ in BROKEN} == set(FAIR)


@pytest.mark.parametrize(("count", "kind"), [(2, LONG), (6, SHORT)])
def test_what_prefetching_permits_is_no_violation(count: int, kind: str) -> None:
    tale = Tale()
    holding(tale, count, kind)
    tale.note("return", worker="busy", clock=100.9, jobs=[])

    asking(tale)

    assert broken(tale) == set()


def test_jobs_that_have_begun_or_were_returned_do_not_wait() -> None:
    tale = Tale()
    holding(tale, 4, LONG)
    tale.note("start", job=1, attempt="busy1", worker="busy")
    tale.end(2, "busy2", 1, "release", "pending")

    asking(tale)

    assert broken(tale) == set()


def test_nobody_is_judged_for_jobs_that_may_have_begun_while_another_worker_asked() -> None:
    tale = Tale()
    holding(tale, 3, LONG)
    begun = tale.witness.tick()
    tale.note("start", job=1, attempt="busy1", worker="busy")

    tale.witness.note("claims", begun, worker="idle", limit=2, got=0, taken=[], **facts())

    assert broken(tale) == set()


def test_a_worker_that_gets_all_it_asks_for_misses_nothing() -> None:
    tale = Tale()
    holding(tale, 3, LONG)

    tale.note("claims", worker="idle", limit=2, got=2, taken=[8, 9], **facts())

    assert broken(tale) == set()


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
def test_a_claim_that_takes_the_first_is_no_violation(claimable: Any, kinds: list[str]) -> None:
    tale = Tale()

    claims(tale, claimable, [3, 1], kinds=kinds)

    assert broken(tale) == set()


def test_a_job_whose_lock_is_busy_may_be_left_and_takes_its_place_in_the_batch() -> None:
    tale = Tale()

    claims(tale, [(3, "k", True), (1, "k", False), (2, "k", False)], [1])

    assert broken(tale) == set()


def test_short_kinds_alone_may_be_asked_for_within_half_a_second() -> None:
    tale = Tale()

    asking(tale, free=0)
    asking(tale, free=0, kinds=[SHORT], clock=100.4)

    assert broken(tale) == set()


def a_flow_of_short_jobs(tale: Tale, rounds: int = 120) -> int:
    """A worker works through short jobs, and asks once more while its lanes run; how often it left out the long kind."""
    clock, left_out = Clock(), 0
    lanes = SteppedLanes(tale.witness, clock, "busy", queues=["default"], usual={SHORT: 0.02, LONG: 2.0})
    running: list[Any] = []
    for number in range(rounds):
        wanted = lanes.wanted()
        if wanted.limit > 0:
            asked = {"kinds": sorted(wanted.takes.versions), "limit": wanted.limit, "got": wanted.limit, "taken": []}
            tale.note("claims", worker="busy", **lanes.facts() | asked)
            left_out += not wanted.any_kind
            running += lanes.hand_out([_short_job(f"{number}-{count}") for count in range(wanted.limit)])
        if number % 2:
            clock.now += 0.02
            running = [begun for one in running for begun in lanes.end(one)]
    return left_out


def _short_job(attempt: str) -> Any:
    return SimpleNamespace(id=1, kind=SHORT, attempt_id=attempt, attempt_no=2, waited=None)


def test_a_flow_of_short_jobs_does_not_keep_the_worker_from_asking_for_long_ones() -> None:
    tale = Tale()

    assert a_flow_of_short_jobs(tale) > 10
    assert broken(tale) == set()


def test_a_worker_that_asks_only_for_short_jobs_during_a_flow_of_them_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product, "ANY_KIND_EVERY", 3600.0)
    tale = Tale()

    assert a_flow_of_short_jobs(tale) > 10
    assert broken(tale) == {"priority"}
