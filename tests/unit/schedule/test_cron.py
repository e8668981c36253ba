"""F-61: when a cron expression is due, through changes of the clocks, leap years and dates that never come."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import UsageError
from holdfast.schedule.cron import check, next_after
from holdfast.schedule.registry import Loop

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


def test_f_61_a_time_that_the_clocks_skip_comes_when_the_gap_is_over() -> None:
    start = datetime(2026, 3, 28, 12, tzinfo=UTC)

    assert local("30 2 * * *", start, 2) == ["29 03:30", "30 02:30"]


def test_f_61_a_time_that_comes_twice_is_due_once() -> None:
    start = datetime(2026, 10, 24, 12, tzinfo=UTC)

    assert local("30 2 * * *", start, 2) == ["25 02:30", "26 02:30"]
    assert local("*/30 2 * * *", start, 3) == ["25 02:00", "25 02:30", "26 02:00"]


def test_f_61_what_is_due_every_hour_goes_on_through_both_changes() -> None:
    spring, autumn = datetime(2026, 3, 28, 22, tzinfo=UTC), datetime(2026, 10, 24, 22, tzinfo=UTC)

    for start in (spring, autumn):
        hours = due("0 * * * *", start, 6, ZURICH)
        assert {after - before for before, after in pairwise(hours)} == {timedelta(hours=1)}


def test_f_61_the_29th_of_february_comes_in_leap_years_only() -> None:
    years = [at.year for at in due("0 0 29 2 *", datetime(2093, 1, 1, tzinfo=UTC), 3)]

    assert years == [2096, 2104, 2108], "2100 is none"


@pytest.mark.parametrize("expression", ["* * 31 2 *", "0 0 30 2 *", "0 0 31 4,6,9,11 *"])
def test_f_61_a_date_that_never_comes_is_refused_and_not_looked_for_for_ever(expression: str) -> None:
    with pytest.raises(UsageError, match="never comes"):
        check(expression, "UTC")
    with pytest.raises(UsageError, match="never comes"):
        Loop("impossible", print, cron=expression)


def test_f_61_a_time_zone_that_is_not_there_is_named() -> None:
    with pytest.raises(UsageError, match="no time zone 'Europe/Atlantis'"):
        check("0 0 * * *", "Europe/Atlantis")


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("* * *", "five"),
        ("61 * * * *", "cannot be read"),
        ("banana * * * *", "cannot be read"),
        ("0 0 1 * 1", "a day and a weekday"),
        ("0 0 * * 9", "weekday"),
        ("0 0 * * 5-2", "backwards"),
    ],
)
def test_an_expression_that_is_wrong_is_refused_with_what_is_wrong(expression: str, said: str) -> None:
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
def test_weekdays_are_counted_as_crontab_counts_them(weekday: str, days: set[str]) -> None:
    found = due(f"0 0 * * {weekday}", datetime(2026, 1, 1, tzinfo=UTC), 14)

    assert {at.strftime("%a") for at in found} == days


FROM = 946_684_800  # the year 2000
MOMENTS = st.integers(FROM, 3_700_000_000).map(lambda seconds: datetime.fromtimestamp(seconds, UTC))


@pytest.mark.parametrize("time", ["0 0", "15 0", "59 0", "0 1"])
def test_f_61_the_first_hour_after_a_short_night_is_not_missed(time: str) -> None:
    found = due(f"{time} * * *", datetime(2026, 3, 27, 12, tzinfo=UTC), 5, ZURICH)

    assert [at.astimezone(ZoneInfo(ZURICH)).day for at in found] == [28, 29, 30, 31, 1]


@given(
    moment=MOMENTS,
    minute=st.integers(0, 59),
    hour=st.integers(0, 23),
    zone=st.sampled_from([ZURICH, "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "UTC"]),
)
def test_f_61_a_daily_time_comes_once_a_day_everywhere(moment: datetime, minute: int, hour: int, zone: str) -> None:
    found = due(f"{minute} {hour} * * *", moment, 5, zone)

    days = [at.astimezone(ZoneInfo(zone)).date() for at in found]
    assert [(after - before).days for before, after in pairwise(days)] == [1, 1, 1, 1]
    assert found[0] > moment


@given(moment=MOMENTS, step=st.integers(1, 30))
def test_f_61_the_next_time_is_always_later(moment: datetime, step: int) -> None:
    found = due(f"*/{step} * * * *", moment, 20, "Australia/Lord_Howe")

    assert all(before < after for before, after in pairwise([moment, *found]))
