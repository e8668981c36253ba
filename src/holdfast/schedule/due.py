"""Whether a loop is to be run now, and which tick of it. Pure: a row and the database's time in, a decision out."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from holdfast.schedule import cron as crontab

MISFIRE_GRACE = timedelta(seconds=60)  # a tick that nobody could begin within it is a missed one
MOST_TRIES = 2  # of one tick: a pass that takes its process down must not take down one after another
FAR = timedelta(days=366 * 100)
MOST_WALKED = 1000  # ticks of a cron expression that are counted one by one; of those between there and
PASSED_OVER_UNTIL = timedelta(days=1)  # the last day nobody needs the number, and finding it would take a while


class Timetable(Protocol):
    """What says when a loop is due: the loop itself, or its row."""

    @property
    def every(self) -> timedelta | None: ...
    @property
    def cron(self) -> str | None: ...
    @property
    def timezone(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Row:
    """What a loop's row says, and the database's clock at that moment."""

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
    """Run the last tick again, which failed, before the next one is due."""

    retry_at: datetime


@dataclass(frozen=True, slots=True)
class BeginQueued:
    """Run what somebody asked for. The schedule goes on as if nothing had happened."""

    run_id: int


@dataclass(frozen=True, slots=True)
class Resume:
    """The holder of this run went silent: do it again."""


@dataclass(frozen=True, slots=True)
class Skip:
    """It is too late for these ticks."""

    next_due_at: datetime
    missed: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The holder went silent and nobody is to begin this run again. Then look once more."""


Decision = Wait | Begin | BeginRetry | BeginQueued | Resume | Skip | GiveUp


def decide(row: Row, timetable: Timetable, *, catch_up: int = 0) -> Decision:
    """What to do with a loop."""
    if row.held_until is not None:
        return _decide_held(row)
    if row.queued_run_id is not None:
        return BeginQueued(row.queued_run_id)
    if row.is_paused:
        return Wait(FAR)
    if row.next_due_at <= row.now:
        return _decide_due(row, timetable, catch_up)
    if row.retry_at is not None and row.retry_at <= row.now:
        return BeginRetry(row.retry_at)
    return Wait(min(row.next_due_at, row.retry_at or row.next_due_at) - row.now)


def _decide_held(row: Row) -> Decision:
    assert row.held_until is not None
    silent_for = row.now - row.held_until
    if silent_for <= timedelta(0):
        return Wait(-silent_for)
    if row.tries >= MOST_TRIES or silent_for > MISFIRE_GRACE or (row.is_paused and not row.is_manual):
        return GiveUp()
    return Resume()


def _decide_due(row: Row, timetable: Timetable, catch_up: int) -> Decision:
    """The latest tick that is due, if its time is not long past; with `catch_up`, the earliest of the last so many."""
    following = next_due(timetable, row.now, since=row.next_due_at)
    due = _ticks(timetable, row.next_due_at, row.now, most=max(catch_up, 1))
    if catch_up:
        after = due.ticks[1] if len(due.ticks) > 1 else following
        return Begin(due.ticks[0], after, due.count - len(due.ticks))
    latest = due.ticks[-1]
    if row.now - latest > MISFIRE_GRACE:
        return Skip(following, due.count)
    return Begin(latest, following, due.count - 1)


def next_due(timetable: Timetable, moment: datetime, *, since: datetime | None = None) -> datetime:
    """The first due time after this moment; for an interval, on the grid that `since` is on."""
    if timetable.every is not None:
        if since is None:
            return moment + timetable.every
        return since + max((moment - since) // timetable.every + 1, 1) * timetable.every
    assert timetable.cron is not None
    found = crontab.next_after(timetable.cron, timetable.timezone, moment)
    return found if found is not None else moment + FAR


@dataclass(frozen=True, slots=True)
class _Ticks:
    ticks: list[datetime]  # the last so many
    count: int


def _ticks(timetable: Timetable, first: datetime, now: datetime, *, most: int) -> _Ticks:
    """The ticks from `first` to `now`: how many there were, and the last `most` of them."""
    if timetable.every is not None:
        count = (now - first) // timetable.every + 1
        return _Ticks([first + n * timetable.every for n in range(max(0, count - most), count)], count)
    ticks, count, tick = [first], 1, next_due(timetable, first)
    while tick <= now:
        ticks, count = [*ticks, tick][-most:], count + 1
        passed_over = count == MOST_WALKED and now - tick > PASSED_OVER_UNTIL
        tick = next_due(timetable, now - PASSED_OVER_UNTIL if passed_over else tick)
    return _Ticks(ticks, count)
