"""F-61: due times of cron expressions through clock changes, leap years and impossible dates."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, time, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import UsageError
from holdfast.schedule.registry import Loop
from holdfast.timetable.cron import check, next_after

ZURICH = "Europe/Zurich"


def due(expression: str, start: datetime, count: int, zone: str = "UTC") -> list[datetime]:
    found: list[datetime] = []
    for _ in range(count):
        following = next_after(expression, zone, found[-1] if found else start)
        assert following is not None
        found.append(following)
    return found


def local(expression: str, start: datetime, count: int) -> list[str]:
    return [at.astimezone(ZoneInfo(ZURICH)).strftime("%d %H:%M") for at in due(expression, start, count, ZURICH)]


def test_f_61_time_in_a_dst_gap_is_due_after_the_gap() -> None:
    start = datetime(2026, 3, 28, 12, tzinfo=UTC)

    assert local("30 2 * * *", start, 2) == ["29 03:00", "30 02:30"]
    assert local("0,30 2 * * *", start, 2) == ["29 03:00", "30 02:00"], "once for all that the gap skips"


def test_f_61_repeated_time_is_due_once() -> None:
    start = datetime(2026, 10, 24, 12, tzinfo=UTC)

    assert local("30 2 * * *", start, 2) == ["25 02:30", "26 02:30"]
    assert local("*/30 2 * * *", start, 3) == ["25 02:00", "25 02:30", "26 02:00"]


def test_f_61_hourly_schedule_continues_through_dst_changes() -> None:
    spring, autumn = datetime(2026, 3, 28, 22, tzinfo=UTC), datetime(2026, 10, 24, 22, tzinfo=UTC)

    for start in (spring, autumn):
        hours = due("0 * * * *", start, 6, ZURICH)
        assert {after - before for before, after in pairwise(hours)} == {timedelta(hours=1)}


def test_f_61_29_february_is_due_in_leap_years_only() -> None:
    years = [at.year for at in due("0 0 29 2 *", datetime(2093, 1, 1, tzinfo=UTC), 3)]

    assert years == [2096, 2104, 2108], "2100 is none"


@pytest.mark.parametrize("expression", ["* * 31 2 *", "0 0 30 2 *", "0 0 31 4,6,9,11 *"])
def test_f_61_impossible_date_is_refused(expression: str) -> None:
    with pytest.raises(UsageError, match="never matches"):
        check(expression, "UTC")
    with pytest.raises(UsageError, match="never matches"):
        Loop("impossible", print, cron=expression)


def test_f_61_unknown_time_zone_is_named() -> None:
    with pytest.raises(UsageError, match="unknown time zone 'Europe/Atlantis'"):
        check("0 0 * * *", "Europe/Atlantis")


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("* * *", "five"),
        ("61 * * * *", "is invalid"),
        ("banana * * * *", "is invalid"),
        ("nonsense", "has 1 fields; use five"),
        ("", "has 0 fields; use five"),
        ("0 0 1 * 1", "a day of the month and a weekday"),
        ("0 0 * * 9", "weekday"),
        ("0 0 * * 5-2", "descending"),
    ],
)
def test_invalid_expression_is_refused_with_the_reason(expression: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        check(expression, "UTC")


@pytest.mark.parametrize(
    ("weekday", "days"),
    [
        ("0", {"Sun"}),
        ("7", {"Sun"}),
        ("1-5", {"Mon", "Tue", "Wed", "Thu", "Fri"}),
        ("mon-fri", {"Mon", "Tue", "Wed", "Thu", "Fri"}),
        ("*/2", {"Sun", "Tue", "Thu", "Sat"}),
        ("5-7", {"Fri", "Sat", "Sun"}),
        ("1,sat".replace("sat", "6"), {"Mon", "Sat"}),
    ],
)
def test_weekdays_are_numbered_as_in_crontab(weekday: str, days: set[str]) -> None:
    found = due(f"0 0 * * {weekday}", datetime(2026, 1, 1, tzinfo=UTC), 14)

    assert {at.strftime("%a") for at in found} == days


FROM = 946_684_800  # the year 2000
MOMENTS = st.integers(FROM, 3_700_000_000).map(lambda seconds: datetime.fromtimestamp(seconds, UTC))


@pytest.mark.parametrize("time", ["0 0", "15 0", "59 0", "0 1"])
def test_f_61_first_hour_after_a_short_night_is_not_skipped(time: str) -> None:
    found = due(f"{time} * * *", datetime(2026, 3, 27, 12, tzinfo=UTC), 5, ZURICH)

    assert [at.astimezone(ZoneInfo(ZURICH)).day for at in found] == [28, 29, 30, 31, 1]


@given(
    moment=MOMENTS,
    minute=st.integers(0, 59),
    hour=st.integers(0, 23),
    zone=st.sampled_from([ZURICH, "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "UTC"]),
)
def test_f_61_daily_time_is_due_once_a_day_in_every_zone(moment: datetime, minute: int, hour: int, zone: str) -> None:
    found = due(f"{minute} {hour} * * *", moment, 5, zone)

    days = [at.astimezone(ZoneInfo(zone)).date() for at in found]
    assert [(after - before).days for before, after in pairwise(days)] == [1, 1, 1, 1]
    assert found[0] > moment


@given(moment=MOMENTS, step=st.integers(1, 30))
def test_f_61_the_next_time_is_always_later(moment: datetime, step: int) -> None:
    found = due(f"*/{step} * * * *", moment, 20, "Australia/Lord_Howe")

    assert all(before < after for before, after in pairwise([moment, *found]))


WEEK, SECOND = timedelta(days=7), timedelta(seconds=1)


def changes_forward(zone: ZoneInfo) -> list[datetime]:
    """The moments since 2000 at which the clocks of a zone went forward."""
    found: list[datetime] = []
    at = datetime(2000, 1, 1, tzinfo=UTC)
    while at.year < 2031:
        before, after = at, at + WEEK
        if before.astimezone(zone).utcoffset() < after.astimezone(zone).utcoffset():
            while after - before > SECOND:
                middle = before + timedelta(seconds=(after - before) // (2 * SECOND))
                is_before = middle.astimezone(zone).utcoffset() == before.astimezone(zone).utcoffset()
                before, after = (middle, after) if is_before else (before, middle)
            found.append(after)
        at += WEEK
    return found


def skips_midnight(zone: ZoneInfo, change: datetime) -> bool:
    last, first = (change - SECOND).astimezone(zone), change.astimezone(zone)
    return last.date() < first.date() and first.time() > time(0)


@pytest.mark.more
def test_f_61_daily_time_in_the_first_hour_is_due_where_dst_starts_at_midnight() -> None:
    """In every zone that there is: a time that exists is due then, one that does not at the end of the gap."""
    zones = {name: ZoneInfo(name) for name in sorted(available_timezones())}
    cases = [(n, z, at) for n, z in zones.items() for at in changes_forward(z) if skips_midnight(z, at)]
    assert {"America/Havana", "Asia/Beirut", "Africa/Cairo", "America/Santiago"} <= {name for name, _, _ in cases}

    for name, zone, change in cases:
        skipped = change.astimezone(zone).date()
        for minute in (0, 1, 30, 59):
            found = due(f"{minute} 0 * * *", change - timedelta(days=2, hours=12), 5, name)
            days = [at.astimezone(zone).date() for at in found]
            assert [(after - before).days for before, after in pairwise(days)] == [1, 1, 1, 1], (name, change, found)
            of_that_day = found[days.index(skipped)]
            is_shown = of_that_day.astimezone(zone).time() == time(0, minute)
            assert is_shown or of_that_day == change, (name, change, found)


@given(moment=MOMENTS, expression=st.sampled_from(["*/20 * * * *", "7 */2 * * *", "0 */6 * * *", "30 * * * 0"]))
@pytest.mark.parametrize("zone", [ZURICH, "America/Havana", "Australia/Lord_Howe"])
def test_f_61_hourly_expression_is_due_whenever_the_wall_clock_matches(zone: str, moment: datetime, expression: str) -> None:
    minute, hour, *_, weekday = expression.split()

    def matches(wall: datetime) -> bool:
        minutes = {"*/20": {0, 20, 40}}.get(minute) or {int(minute)}
        hours = set(range(0, 24, int(hour[2:] or 1))) if hour != "*" else set(range(24))
        return wall.minute in minutes and wall.hour in hours and (weekday == "*" or wall.isoweekday() == 7)

    at = moment.replace(second=0, microsecond=0) + timedelta(minutes=1)
    while not matches(at.astimezone(ZoneInfo(zone))):
        at += timedelta(minutes=1)

    assert next_after(expression, zone, moment) == at


def test_concurrent_threads_share_one_expression_safely() -> None:
    """A trigger is cached and shared: one thread's search from 2020 must not end another's from 2080."""
    early, late = datetime(2020, 1, 1, tzinfo=UTC), datetime(2080, 1, 1, tzinfo=UTC)
    expected = {early: datetime(2020, 2, 29, tzinfo=UTC), late: datetime(2080, 2, 29, tzinfo=UTC)}
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            moments = [early, late] * 300
            found = list(threads.map(lambda at: next_after("0 0 29 2 *", "UTC", at), moments))
    finally:
        sys.setswitchinterval(interval)

    assert found == [expected[at] for at in moments]
