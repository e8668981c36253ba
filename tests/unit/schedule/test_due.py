"""Whether a loop is to be run now, and which tick: a row and a time in, a decision out."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from holdfast.schedule.due import Begin, BeginQueued, BeginRetry, GiveUp, Resume, Row, Skip, Wait, decide
from holdfast.timetable.due_times import next_due

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)


class Times(NamedTuple):
    every: timedelta | None = HOUR
    cron: str | None = None
    timezone: str = "UTC"


HOURLY = Times()
FREE = Row(NOON, NOON, None, None, False, None, 1, False)


def test_due_tick_starts_and_the_next_is_on_the_grid() -> None:
    assert decide(FREE, HOURLY) == Begin(NOON, NOON + HOUR)


def test_nothing_starts_before_its_time() -> None:
    assert decide(replace(FREE, next_due_at=NOON + SECOND), HOURLY) == Wait(SECOND)


def test_retry_comes_before_the_next_tick_and_does_not_replace_it() -> None:
    """B-03"""
    failed = replace(FREE, next_due_at=NOON + HOUR, retry_at=NOON + MINUTE)

    assert decide(failed, HOURLY) == Wait(MINUTE)
    assert decide(replace(failed, now=NOON + MINUTE), HOURLY) == BeginRetry(NOON + MINUTE)
    assert decide(replace(failed, now=NOON + HOUR), HOURLY) == Begin(NOON + HOUR, NOON + 2 * HOUR)
    assert isinstance(decide(replace(failed, now=NOON + MINUTE, is_paused=True), HOURLY), Wait)
    assert decide(replace(failed, now=NOON + MINUTE, queued_run_id=7), HOURLY) == BeginQueued(7)


def test_a_late_start_does_not_move_the_grid() -> None:
    assert decide(replace(FREE, now=NOON + 40 * SECOND), HOURLY) == Begin(NOON, NOON + HOUR)


def test_missed_ticks_are_merged_into_one_s_02() -> None:
    """S-02: coalesce. The latest is begun if its time is not long past, and the others are counted."""
    row = replace(FREE, now=NOON + 3 * HOUR + 59 * SECOND)

    assert decide(row, HOURLY) == Begin(NOON + 3 * HOUR, NOON + 4 * HOUR, missed=3)


def test_f_59_tick_beyond_the_grace_is_skipped() -> None:
    """S-02: a misfire grace of 60 s; S-15: in doubt, skip and count."""
    row = replace(FREE, now=NOON + 3 * HOUR + 61 * SECOND)

    assert decide(row, HOURLY) == Skip(NOON + 4 * HOUR, missed=4)


def test_f_59_catch_up_runs_the_last_missed_ticks_one_by_one() -> None:
    row = replace(FREE, now=NOON + 3 * HOUR + 30 * MINUTE)

    first = decide(row, HOURLY, catch_up=2)
    assert first == Begin(NOON + 2 * HOUR, NOON + 3 * HOUR, missed=2)
    second = decide(replace(row, next_due_at=first.next_due_at), HOURLY, catch_up=2)
    assert second == Begin(NOON + 3 * HOUR, NOON + 4 * HOUR)


def test_paused_loop_runs_only_when_triggered() -> None:
    paused = replace(FREE, is_paused=True)

    assert isinstance(decide(paused, HOURLY), Wait)
    assert decide(replace(paused, queued_run_id=7), HOURLY) == BeginQueued(7)


def test_triggered_run_comes_first_and_keeps_the_schedule() -> None:
    """S-22"""
    assert decide(replace(FREE, queued_run_id=7), HOURLY) == BeginQueued(7)


def test_held_loop_is_not_taken_before_its_lease_ends() -> None:
    """S-11"""
    held = replace(FREE, held_until=NOON + 5 * SECOND, queued_run_id=7)

    assert decide(held, HOURLY) == Wait(5 * SECOND)


def test_f_60_tick_of_a_silent_holder_runs_again_once() -> None:
    silent = replace(FREE, held_until=NOON - SECOND)

    assert decide(silent, HOURLY) == Resume()
    assert decide(replace(silent, tries=2), HOURLY) == GiveUp(), "a pass that kills its process must not kill them all"


def test_old_or_paused_tick_of_a_dead_holder_does_not_run_again() -> None:
    silent = replace(FREE, held_until=NOON - SECOND)

    assert decide(replace(silent, held_until=NOON - 2 * MINUTE), HOURLY) == GiveUp()
    assert decide(replace(silent, is_paused=True), HOURLY) == GiveUp()
    assert decide(replace(silent, is_paused=True, is_manual=True), HOURLY) == Resume()


@given(every=st.integers(1, 10**6), late=st.integers(0, 10**8), catch_up=st.integers(0, 5))
def test_every_decision_makes_progress(every: int, late: int, catch_up: int) -> None:
    """The tick that is begun is the latest or one of the last, and the next one is on the grid and after it."""
    times = Times(every=timedelta(milliseconds=every))
    row = replace(FREE, now=NOON + timedelta(milliseconds=late))

    decision = decide(row, times, catch_up=catch_up)

    assert isinstance(decision, Begin | Skip)
    assert (decision.next_due_at - NOON) % timedelta(milliseconds=every) == timedelta(0)
    if isinstance(decision, Begin):
        assert NOON <= decision.due_at <= row.now
        assert decision.due_at < decision.next_due_at
        assert catch_up or decision.next_due_at > row.now
    else:
        assert decision.next_due_at > row.now


def test_cron_ticks_of_a_long_absence_are_not_iterated() -> None:
    row = replace(FREE, now=NOON + timedelta(days=2000))

    decision = decide(row, Times(every=None, cron="* * * * *"))

    assert isinstance(decision, Begin)
    assert decision.due_at == row.now
    assert 1000 <= decision.missed < 3000


def test_the_first_due_time_is_one_interval_from_now_s_03() -> None:
    """S-03"""
    assert next_due(HOURLY, NOON + SECOND) == NOON + SECOND + HOUR
