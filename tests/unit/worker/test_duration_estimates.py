"""How many jobs are held ahead: only of kinds that are known to be short, and as many as the lanes finish in a moment."""

from __future__ import annotations

from holdfast.worker.duration_estimates import AHEAD, DurationEstimates


def durations_after(**seconds: float) -> DurationEstimates:
    """Many jobs of each of these kinds took so long."""
    durations = DurationEstimates()
    for kind, took in seconds.items():
        for _ in range(200):
            durations.note_ended(kind, took)
    return durations


def test_unseen_kind_is_not_short() -> None:
    durations = durations_after(quick=0.001)

    assert durations.is_short("quick")
    assert not durations.is_short("new")


def test_one_short_job_does_not_make_a_kind_short() -> None:
    durations = DurationEstimates()

    durations.note_ended("k", 0.0001)

    assert not durations.is_short("k")


def test_new_kind_is_short_after_eleven_short_jobs() -> None:
    durations, short_after = DurationEstimates(), 0

    while not durations.is_short("k"):
        durations.note_ended("k", 0.0001)
        short_after += 1

    assert short_after == 11


def test_one_long_job_makes_its_kind_long_and_no_other() -> None:
    durations = durations_after(quick=0.001, other=0.001)

    durations.note_ended("quick", 1.0)

    assert not durations.is_short("quick")
    assert durations.is_short("other")
    assert durations.ahead(10) == durations_after(other=0.001).ahead(10), "a long job says nothing about the short ones"


def test_running_job_counts_before_it_has_ended() -> None:
    durations = durations_after(quick=0.001)

    durations.note_running("quick", 0.5)
    durations.note_running("quick", 0.1)

    assert not durations.is_short("quick")


def test_prefetch_is_what_the_lanes_finish_in_50_ms() -> None:
    assert durations_after(quick=0.001).ahead(10) in range(490, 501)
    assert durations_after(slower=0.04).ahead(10) == int(10 * AHEAD / 0.04)
    assert durations_after(quick=0.001).ahead(0) == 0
