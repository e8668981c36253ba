"""What can be said about a job before it exists, and what cannot."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

import pytest

from holdfast.errors import PayloadInvalid, UsageError
from holdfast.jobs.declare import Declaration, requested_job
from holdfast.jobs.model import Enqueued, JobId, Lock, NewJob
from holdfast.jobs.outcome import Done
from holdfast.jobs.pipelines import Pipeline

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no kind": ({"kind": ""}, "kind of 1 to 200 characters"),
    "a kind that is too long": ({"kind": "k" * 201}, "kind of 1 to 200 characters"),
    "no queue": ({"queue": ""}, "name of a queue"),
    "a queue that is too long": ({"queue": "q" * 201}, "name of a queue"),
    "a priority beyond a smallint": ({"priority": 32768}, "smaller runs first"),
    "a priority below a smallint": ({"priority": -32769}, "smaller runs first"),
    "no attempt at all": ({"max_attempts": 0}, "1 or more"),
    "no crash allowed": ({"max_crashes": 0}, "1 or more"),
    "a time without a zone": ({"run_after": datetime(2030, 1, 1)}, "needs a time zone"),  # noqa: DTZ001
    "no time to run": ({"max_runtime": timedelta(0)}, "must be positive"),
    "a parent without a step": ({"parent_id": 1}, "needs a step"),
}


@pytest.mark.parametrize(("fields", "message"), WRONG.values(), ids=WRONG.keys())
def test_invalid_job_is_refused_before_sql(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        NewJob(**({"kind": "k"} | fields))


# What people write, and what they read then: the field, what was given, and what to write instead.
MISTAKEN: dict[str, tuple[dict[str, Any], str]] = {
    "seconds as a delay": ({"run_after": 5}, r"run_after cannot be 5: use timedelta(seconds=5) from now, or a datetime with"),
    "half a second as a delay": ({"run_after": 0.5}, "run_after cannot be 0.5: use timedelta(seconds=0.5)"),
    "a time as text": (
        {"run_after": "2030-01-01"},
        "run_after cannot be '2030-01-01': use a timedelta from now, or a datetime",
    ),
    "seconds to run": ({"max_runtime": 30}, "max_runtime cannot be 30: must be a timedelta; use timedelta(seconds=30)"),
    "a word for a priority": (
        {"priority": "high"},
        "priority cannot be 'high': must be a whole number between -32768 and 32767",
    ),
    "a word for a count": ({"max_attempts": "3"}, "max_attempts cannot be '3': must be a whole number, 1 or more"),
    "half a crash": ({"max_crashes": 1.5}, "max_crashes cannot be 1.5: must be a whole number, 1 or more"),
    "a version as text": ({"kind_version": "v2"}, "kind_version cannot be 'v2': must be a whole number, 1 or more"),
    "a number for a kind": ({"kind": 7}, "kind cannot be 7: must be the name of a kind of 1 to 200 characters"),
    "a number for a queue": ({"queue": 7}, "queue cannot be 7: the name of a queue must have 1 to 200 characters"),
    "a key of a lock": ({"locks": ["k"]}, "locks cannot be ('k',): each item must be a Lock; use Lock('k')"),
    "keys as one text": ({"locks": "k"}, "locks cannot be 'k': must be a list; use locks=[Lock('…')]"),
    "one lock": ({"locks": Lock("k")}, "must be a list; use locks=[Lock(…)]"),
    "one parent": ({"after": 5}, "after cannot be 5: must be a list; use after=[<the id of a job>]"),
    "what an enqueue gave back": (
        {"after": Enqueued(JobId(5), True)},
        "after cannot be Enqueued(id=5, created=True): must be a list",
    ),
    "a list of such": ({"after": [Enqueued(JobId(5), True)]}, "after cannot be Enqueued(id=5, created=True): pass its .id"),
    "no id": ({"after": [0]}, "after cannot be 0: must be the id of a job: the number that enqueue returned as .id"),
    "a parent's name": ({"parent_id": "one", "step": "s"}, "parent_id cannot be 'one': must be the id of a job"),
    "a number for an idempotency key": (
        {"idempotency_key": 7},
        "idempotency_key cannot be 7: must be text; use idempotency_key=str(",
    ),
    "a number for a unique key": ({"unique_key": 7}, "unique_key cannot be 7: must be text; use unique_key=str("),
    "a number for a slot": ({"slot_key": 7}, "slot_key cannot be 7: must be text; use slot_key=str("),
    "an empty slot": ({"slot_key": ""}, "slot_key cannot be '': must not be empty; leave it out for no key"),
    "a limit beyond the clock": (
        {"max_runtime": timedelta.max},
        ": must be at most 36500 days; leave it out for no limit",
    ),
    "a delay beyond the clock": ({"run_after": timedelta(days=10**7)}, ": must be at most 36500 days from now"),
    "long before the clock": ({"run_after": timedelta.min}, ": must be at most 36500 days from now"),
    "a year that nobody can read": ({"run_after": datetime.max.replace(tzinfo=UTC)}, ": must be before the year 9001"),
    "an odd while": ({"unique_key": "u", "unique_while": "foo"}, "unique_while cannot be 'foo': must be 'waiting' or 'live'"),
    "an odd fate": ({"if_parent_fails": "ignore"}, "if_parent_fails cannot be 'ignore': must be 'cancel' or 'run'"),
    "a name for a pipeline": (
        {"pipeline_id": "nightly"},
        "pipeline_id 'nightly' is not a UUID; use one like str(uuid.uuid4())",
    ),
}


@pytest.mark.parametrize(("fields", "message"), MISTAKEN.values(), ids=MISTAKEN.keys())
def test_common_mistakes_are_refused_with_the_fix(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        NewJob(**({"kind": "k"} | fields))


def test_lists_are_accepted_as_tuples() -> None:
    made = NewJob("k", locks=[Lock("t")], after=[1, 2])  # type: ignore[arg-type]

    assert (made.locks, made.after) == ((Lock("t"),), (1, 2))


class Kind(StrEnum):
    RENDER = "render"


def test_string_enum_is_accepted_as_text() -> None:
    assert NewJob(Kind.RENDER, queue=Kind.RENDER, slot_key=Kind.RENDER).kind == "render"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"key": 7}, "cannot be 7: must be text of 1 to 500 characters"),
        ({"key": "t", "most": "two"}, "`most` cannot be 'two': must be between 1 and"),
        ({"key": ""}, "1 to 500 characters"),
        ({"key": "x" * 501}, "1 to 500 characters"),
        ({"key": "t", "most": 0}, "between 1 and 2147483647, or None for a shared lock"),
        ({"key": "t", "when_busy": "panic"}, "'wait' or 'reject', not 'panic'"),
    ],
)
def test_invalid_lock_is_refused_before_sql(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Lock(**fields)


@pytest.mark.parametrize("priority", [-32768, 0, 32767])
def test_range_limits_are_inclusive(priority: int) -> None:
    assert NewJob("k" * 200, queue="q" * 200, priority=priority, max_attempts=1).priority == priority


def test_time_with_a_zone_is_accepted() -> None:
    NewJob("k", run_after=datetime(2030, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    "fields",
    [{"locks": (Lock("t"),)}, {"after": (1,)}, {"slot_key": "s"}, {"unique_key": "u"}, {"idempotency_key": "i"}],
)
def test_job_that_needs_a_lookup_is_not_plain(fields: dict[str, Any]) -> None:
    assert not NewJob("k", **fields).is_plain
    assert NewJob("k").is_plain


@pytest.mark.parametrize(
    ("fields", "can_be"),
    [
        ({}, True),
        ({"locks": (Lock("t"), Lock("u", most=None))}, True),
        ({"locks": (Lock("t"), Lock("u", when_busy="reject"))}, False),
        ({"locks": (Lock("t"),), "slot_key": "s"}, False),
        ({"idempotency_key": "i"}, False),
    ],
)
def test_job_with_wait_locks_can_be_copied(fields: dict[str, Any], can_be: bool) -> None:
    assert NewJob("k", **fields).is_copyable is can_be


@pytest.mark.parametrize(("waits", "named"), [({"slot_key": "s"}, "a slot"), ({"after": (1,)}, "parents to wait for")])
def test_job_with_reject_locks_cannot_have_parents(waits: dict[str, Any], named: str) -> None:
    """What it waits for may wait for its locks."""
    locks = (Lock("u"), Lock("t", when_busy="reject"))

    with pytest.raises(UsageError, match=f"k cannot have {named} and lock 't' with when_busy='reject'.*when_busy='wait'"):
        NewJob("k", locks=locks, **waits)
    with pytest.raises(UsageError, match=f"k cannot have {named}"):
        replace(NewJob("k", locks=locks), **waits)
    NewJob("k", locks=(Lock("t"),), **waits), NewJob("k", locks=locks, unique_key="u")


def test_dependants_and_joins_cannot_have_reject_locks() -> None:
    holder, pipeline = NewJob("k", locks=(Lock("t", when_busy="reject"),)), Pipeline("p")
    first = pipeline.add(holder)

    with pytest.raises(UsageError, match="k cannot have steps to wait for and lock 't'"):
        pipeline.add(holder, after=first)
    with pytest.raises(UsageError, match="k cannot have children to wait for and lock 't'"):
        Done(join=holder)
    Done(then=[holder])


@pytest.mark.parametrize("arguments", [[1, 2], "x", 7])
def test_arguments_of_a_request_must_be_a_mapping(arguments: Any) -> None:
    message = f"payload cannot be {arguments!r}: must be a mapping of arguments; use payload={{'name': value}}"

    with pytest.raises(PayloadInvalid, match=re.escape(message)):
        requested_job(Declaration("k"), arguments, {})
