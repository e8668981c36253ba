"""What a handler may end with, and what that means for its job: one table, no database."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest

from holdfast.errors import CancelRequested, PayloadInvalid, UsageError
from holdfast.jobs.model import AttemptId, Claim, JobId, NewJob, WorkerId
from holdfast.jobs.outcome import (
    COLD_START,
    POLL_SECONDS,
    Backoff,
    Cancel,
    Done,
    End,
    Fail,
    Permanent,
    Retry,
    RetryPolicy,
    Snooze,
    Submitted,
    decide,
    poll_delay,
    released,
    released_poll,
)
from holdfast.jobs.states import Move, State, is_legal

SECOND = timedelta(seconds=1)


def claim(**changes: Any) -> Claim:
    """The first attempt of a job that may fail three times."""
    first = Claim(
        JobId(7), "k", {}, AttemptId("a"), 1, 1, "default", 0, 0, 1, 0, 3, 0, None, None, None, None, 0, None, WorkerId("w")
    )
    return first._replace(**changes)


def never() -> float:
    pytest.fail("chance was asked although nothing hangs on it")


ENDS: dict[str, tuple[object, Move, State]] = {
    "nothing": (None, Move.COMPLETE, State.COMPLETED),
    "a plain value": ({"rows": 3}, Move.COMPLETE, State.COMPLETED),
    "Done": (Done("x"), Move.COMPLETE, State.COMPLETED),
    "Submitted": (Submitted("h"), Move.SUBMIT, State.SUBMITTED),
    "Snooze": (Snooze(SECOND), Move.SNOOZE, State.PENDING),
    "Retry": (Retry("later", SECOND), Move.RETRY, State.PENDING),
    "Fail": (Fail("never"), Move.FAIL, State.FAILED),
    "Cancel": (Cancel("not needed"), Move.CANCEL, State.CANCELLED),
    "a request to stop": (CancelRequested(7), Move.CANCEL, State.CANCELLED),
    "a permanent exception": (Permanent("no"), Move.FAIL, State.FAILED),
    "a wrong call": (UsageError("no"), Move.FAIL, State.FAILED),
    "a payload that cannot be stored": (PayloadInvalid("no"), Move.FAIL, State.FAILED),
}


@pytest.mark.parametrize(("ended_with", "move", "state"), ENDS.values(), ids=ENDS.keys())
def test_each_return_value_has_its_transition(ended_with: object, move: Move, state: State) -> None:
    found = decide(claim(), ended_with, chance=never)

    assert (found.move, found.state) == (move, state)
    assert is_legal(found.move, State.RUNNING, found.state)


def test_unexpected_error_is_retried() -> None:
    found = decide(claim(), ValueError("odd"), chance=lambda: 1.0)

    assert (found.move, found.state, found.errors, found.cause) == (Move.RETRY, State.PENDING, 1, "error")
    assert found.error == "ValueError: odd"
    assert "ValueError: odd" in found.detail["traceback"]


def test_last_allowed_error_fails_the_job() -> None:
    """K-33: three attempts, and the third error is the end."""
    last = claim(errors=2, max_attempts=3)

    found = [decide(last, ValueError("odd")), decide(last, Retry("odd"))]

    assert [(end.move, end.state, end.errors) for end in found] == [(Move.FAIL, State.FAILED, 1)] * 2


def test_crashes_do_not_use_the_error_budget() -> None:
    assert decide(claim(crashes=2), ValueError("odd")).state is State.PENDING


def test_snooze_is_allowed_with_an_empty_budget() -> None:
    found = decide(claim(errors=2), Snooze(SECOND, "busy"))

    assert (found.state, found.errors, found.delay) == (State.PENDING, 0, SECOND)


class SlowWarehouse(TimeoutError):
    pass


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (TimeoutError("slow"), "timeout"),
        (SlowWarehouse("slow"), "timeout"),
        (PermissionError("timeout of your permission"), "error"),
        (ValueError("Timeout"), "error"),
    ],
)
def test_timeout_is_recognised_by_type_and_not_by_message(error: Exception, cause: str) -> None:
    """E-06 n."""
    assert decide(claim(), error).cause == cause


def test_policy_decides_which_exceptions_are_permanent() -> None:
    policy = RetryPolicy(permanent=(LookupError,))

    assert decide(claim(), KeyError("gone"), policy).state is State.FAILED
    assert decide(claim(), Permanent("no"), policy).state is State.PENDING


def test_explicit_delay_overrides_the_backoff() -> None:
    assert decide(claim(), Retry("later", 5 * SECOND), chance=lambda: 0.0).delay == 5 * SECOND


def test_zero_is_a_delay() -> None:
    at_once = timedelta(0)

    assert decide(claim(), Retry("now", at_once), chance=never).delay == at_once
    assert decide(claim(), Submitted("h", at_once)).delay == at_once


@pytest.mark.parametrize(("errors", "whole"), [(0, 1), (1, 2), (2, 4), (5, 32), (9, 512), (10, 600), (2000, 600)])
def test_backoff_doubles_up_to_its_maximum_with_jitter(errors: int, whole: int) -> None:
    backoff = Backoff(first=SECOND, longest=timedelta(minutes=10))

    assert backoff.delay(errors, chance=0.0) == timedelta(seconds=whole / 2)
    assert backoff.delay(errors, chance=1.0) == timedelta(seconds=whole)


def test_jitter_is_drawn_for_each_retry() -> None:
    drawn = iter([0.0, 1.0])

    first, second = (decide(claim(), ValueError("odd"), chance=lambda: next(drawn)).delay for _ in range(2))

    assert first != second


# ---------------------------------------------------------------------------------------------------------------------
# External engines
# ---------------------------------------------------------------------------------------------------------------------


def test_poll_delays_are_the_documented_ones() -> None:
    """K-35, Z-05: 2, 3, 5, 8, 13, 21, 34, 55, 89, then 90 for ever, counted from 1."""
    found = [poll_delay(count).total_seconds() for count in range(1, 14)]

    assert found == [2, 3, 5, 8, 13, 21, 34, 55, 89, 90, 90, 90, 90]
    assert POLL_SECONDS[-1] == 90


def test_first_poll_is_two_seconds_after_the_submit() -> None:
    """K-36."""
    found = decide(claim(), Submitted("h"))

    assert (found.delay, found.poll_count, found.handle) == (2 * SECOND, 1, "h")


def test_poll_without_news_increments_the_count() -> None:
    found = decide(claim(handle="h", poll_count=4), Submitted("h2"))

    assert (found.delay, found.poll_count, found.handle) == (13 * SECOND, 5, "h2")


def test_engine_can_set_the_next_poll_time() -> None:
    assert decide(claim(), Submitted("h", 20 * SECOND)).delay == 20 * SECOND


def test_transient_poll_error_keeps_the_job_submitted() -> None:
    """K-38: the engine's work goes on, the count of looks and the budget stay."""
    asking = claim(handle="h", poll_count=3, errors=2)

    found = decide(asking, ConnectionError("reset"), chance=never)

    assert (found.move, found.state, found.errors) == (Move.RELEASE, State.SUBMITTED, 0)
    assert (found.handle, found.poll_count, found.delay) == ("h", 3, 5 * SECOND)


def test_unreachable_engine_is_polled_with_backoff() -> None:
    asking = [claim(handle="h", poll_count=3, poll_errors=errors) for errors in range(3)]

    found = [decide(one, ConnectionError("reset"), chance=never) for one in asking]

    assert [end.delay for end in found] == [5 * SECOND, 8 * SECOND, 13 * SECOND]
    assert [(end.poll_errors, end.poll_count) for end in found] == [(1, 3), (2, 3), (3, 3)]


def test_twenty_failed_polls_in_a_row_fail_the_job() -> None:
    last = decide(claim(handle="h", poll_errors=19), ConnectionError("reset"), chance=never)
    before = decide(claim(handle="h", poll_errors=18), ConnectionError("reset"), chance=never)

    assert (last.move, last.state, last.cause) == (Move.FAIL, State.FAILED, "poll")
    assert before.state is State.SUBMITTED


def test_first_answer_resets_the_count_of_failed_polls() -> None:
    asking = claim(handle="h", poll_errors=7)

    assert decide(asking, Submitted("h")).poll_errors == 0
    assert decide(asking, Snooze(SECOND)).poll_errors == 0
    assert released_poll(asking, "shutdown").poll_errors == 7


def test_permanent_poll_error_fails_the_job() -> None:
    assert decide(claim(handle="h", poll_count=3), Permanent("no such query")).state is State.FAILED


def test_claim_with_a_handle_is_a_poll() -> None:
    assert not claim().is_poll
    assert claim(handle={"query": 1}).is_poll


def test_release_counts_neither_error_nor_crash() -> None:
    """E-51: an eviction is not an error."""
    assert released("shutdown") == End(Move.RELEASE, State.PENDING, error="shutdown", cause="released")
    assert released_poll(claim(handle="h", poll_count=2), "shutdown").errors == 0


def test_completion_without_ties_is_batched() -> None:
    async def publish(conn: Any) -> None: ...

    assert decide(claim(), None).is_only_a_completion
    assert decide(claim(), Done(1)).is_only_a_completion
    assert not decide(claim(), Done(publish=publish)).is_only_a_completion
    assert not decide(claim(), Done(then=[NewJob("next")])).is_only_a_completion
    assert not decide(claim(), Fail("no")).is_only_a_completion


def test_children_and_join_are_part_of_the_end() -> None:
    child, join = NewJob("next"), NewJob("join")

    found = decide(claim(), Done(then=[child], join=join))

    assert (found.then, found.join) == ([child], join)


def test_snoozed_poll_keeps_the_work_submitted() -> None:
    """Otherwise the same work would be submitted twice."""
    polled = claim(handle={"query": 1}, poll_count=4)

    end = decide(polled, Snooze(timedelta(minutes=1)))

    assert (end.state, end.handle, end.poll_count, end.delay) == ("submitted", {"query": 1}, 4, timedelta(minutes=1))


# ---------------------------------------------------------------------------------------------------------------------
# A cold start
# ---------------------------------------------------------------------------------------------------------------------


def test_cold_start_is_retried_after_a_fixed_delay_and_only_on_timeout() -> None:
    """K-41: two retries, five seconds apart, whatever chance says; any other error is the end."""
    ends = [decide(claim(errors=n), TimeoutError("cold"), COLD_START, chance=lambda: 0.0) for n in range(3)]

    assert [(end.state, end.delay, end.cause) for end in ends] == [
        (State.PENDING, 5 * SECOND, "timeout"),
        (State.PENDING, 5 * SECOND, "timeout"),
        (State.FAILED, None, "timeout"),
    ]
    other = decide(claim(), ConnectionError("timeout"), COLD_START, chance=never)
    assert (other.state, other.cause) == (State.FAILED, "permanent")


def test_error_specific_policy_keeps_submitted_work_on_poll_errors() -> None:
    assert decide(claim(handle="h"), ConnectionError("reset"), COLD_START, chance=never).state is State.SUBMITTED


def test_submit_without_a_handle_is_refused_on_construction() -> None:
    with pytest.raises(
        UsageError, match=r"Submitted needs the handle to poll the engine with, as in Submitted\(query_id\), not None"
    ):
        Submitted(None)


# ---------------------------------------------------------------------------------------------------------------------
# A policy that cannot be
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: RetryPolicy(backoff=5), "RetryPolicy(backoff=…) takes a Backoff, as in Backoff.fixed(delay), not int (5)"),
        (
            lambda: RetryPolicy(only=[ValueError]),
            "RetryPolicy(only=…) takes a tuple of exceptions, as in (ValueError,), not list",
        ),
        (lambda: RetryPolicy(permanent="ValueError"), "RetryPolicy(permanent=…) takes a tuple of exceptions"),
        (lambda: RetryPolicy(poll_errors=0), "poll_errors cannot be 0: must be a whole number, 1 or more"),
        (lambda: Backoff(first=5), "Backoff(first=…) takes a timedelta, as in timedelta(seconds=30), not int (5)"),
        (lambda: Backoff(longest=60), "Backoff(longest=…) takes a timedelta"),
        (lambda: Backoff.fixed(5), "Backoff(first=…) takes a timedelta"),
        (lambda: Backoff(spread=50), "Backoff(spread=…) takes a fraction between 0 and 1, not int (50)"),
        (lambda: Backoff(spread="half"), "Backoff(spread=…) takes a fraction between 0 and 1"),
    ],
)
def test_invalid_policy_is_refused_on_construction(wrong: Any, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        wrong()


def test_single_exception_or_union_is_accepted_as_a_tuple() -> None:
    policy = RetryPolicy(permanent=KeyError, only=ValueError | OSError)

    assert decide(claim(), OSError("reset"), policy).state is State.PENDING
    assert decide(claim(), KeyError("k"), policy).state is State.FAILED


def test_policy_that_raises_fails_the_attempt_and_not_the_worker() -> None:
    class Broken(Backoff):
        def delay(self, errors: int, chance: float) -> timedelta:
            raise LookupError("no table")

    end = decide(claim(), ValueError("boom"), RetryPolicy(Broken()))

    assert (end.move, end.state, end.errors) == (Move.FAIL, State.FAILED, 1)
    assert end.error == "ValueError: boom; in addition its retry policy raised: LookupError: no table"


def test_long_backoff_stops_at_its_maximum() -> None:
    assert Backoff(first=timedelta(days=2), longest=timedelta(days=9), spread=0).delay(40, 0.5) == timedelta(days=9)


@pytest.mark.parametrize("outcome", [Done, Retry, Fail, ValueError])
def test_returned_class_is_refused_with_advice(outcome: type) -> None:
    end = decide(claim(), outcome, RetryPolicy())

    name = outcome.__name__
    assert (end.state, end.cause) == (State.FAILED, "permanent")
    assert end.error == (
        f"holdfast.errors.UsageError: the handler returned the class {name} and not an instance of it; return {name}(…)"
    )
