"""The checker of the process schedules can tell: one planted lie for each of its invariants."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from proof.checker.records import Execution, JobRow, MoveRow, Records
from proof.checker.witness import Witness
from proof.processes.checks import Account, Acknowledged, Line, check

from holdfast.jobs.model import NewJob

BEGIN = datetime(2030, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


def line(what: str, seconds: float, attempt: str = "a", **more: object) -> Line:
    told = Line(what, 1, "proof.steps", attempt, 1, 1, "w", 7, seconds, at(seconds).timestamp())
    return replace(told, **more)  # type: ignore[arg-type]


def an_account(**changes: object) -> Account:
    """A job that was run and completed by its first attempt, with nothing wrong about it."""
    job = JobRow(1, token=1, attempt_no=1, max_attempts=20, max_crashes=50)
    move = MoveRow(1, 1, "complete", "completed", at(2), "9", 1, "a", "w", at(0))
    new = NewJob("proof.steps", {"n": 1}, max_attempts=20, max_crashes=50, idempotency_key="k")
    witness = Witness()
    witness.note("enqueue", witness.tick(), job=1, token=1, spec=new, created=True)
    account = Account(
        Execution(Records(jobs=[job], moves=[move]), witness),
        [line("start", 0.1), line("effect", 1.0, checked=0.999, until=9.0), line("finish", 1.5)],
        [Acknowledged(1, new)],
        [("w", at(1), at(2), None, 7)],
        {1: "a"},
    )
    return replace(account, **changes)  # type: ignore[type-var]


def rescued(seconds: float) -> MoveRow:
    return MoveRow(0, 1, "rescue", "pending", at(seconds), "8", 1, "x", "w", at(0), detail={"cause": "lease_lost"})


def with_moves(*moves: MoveRow) -> Execution:
    sound = an_account().execution
    return Execution(replace(sound.records, moves=list(moves)), sound.witness)


def broken(account: Account) -> set[str]:
    return {violation.invariant for violation in check(account)}


def test_correct_log_has_no_violation():
    assert check(an_account()) == []


LIES = {
    "I4": an_account(acknowledged=[]),
    "I2": an_account(lines=[*an_account().lines, line("start", 0.2)]),
    "finish": an_account(lines=[line("start", 0.1)]),
    "publish": an_account(lines=[line(told.what, told.at, kind="proof.publish") for told in an_account().lines]),
    "I11": an_account(lines=[*an_account().lines, line("effect", 2.5, checked=2.499, until=9.0)]),
    "I8 outside": an_account(
        lines=[
            *an_account().lines,
            line("effect", 1.1, checked=1.099, until=9.0, key="k", fence=2),
            line("effect", 1.2, checked=1.199, until=9.0, key="k", fence=1),
        ]
    ),
    "I10": an_account(execution=with_moves(rescued(1.5), replace(an_account().execution.records.moves[0], attempt_no=2))),
    "I17 outside": an_account(lines=[*an_account().lines, line("submit", 0.2, tag="t"), line("submit", 0.3, tag="u")]),
    "I21": an_account(complaints=["a job was left over"]),
}


@pytest.mark.parametrize("invariant", LIES)
def test_violation_is_detected(invariant: str):
    assert invariant in broken(LIES[invariant])


def test_wrong_result_is_detected():
    assert broken(an_account(results={1: "b"})) == {"finish"}


def test_attempt_without_history_is_detected():
    assert "I2" in broken(an_account(lines=[*an_account().lines, line("start", 0.3, attempt="b")]))


def test_freeze_between_check_and_effect_is_no_violation():
    """F-12: it cannot be excluded, and it carries its fence."""
    assert check(an_account(lines=[*an_account().lines, line("effect", 3.0, checked=1.0, until=2.0)])) == []


def test_check_allowed_after_its_deadline_is_detected():
    assert broken(an_account(lines=[*an_account().lines, line("effect", 5.0, checked=4.9, until=2.0)])) == {"I11"}


def test_heartbeat_that_waited_for_the_rescue_is_late():
    """It writes when it began to wait, which is before the rescue, and a lease that nobody had when the job was taken."""
    robbed = LIES["I10"]
    assert "I10" not in broken(replace(robbed, workers=[("w", at(1), at(2), None, 9)]))
