"""`@job(cron=…)` and `@job(every=…)`: what they declare, and what they refuse."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, timedelta
from typing import Any

import pytest

from holdfast import Lock, job
from holdfast.errors import HoldfastError, UsageError
from holdfast.jobs.declare import from_json
from holdfast.protocol.wire import SaidDeclaration
from holdfast.worker import kinds

NIGHTLY = "0 2 * * *"


@pytest.fixture(autouse=True)
def own_kinds() -> Iterator[None]:
    before = dict(kinds._kinds)
    yield
    kinds._kinds.clear()
    kinds._kinds.update(before)


def test_a_schedule_is_published_with_its_arguments_and_read_back() -> None:
    @job("test.nightly", cron=NIGHTLY, timezone="Europe/Zurich", catch_up="all", args={"region": "eu"})
    def nightly(region: str, due_at: datetime, limit: int = 5) -> None: ...

    published = nightly.published
    read = from_json(published).periodic

    assert read == nightly.declared.periodic
    assert read is not None
    assert (read.cron, read.timezone, read.catch_up) == (NIGHTLY, "Europe/Zurich", "all")
    assert (read.payload, read.gives_due_at) == ({"region": "eu"}, True)
    assert from_json(SaidDeclaration(**published).model_dump()).periodic == read, "over HTTP too"


def test_last_missed_due_time_is_caught_up_by_default() -> None:
    made = job("test.every", every=timedelta(minutes=5))(lambda: None)

    assert made.declared.periodic is not None
    assert made.declared.periodic.catch_up == "last"
    assert job("test.plain")(lambda: None).published["periodic"] is None


def test_explicit_due_at_argument_is_kept() -> None:
    @job("test.given", every=timedelta(hours=1), args={"due_at": "never"})
    def given(due_at: str) -> None: ...

    assert given.declared.periodic is not None
    assert given.declared.periodic.gives_due_at is False


def needs_argument(region: str) -> None: ...


def wants_a_date(due_at: date) -> None: ...


@pytest.mark.parametrize(
    ("options", "function", "message"),
    [
        ({"cron": "61 * * * *"}, None, "test.wrong: cron '61 \\* \\* \\* \\*' is invalid"),
        ({"cron": "* * *"}, None, "has 3 fields; use five"),
        ({"cron": "0 0 30 2 *"}, None, "never matches"),
        ({"cron": 5}, None, "use cron='0 2 \\* \\* \\*'"),
        ({"cron": NIGHTLY, "timezone": "Europe/Atlantis"}, None, "unknown time zone 'Europe/Atlantis'; use an IANA name"),
        ({"cron": NIGHTLY, "timezone": 5}, None, "use timezone='Europe/Zurich'"),
        ({"cron": NIGHTLY, "every": timedelta(1)}, None, "either cron=.* or every=.*, and not both"),
        ({"every": timedelta(0)}, None, "every"),
        ({"every": timedelta(seconds=-5)}, None, "every"),
        ({"every": timedelta(seconds=0.5)}, None, "the shortest interval is 1 second"),
        ({"every": 60}, None, "use timedelta\\(seconds=60\\)"),
        ({"every": timedelta(1), "timezone": "Europe/Zurich"}, None, "remove timezone"),
        ({"cron": NIGHTLY, "catch_up": "some"}, None, "catch_up"),
        ({"timezone": "UTC"}, None, "timezone is for periodic jobs; add cron="),
        ({"args": {}}, None, "args is for periodic jobs"),
        ({"catch_up": "all"}, None, "catch_up is for periodic jobs"),
        ({"cron": NIGHTLY, "args": [1]}, None, "use args="),
        ({"cron": NIGHTLY}, needs_argument, "each run needs its arguments: .*region.*; give them defaults, or args="),
        ({"cron": NIGHTLY, "args": {"region": 5}}, needs_argument, "region: Input should be a valid string"),
        ({"cron": NIGHTLY, "args": {"other": 5, "region": "eu"}}, needs_argument, "other"),
        ({"cron": NIGHTLY}, wants_a_date, "due_at"),
        ({"cron": NIGHTLY, "locks": lambda: [Lock("k")]}, None, "locks of a periodic job must be a template"),
    ],
)
def test_invalid_schedule_is_refused_at_declaration(options: dict[str, Any], function: Any, message: str) -> None:
    with pytest.raises(HoldfastError, match=message):
        job("test.wrong", **options)(function or (lambda: None))


def test_invalid_schedule_is_refused_over_http() -> None:
    published = job("test.http", every=timedelta(hours=1))(lambda: None).published

    with pytest.raises((ValueError, UsageError), match="unknown time zone"):
        SaidDeclaration(**{**published, "periodic": {"cron": NIGHTLY, "timezone": "Atlantis"}})
