"""How many jobs are held ahead: only of kinds that are known to be short, and as many as the lanes finish in a moment."""

from __future__ import annotations

from holdfast.worker.pace import AHEAD, Pace


def pace_after(**seconds: float) -> Pace:
    """Many jobs of each of these kinds took so long."""
    pace = Pace()
    for kind, took in seconds.items():
        for _ in range(200):
            pace.took(kind, took)
    return pace


def test_a_kind_that_was_never_seen_is_not_short() -> None:
    pace = pace_after(quick=0.001)

    assert pace.is_short("quick")
    assert not pace.is_short("new")


def test_one_short_job_does_not_make_a_kind_short() -> None:
    pace = Pace()

    pace.took("k", 0.0001)

    assert not pace.is_short("k")


def test_one_long_job_makes_its_kind_long_and_no_other() -> None:
    pace = pace_after(quick=0.001, other=0.001)

    pace.took("quick", 1.0)

    assert not pace.is_short("quick")
    assert pace.is_short("other")
    assert pace.ahead(10) == pace_after(other=0.001).ahead(10), "a long job says nothing about the short ones"


def test_a_job_that_runs_for_long_counts_before_it_has_ended() -> None:
    pace = pace_after(quick=0.001)

    pace.runs("quick", 0.5)
    pace.runs("quick", 0.1)

    assert not pace.is_short("quick")


def test_so_many_are_held_ahead_as_the_lanes_finish_in_a_moment() -> None:
    assert pace_after(quick=0.001).ahead(10) in range(490, 501)
    assert pace_after(slower=0.04).ahead(10) == int(10 * AHEAD / 0.04)
    assert pace_after(quick=0.001).ahead(0) == 0
