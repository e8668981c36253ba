"""What a periodic kind declares, and which due times to enqueue. Pure.

`@job(cron=…)` and `@job(every=…)` build a `Schedule`. Workers publish it with the kind (`publish.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, NamedTuple

from holdfast.errors import UsageError
from holdfast.jobs import given
from holdfast.jobs.model import Json
from holdfast.timetable import cron as crontab
from holdfast.timetable.due_times import Timetable, next_due, passed

CatchUp = Literal["skip", "last", "all"]
SHORTEST: Final = timedelta(seconds=1)
LATE: Final = timedelta(seconds=60)  # a due time that passed longer ago was missed: `catch_up` says what happens to it
MOST_CAUGHT_UP: Final = 100  # due times that catch_up="all" enqueues at once
DUE_AT: Final = "due_at"  # the argument that receives the due time


@dataclass(frozen=True, slots=True)
class Schedule:
    """When a kind is enqueued, and with which arguments."""

    every: timedelta | None = None
    cron: str | None = None
    timezone: str = "UTC"
    catch_up: CatchUp = "last"
    payload: Mapping[str, Json] = field(default_factory=dict)
    gives_due_at: bool = False  # the handler has a parameter `due_at`

    def __post_init__(self) -> None:
        if (self.every is None) == (self.cron is None):
            raise UsageError("give either cron='minute hour day month weekday' or every=timedelta(…), and not both")
        given.one_of("catch_up", self.catch_up, "skip", "last", "all")
        if self.cron is not None:
            if not isinstance(self.cron, str):
                raise given.wrong("cron", self.cron, "must be text with five fields; use cron='0 2 * * *'")
            if not isinstance(self.timezone, str):
                raise given.wrong("timezone", self.timezone, "must be an IANA name; use timezone='Europe/Zurich'")
            crontab.check(self.cron, self.timezone)
            return
        given.a_span("every", self.every)
        assert self.every is not None
        if self.every < SHORTEST:
            raise given.wrong("every", self.every, f"the shortest interval is {SHORTEST.seconds} second")
        if self.timezone != "UTC":
            raise UsageError("timezone belongs to cron; an interval does not depend on a time zone: remove timezone")


def declared(
    *, cron: str | None, every: timedelta | None, timezone: str | None, catch_up: CatchUp | None, args: Mapping[str, Any] | None
) -> Schedule | None:
    """The schedule that these options of `@job` declare; None if there is none."""
    if cron is None and every is None:
        options = {"timezone": timezone, "catch_up": catch_up, "args": args}
        without = [name for name, value in options.items() if value is not None]
        if without:
            raise UsageError(f"{', '.join(without)} is for periodic jobs; add cron='0 2 * * *' or every=timedelta(…)")
        return None
    if args is not None and not isinstance(args, Mapping):
        raise given.wrong("args", args, "must be a mapping with the arguments of each run; use args={'name': value}")
    return Schedule(every, cron, "UTC" if timezone is None else timezone, catch_up or "last", dict(args or {}))


def as_json(schedule: Schedule) -> dict[str, Json]:
    """The schedule as workers publish it."""
    return {
        "every_seconds": None if schedule.every is None else schedule.every.total_seconds(),
        "cron": schedule.cron,
        "timezone": schedule.timezone,
        "catch_up": schedule.catch_up,
        "payload": dict(schedule.payload),
        "gives_due_at": schedule.gives_due_at,
    }


def from_json(published: Mapping[str, Any]) -> Schedule:
    """The schedule that a worker has published."""
    every = published.get("every_seconds")
    return Schedule(
        every=None if every is None else timedelta(seconds=every),
        cron=published.get("cron"),
        timezone=published.get("timezone") or "UTC",
        catch_up=published.get("catch_up") or "last",
        payload=published.get("payload") or {},
        gives_due_at=bool(published.get("gives_due_at", False)),
    )


# ---------------------------------------------------------------------------------------------------------------------
# Which due times to enqueue
# ---------------------------------------------------------------------------------------------------------------------


class Due(NamedTuple):
    """What to enqueue now."""

    times: list[datetime]  # oldest first
    missed: int  # due times that are not enqueued
    next_due_at: datetime


def due_times(timetable: Timetable, catch_up: CatchUp, next_due_at: datetime, now: datetime) -> Due:
    """The due times from `next_due_at` to `now` that `catch_up` wants enqueued."""
    found = passed(timetable, next_due_at, now, most=MOST_CAUGHT_UP if catch_up == "all" else 1)
    times = found.latest
    if catch_up == "skip" and now - times[-1] > LATE:
        times = []
    return Due(times, found.total - len(times), next_due(timetable, now, since=next_due_at))


def payload_at(payload: Mapping[str, Json], gives_due_at: bool, due_at: datetime) -> dict[str, Json]:
    """The arguments of the job for this due time."""
    return {**payload, DUE_AT: due_at.astimezone(UTC).isoformat()} if gives_due_at else dict(payload)


PREFIX: Final = "periodic:"


def key_of(due_at: datetime) -> str:
    """The idempotency key of a due time: a second enqueue of the same due time finds the first. Keys sort by time."""
    return f"{PREFIX}{due_at.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
