"""The checker itself: a clean execution has no violations, and every invariant goes red for the execution that breaks it.

Each execution is made by hand: what Postgres would say (`records`) and what the actors were told (`witness`).
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from proof.checker.check import INVARIANTS, SOMETIMES, check, never_exercised
from proof.checker.fairness import FAIR
from proof.checker.records import EffectRow, JobRow, WantRow
from proof.checker.witness import LOST, REFUSED

from executions import LEASE, NOON, Broken, ExecutionBuilder, MakeExecution, completed
from holdfast.jobs.model import Lock, NewJob


def a_quiet_day(built: ExecutionBuilder) -> None:
    completed(built, 1)
    built.enqueue(2, attempt_no=2, crashes=1)
    built.claim(2, "b1")
    built.note("expire", worker="w", at=built.now())
    built.row(2, "rescue", "pending", "b1", 1, actor="sweep", detail={"cause": "lease_lost"})
    built.note("rescue", job=2)
    built.note("progress", LOST, job=2, attempt="b1", worker="w")
    built.claim(2, "b2", 2, fence=99)
    built.end(2, "b2", 2)
    built.look()


# ---------------------------------------------------------------------------------------------------------------------
# What breaks which invariant
# ---------------------------------------------------------------------------------------------------------------------

BROKEN = Broken()
breaks = BROKEN.breaks


@breaks("I1")
def ended_twice(built: ExecutionBuilder) -> None:
    completed(built)
    built.row(1, "cancel", "cancelled", actor="operator")


@breaks("I1")
def rerun_without_a_new_generation(built: ExecutionBuilder) -> None:
    built.enqueue(1, state="cancelled")
    built.row(1, "cancel", "cancelled")
    built.row(1, "rerun", "pending")
    built.row(1, "cancel", "cancelled")


@breaks("I2")
def ended_by_an_attempt_that_nobody_was_given(built: ExecutionBuilder) -> None:
    built.enqueue(1, attempt_no=1)
    built.claimed_at = built.now()
    built.row(1, "complete", "completed", "stranger", 1)


@breaks("I2")
def accepted_and_not_written(built: ExecutionBuilder) -> None:
    built.enqueue(1)
    built.claim(1, "a1")
    built.told_end(1, "a1")


@breaks("I2")
def refused_although_nobody_ended_it(built: ExecutionBuilder) -> None:
    built.enqueue(1)
    built.claim(1, "a1")
    built.told_end(1, "a1", LOST)


@breaks("I3")
def acknowledged_and_gone(built: ExecutionBuilder) -> None:
    built.enqueue(1)
    built.records.jobs.clear()


@breaks("I3")
def stuck_for_ever(built: ExecutionBuilder) -> None:
    built.enqueue(1, state="blocked")


@breaks("I4")
def made_by_a_call_that_was_undone(built: ExecutionBuilder) -> None:
    built.job(1)
    built.note("enqueue", "undone", spec=NewJob("k"), token=1)


@breaks("I4")
def one_idempotency_key_for_two_jobs(built: ExecutionBuilder) -> None:
    built.enqueue(1, spec={"idempotency_key": "key"})
    built.enqueue(2, spec={"idempotency_key": "key"})


@breaks("I4")
def two_jobs_from_one_call(built: ExecutionBuilder) -> None:
    built.enqueue(1)
    built.records.jobs.append(JobRow(2, token=1))


@breaks("I5")
def a_number_that_came_back(built: ExecutionBuilder) -> None:
    built.enqueue(1, attempt_no=1)
    built.claim(1, "a1")
    built.end(1, "a1", 1, "release", "pending")
    built.claim(1, "a2", 1, fence=9)
    built.end(1, "a2", 1)


@breaks("I5")
def more_attempts_than_ends(built: ExecutionBuilder) -> None:
    completed(built)
    built.change(1, attempt_no=2)


@breaks("I6")
def an_attempt_id_given_twice(built: ExecutionBuilder) -> None:
    built.enqueue(1, attempt_no=2)
    built.claim(1, "a1")
    built.claim(1, "a1", 2)


@breaks("I6")
def fence_tokens_that_fall(built: ExecutionBuilder) -> None:
    built.enqueue(1, attempt_no=2)
    built.claim(1, "a1", fence=7)
    built.end(1, "a1", 1, "release", "pending")
    built.claim(1, "a2", 2, fence=6)
    built.end(1, "a2", 2)


@breaks("I7")
def a_crash_that_was_not_counted(built: ExecutionBuilder) -> None:
    a_quiet_day(built)
    built.change(2, crashes=0)


@breaks("I7")
def a_run_beyond_the_budget(built: ExecutionBuilder) -> None:
    built.enqueue(1, spec={"max_attempts": 1}, attempt_no=2, errors=1, max_attempts=1)
    built.claim(1, "a1")
    built.end(1, "a1", 1, "retry", "pending")
    built.claim(1, "a2", 2, fence=9)
    built.end(1, "a2", 2)


def two_holders(built: ExecutionBuilder, most: int = 1) -> None:
    for number in (1, 2):
        built.enqueue(number, attempt_no=1)
        built.records.wants.append(WantRow(number, "red", most, "wait"))
        built.claim(number, f"a{number}")
    built.claimed_at = NOON
    for number in (1, 2):
        built.end(number, f"a{number}")


@breaks("I8")
def two_exclusive_holders(built: ExecutionBuilder) -> None:
    two_holders(built)


@breaks("I8")
def a_lock_that_went_back_to_an_older_token(built: ExecutionBuilder) -> None:
    for number, fence in ((1, 9), (2, 5)):
        built.enqueue(number, attempt_no=1)
        built.records.wants.append(WantRow(number, "red", 1, "wait"))
        built.claim(number, f"a{number}", fence=fence)
        built.end(number, f"a{number}")


def holder(**fields: Any) -> dict[str, Any]:
    whole = {"key": "red", "most": 1, "job": 1, "holder": "a1", "state": "running", "attempt": "a1", "when_busy": "wait"}
    return whole | fields


@breaks("I9")
def a_lock_held_under_another_attempt(built: ExecutionBuilder) -> None:
    built.look(holders=[holder(attempt="a2")])


@breaks("I9")
def a_lock_held_after_the_end(built: ExecutionBuilder) -> None:
    built.look(holders=[holder(state="completed", attempt=None)])


@breaks("I9")
def a_run_whose_lock_a_stranger_freed(built: ExecutionBuilder) -> None:
    built.look(bare=[[1, "red"]])


@breaks("I9")
def a_lock_left_over(built: ExecutionBuilder) -> None:
    built.records.holders.append(("red", 1))


@breaks("I10")
def robbed_while_alive(built: ExecutionBuilder) -> None:
    built.enqueue(1, attempt_no=1, crashes=1, state="failed")
    built.claim(1, "a1")
    at = built.now()
    built.note("beat", worker="w", held=[], lost=[], clock=None, at=at, until=at + LEASE, lease=LEASE)
    built.row(1, "quarantine", "failed", "a1", 1, detail={"cause": "lease_lost"})
    built.note("rescue", job=1)


@breaks("I10")
def a_renewal_from_the_past(built: ExecutionBuilder) -> None:
    clock = built.now()
    built.note(
        "beat", worker="w", held=[], lost=[], clock=clock, at=clock, until=clock + LEASE - timedelta(seconds=2), lease=LEASE
    )


@breaks("I10")
def a_sweep_that_overlooks_the_silent(built: ExecutionBuilder) -> None:
    built.note("sweep", left=[1], taken=[])


@breaks("I11")
def a_write_after_the_end(built: ExecutionBuilder) -> None:
    completed(built)
    built.note("progress", job=1, attempt="a1", worker="w")


@breaks("I11")
def a_write_after_the_rescue(built: ExecutionBuilder) -> None:
    a_quiet_day(built)
    built.note("checkpoint", job=2, attempt="b1", worker="w")


@breaks("I11")
def a_living_attempt_that_was_refused(built: ExecutionBuilder) -> None:
    built.enqueue(1, attempt_no=1)
    built.claim(1, "a1")
    built.note("progress", LOST, job=1, attempt="a1", worker="w")
    built.end(1, "a1")


@breaks("I11")
def a_beat_that_does_not_tell(built: ExecutionBuilder) -> None:
    completed(built)
    built.note("beat", worker="w", held=[(1, "a1")], lost=[], clock=None, at=None, until=None, lease=LEASE)


@breaks("I11")
def somebody_elses_end_taken_for_ones_own(built: ExecutionBuilder) -> None:
    a_quiet_day(built)
    built.note("resolve", job=2, attempt="b1", worker="w", answer="ended")


@breaks("I12")
def a_child_in_another_transaction(built: ExecutionBuilder) -> None:
    completed(built)
    built.job(2, parent_id=1, step="next", created_xid="elsewhere")


@breaks("I12")
def two_children_for_one_step(built: ExecutionBuilder) -> None:
    completed(built)
    xid = built.records.moves[-1].xid
    for number in (2, 3):
        built.job(number, parent_id=1, step="next", created_xid=xid)


@breaks("I12")
def a_child_that_was_never_made(built: ExecutionBuilder) -> None:
    built.enqueue(1, attempt_no=1)
    built.claim(1, "a1")
    built.end(1, "a1", children=[NewJob("k", {"n": 2})])


@breaks("I13")
def a_child_of_a_parent_that_failed(built: ExecutionBuilder) -> None:
    built.enqueue(1, attempt_no=1, errors=1, state="failed")
    built.claim(1, "a1")
    built.end(1, "a1", 1, "fail", "failed")
    built.job(2, parent_id=1, step="next")


@breaks("I13")
def a_run_before_the_parents_end(built: ExecutionBuilder) -> None:
    completed(built, 2)
    completed(built, 1)
    built.records.dependencies.append((1, 2))


@breaks("I13")
def a_wake_up_before_the_parents_end(built: ExecutionBuilder) -> None:
    """The parent ends before the claim: judged at the claim alone, nothing would be wrong."""
    built.enqueue(2, attempt_no=1)
    built.row(2, "wake", "pending")
    completed(built, 1)
    built.claim(2, "a2")
    built.end(2, "a2")
    built.records.dependencies.append((1, 2))


def a_parent_that_fails_twice(built: ExecutionBuilder) -> None:
    built.enqueue(1, attempt_no=1, generation=1)
    built.row(1, "cancel", "cancelled")
    built.enqueue(2, attempt_no=1, generation=1)
    built.row(2, "cancel", "cancelled")
    built.records.dependencies.append((1, 2))


@breaks("I13")
def a_rerun_before_the_parents_end(built: ExecutionBuilder) -> None:
    a_parent_that_fails_twice(built)
    built.row(2, "rerun", "pending")
    built.claim(2, "a2")
    built.end(2, "a2")


@breaks("I13")
def a_rerun_that_was_woken_before_the_parents_end(built: ExecutionBuilder) -> None:
    a_parent_that_fails_twice(built)
    built.row(1, "rerun", "pending")
    built.row(2, "rerun", "pending", xid="x")
    built.row(2, "block", "blocked", xid="x")
    built.row(2, "wake", "pending")
    built.claim(2, "a2")
    built.claim(1, "a1")
    built.end(1, "a1")
    built.end(2, "a2")


def test_rerun_of_a_parent_does_not_invalidate_started_dependants() -> None:
    built = ExecutionBuilder()
    built.enqueue(2, attempt_no=1, if_parent_fails="run")
    built.enqueue(1, generation=1, state="cancelled")
    built.records.dependencies.append((1, 2))
    built.row(1, "cancel", "cancelled")
    built.row(2, "wake", "pending")
    built.row(1, "rerun", "pending")
    built.row(2, "block", "blocked", reason="lock red")
    built.row(2, "wake", "pending")  # by the lock: the parent waits again by now
    built.claim(2, "a2")
    built.end(2, "a2")
    built.row(1, "cancel", "cancelled")

    assert "I13" not in {violation.invariant for violation in check(built.execution())}


@breaks("I14")
def claimed_after_it_was_cancelled(built: ExecutionBuilder) -> None:
    built.enqueue(1, attempt_no=1)
    built.note("cancel", job=1)
    built.claim(1, "a1")


@breaks("I14")
def not_told_that_it_was_asked_to_stop(built: ExecutionBuilder) -> None:
    built.enqueue(1, attempt_no=1)
    built.claim(1, "a1")
    built.note("ask to stop", job=1)
    built.note("checkpoint", job=1, attempt="a1", worker="w")
    built.end(1, "a1")


@breaks("I15")
def run_after_its_end(built: ExecutionBuilder) -> None:
    built.enqueue(1, attempt_no=1)
    built.row(1, "cancel", "cancelled")
    built.claim(1, "a1")
    built.end(1, "a1")


@breaks("I15")
def a_state_that_the_history_does_not_lead_to(built: ExecutionBuilder) -> None:
    completed(built)
    built.change(1, state="cancelled")


@breaks("I16")
def more_holders_than_permits(built: ExecutionBuilder) -> None:
    built.look(holders=[holder(job=number, holder="x", attempt="x", most=2) for number in (1, 2, 3)])


@breaks("I16")
def more_runs_than_permits(built: ExecutionBuilder) -> None:
    two_holders(built)


@breaks("I17")
def an_effect_that_nobody_cleaned(built: ExecutionBuilder) -> None:
    completed(built)
    built.records.effects.append(EffectRow(1, "a0", "thing-1", "made", temporary=False))


@breaks("I17")
def a_thing_that_nobody_knows_of(built: ExecutionBuilder) -> None:
    built.outside.add("thing-1")


@breaks("publish")
def published_twice(built: ExecutionBuilder) -> None:
    built.enqueue(1, attempt_no=1)
    built.claim(1, "a1")
    built.end(1, "a1", published=True)
    built.records.published += [(1, "a1"), (1, "a1")]


@breaks("publish")
def published_by_nobody(built: ExecutionBuilder) -> None:
    built.enqueue(1, attempt_no=1)
    built.claim(1, "a1")
    built.end(1, "a1", published=True)


@breaks("slot")
def two_runs_in_one_slot(built: ExecutionBuilder) -> None:
    for number in (1, 2):
        built.enqueue(number, attempt_no=1, slot_key="s")
        built.claim(number, f"a{number}")


@breaks("trigger")
def a_trigger_merged_into_a_run_that_had_begun(built: ExecutionBuilder) -> None:
    completed(built)
    built.enqueue(1, created=False, spec={"slot_key": "s"})


@breaks("unique")
def two_waiting_twins(built: ExecutionBuilder) -> None:
    built.look(twins=[["key", [1, 2]]])


@breaks("reject")
def a_lock_refused_that_nobody_wanted(built: ExecutionBuilder) -> None:
    spec = NewJob("k", {"n": 1}, locks=(Lock("red", 1, "reject"),))
    built.note("enqueue", REFUSED, spec=spec, token=1, error="LockBusy")


@breaks("wake")
def woken_by_nobodys_end(built: ExecutionBuilder) -> None:
    built.enqueue(1)
    built.row(1, "wake", "pending")


@breaks("wake")
def forgotten_at_the_end(built: ExecutionBuilder) -> None:
    built.note("look after end", job=1, attempt="a1", forgotten=[("lock red", 2)])


@breaks("delay")
def run_before_its_time(built: ExecutionBuilder) -> None:
    built.enqueue(1, spec={"run_after": LEASE})
    built.claim(1, "a1")


@breaks("order")
def claimed_while_paused(built: ExecutionBuilder) -> None:
    built.enqueue(1)
    built.note("pause", kind="k")
    built.claim(1, "a1")


@breaks("order")
def made_while_draining(built: ExecutionBuilder) -> None:
    built.note("drain", kind="*")
    built.enqueue(1)


@breaks("engine")
def work_taken_from_its_engine(built: ExecutionBuilder) -> None:
    built.enqueue(1)
    built.claim(1, "a1", how="poll")
    built.row(1, "rescue", "pending", "a1", 1)


@breaks("surprise")
def a_deadlock(built: ExecutionBuilder) -> None:
    built.note("error", act="claim_some", error="DeadlockDetected")


@breaks("surprise")
def a_claim_that_took_too_many(built: ExecutionBuilder) -> None:
    built.note("claims", limit=1, got=12)


@breaks("surprise")
def a_claim_that_waited(built: ExecutionBuilder) -> None:
    built.note("waited", act="claim_some", statement=1)


def test_correct_history_has_no_violations() -> None:
    built = ExecutionBuilder()

    a_quiet_day(built)

    assert check(built.execution()) == []


@pytest.mark.parametrize(("transaction", "robbed"), [(1, True), (10**6, False)])
def test_heartbeat_that_waited_for_the_rescue_is_late_and_no_violation(transaction: int, robbed: bool) -> None:
    built = ExecutionBuilder()
    built.enqueue(1, attempt_no=1, crashes=1, state="failed")
    built.claim(1, "a1")
    built.note("expire", worker="w", at=built.now())
    at = built.now()
    facts = {"held": [], "lost": [], "clock": None, "at": at, "until": at + LEASE, "lease": LEASE}
    built.note("beat", worker="w", xid=transaction, **facts)
    built.row(1, "quarantine", "failed", "a1", 1, detail={"cause": "lease_lost"})

    found = [violation for violation in check(built.execution()) if "whose lease was not over" in violation.sentence]

    assert bool(found) is robbed


@breaks("line")
def a_reader_that_overtook_a_writer(built: ExecutionBuilder) -> None:
    built.records.wants += [WantRow(1, "red", 1, "wait"), WantRow(2, "red", None, "wait")]
    built.enqueue(1, state="blocked")
    built.row(1, "block", "blocked", reason="lock red")
    completed(built, 2)


@breaks("I23")
def a_crash_for_a_job_that_never_began(built: ExecutionBuilder) -> None:
    built.enqueue(1, attempt_no=1, crashes=1, state="pending")
    built.claim(1, "a1", begins=False)
    built.row(1, "rescue", "pending", "a1", 1, actor="sweep", detail={"cause": "lease_lost"})


@breaks("I23")
def a_job_that_never_began_runs_alone_from_now_on(built: ExecutionBuilder) -> None:
    built.enqueue(1, attempt_no=1, state="pending")
    built.claim(1, "a1", begins=False)
    detail = {"cause": "lease_lost", "counted": False, "beside": 1}
    built.row(1, "rescue", "pending", "a1", 1, actor="rescue", detail=detail)


@breaks("I23")
def too_long_a_run_of_a_job_that_never_began(built: ExecutionBuilder) -> None:
    built.enqueue(1, attempt_no=1, crashes=1, state="pending")
    built.claim(1, "a1", begins=False)
    built.note("overrun", job=1, attempt="a1")
    built.row(1, "rescue", "pending", "a1", 1, actor="rescue", detail={"cause": "max_runtime"})


@breaks("I23")
def a_crash_for_a_job_that_did_not_run_in_the_process(built: ExecutionBuilder) -> None:
    built.enqueue(1, attempt_no=1, crashes=1, state="pending")
    built.claim(1, "a1")
    built.row(1, "rescue", "pending", "a1", 1, actor="keeper", detail={"cause": "signal"})
    built.note("bury", worker="w", running=[2])


@breaks("I23")
def failed_at_a_shutdown_without_having_run(built: ExecutionBuilder) -> None:
    built.enqueue(1, attempt_no=1, errors=1, state="failed")
    built.claim(1, "a1")
    built.row(1, "fail", "failed", "a1", 1, actor="keeper")
    built.note("shut down", worker="w", running=[])


@breaks("I23")
def an_error_of_a_job_that_never_got_a_lane(built: ExecutionBuilder) -> None:
    built.enqueue(1, attempt_no=1, errors=1, state="failed")
    built.claim(1, "a1", begins=False, for_lanes=True)
    built.end(1, "a1", 1, "fail", "failed")


@pytest.mark.parametrize(("invariant", "execution"), BROKEN, ids=lambda value: getattr(value, "__name__", value))
def test_violation_is_detected(invariant: str, execution: MakeExecution) -> None:
    built = ExecutionBuilder()

    execution(built)

    assert invariant in {violation.invariant for violation in check(built.execution())}


def test_child_of_a_slot_may_advance_a_delayed_job() -> None:
    """It is merged into the job that waits there, and wants it now."""
    built = ExecutionBuilder()
    built.enqueue(1, attempt_no=1, spec={"run_after": LEASE, "slot_key": "s"}, slot_key="s")
    built.enqueue(2, attempt_no=1)
    built.claim(2, "b1")
    built.end(2, "b1", children=[NewJob("k", {"n": 3}, slot_key="s")])
    built.claim(1, "a1")

    assert "delay" not in {violation.invariant for violation in check(built.execution())}


def test_every_invariant_has_a_violating_history() -> None:
    """Those of `fairness.py` have their executions in `test_fairness_checker.py`."""
    assert {invariant for invariant, _ in BROKEN} == set(INVARIANTS) - set(FAIR)


def test_every_invariant_names_its_guarantee() -> None:
    assert [name for name, invariant in INVARIANTS.items() if not invariant.__doc__] == []


def test_run_without_every_fault_is_reported() -> None:
    everything = Counter(SOMETIMES)

    assert never_exercised(everything) == []
    assert never_exercised(everything - Counter({"crash": 1})) == ["crash"]
