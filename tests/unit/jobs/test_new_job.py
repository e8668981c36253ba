"""What can be said about a job before it exists, and what cannot."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast.errors import UsageError
from holdfast.jobs.model import Lock, NewJob

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no kind": ({"kind": ""}, "kind of 1 to 200 characters"),
    "a kind that is too long": ({"kind": "k" * 201}, "kind of 1 to 200 characters"),
    "no queue": ({"queue": ""}, "queue's name"),
    "a queue that is too long": ({"queue": "q" * 201}, "queue's name"),
    "a priority beyond a smallint": ({"priority": 32768}, "smaller runs first"),
    "a priority below a smallint": ({"priority": -32769}, "smaller runs first"),
    "no attempt at all": ({"max_attempts": 0}, "1 or more"),
    "no crash allowed": ({"max_crashes": 0}, "1 or more"),
    "a time without a zone": ({"run_after": datetime(2030, 1, 1)}, "needs a time zone"),  # noqa: DTZ001
    "no time to run": ({"max_runtime": timedelta(0)}, "longer than nothing"),
    "a parent without a step": ({"parent_id": 1}, "needs the name of its step"),
}


@pytest.mark.parametrize(("fields", "message"), WRONG.values(), ids=WRONG.keys())
def test_a_job_that_cannot_be_is_refused_before_sql(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        NewJob(**({"kind": "k"} | fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"key": ""}, "1 to 500 characters"),
        ({"key": "x" * 501}, "1 to 500 characters"),
        ({"key": "t", "most": 0}, "1 or more, or None for a shared lock"),
        ({"key": "t", "when_busy": "panic"}, "'wait' or 'reject', not 'panic'"),
    ],
)
def test_a_lock_that_cannot_be_is_refused_before_sql(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Lock(**fields)


@pytest.mark.parametrize("priority", [-32768, 0, 32767])
def test_the_ends_of_a_range_belong_to_it(priority: int) -> None:
    assert NewJob("k" * 200, queue="q" * 200, priority=priority, max_attempts=1).priority == priority


def test_a_time_with_a_zone_is_a_time() -> None:
    NewJob("k", run_after=datetime(2030, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    "fields",
    [{"locks": (Lock("t"),)}, {"after": (1,)}, {"slot_key": "s"}, {"unique_key": "u"}, {"idempotency_key": "i"}],
)
def test_a_job_that_something_must_be_looked_up_for_is_not_plain(fields: dict[str, Any]) -> None:
    assert not NewJob("k", **fields).is_plain
    assert NewJob("k").is_plain
