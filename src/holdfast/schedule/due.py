"""Decide whether to run a loop now, and which tick. Pure: the input is a row with the database's time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from holdfast.timetable.due_times import NEVER, Timetable, next_due, passed

MISFIRE_GRACE = timedelta(seconds=60)  # a tick that does not start within this time is missed
MOST_TRIES = 2  # of one tick: a pass that crashes its process must not crash one process after another


@dataclass(frozen=True, slots=True)
class Row:
    """The columns of a loop's row, and the database's clock when it was read."""

    now: datetime
    next_due_at: datetime
    retry_at: datetime | None  # a run before the next tick
    held_until: datetime | None
    is_paused: bool
    queued_run_id: int | None
    tries: int  # of the run that is held
    is_manual: bool  # the run that is held


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do for now."""

    wait: timedelta


@dataclass(frozen=True, slots=True)
class Begin:
    """Run the tick that was due at `due_at`."""

    due_at: datetime
    next_due_at: datetime
    missed: int = 0


@dataclass(frozen=True, slots=True)
class BeginRetry:
    """Retry the last tick, which failed, before the next one is due."""

    retry_at: datetime


@dataclass(frozen=True, slots=True)
class BeginQueued:
    """Run a manual trigger. It does not move the schedule."""

    run_id: int


@dataclass(frozen=True, slots=True)
class Resume:
    """The holder of this run stopped renewing its lease: run it again."""


@dataclass(frozen=True, slots=True)
class Skip:
    """These ticks are missed."""

    next_due_at: datetime
    missed: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The holder stopped renewing its lease, and this run is not repeated. The caller decides again."""


Decision = Wait | Begin | BeginRetry | BeginQueued | Resume | Skip | GiveUp


def decide(row: Row, timetable: Timetable, *, catch_up: int = 0) -> Decision:
    """The next step for a loop."""
    if row.held_until is not None:
        return _decide_held(row)
    if row.queued_run_id is not None:
        return BeginQueued(row.queued_run_id)
    if row.is_paused:
        return Wait(NEVER)
    if row.next_due_at <= row.now:
        return _decide_due(row, timetable, catch_up)
    if row.retry_at is not None and row.retry_at <= row.now:
        return BeginRetry(row.retry_at)
    return Wait(min(row.next_due_at, row.retry_at or row.next_due_at) - row.now)


def _decide_held(row: Row) -> Decision:
    assert row.held_until is not None
    overdue = row.now - row.held_until
    if overdue <= timedelta(0):
        return Wait(-overdue)
    if row.tries >= MOST_TRIES or overdue > MISFIRE_GRACE or (row.is_paused and not row.is_manual):
        return GiveUp()
    return Resume()


def _decide_due(row: Row, timetable: Timetable, catch_up: int) -> Decision:
    """Run the latest due tick, if it is not missed; with `catch_up`, the earliest of the latest `catch_up` ticks."""
    following = next_due(timetable, row.now, since=row.next_due_at)
    due = passed(timetable, row.next_due_at, row.now, most=max(catch_up, 1))
    if catch_up:
        after = due.latest[1] if len(due.latest) > 1 else following
        return Begin(due.latest[0], after, due.total - len(due.latest))
    latest = due.latest[-1]
    if row.now - latest > MISFIRE_GRACE:
        return Skip(following, due.total)
    return Begin(latest, following, due.total - 1)
