"""The checker itself: a clean story has no violations, and every invariant goes red for the story that breaks it.

Each story is made by hand: what Postgres would say (`records`) and what the actors were told (`witness`).
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

from holdfast.jobs.model import Lock, NewJob
from tales import LEASE, NOON, Broken, MakeStory, Tale, completed


def a_quiet_day(tale: Tale) -> None:
    completed(tale, 1)
    tale.enqueue(2, attempt_no=2, crashes=1)
    tale.claim(2, "b1")
    tale.note("expire", worker="w", at=tale.now())
    tale.row(2, "rescue", "pending", "b1", 1, actor="sweep", detail={"cause": "lease_lost"})
    tale.note("rescue", job=2)
    tale.note("progress", LOST, job=2, attempt="b1", worker="w")
    tale.claim(2, "b2", 2, fence=99)
    tale.end(2, "b2", 2)
    tale.look()


# ---------------------------------------------------------------------------------------------------------------------
# What breaks which invariant
# ---------------------------------------------------------------------------------------------------------------------

BROKEN = Broken()
breaks = BROKEN.breaks


@breaks("I1")
def ended_twice(tale: Tale) -> None:
    completed(tale)
    tale.row(1, "cancel", "cancelled", actor="operator")


@breaks("I1")
def rerun_without_a_new_generation(tale: Tale) -> None:
    tale.enqueue(1, state="cancelled")
    tale.row(1, "cancel", "cancelled")
    tale.row(1, "rerun", "pending")
    tale.row(1, "cancel", "cancelled")


@breaks("I2")
def ended_by_an_attempt_that_nobody_was_given(tale: Tale) -> None:
    tale.enqueue(1, attempt_no=1)
    tale.claimed_at = tale.now()
    tale.row(1, "complete", "completed", "stranger", 1)


@breaks("I2")
def accepted_and_not_written(tale: Tale) -> None:
    tale.enqueue(1)
    tale.claim(1, "a1")
    tale.told_end(1, "a1")


@breaks("I2")
def refused_although_nobody_ended_it(tale: Tale) -> None:
    tale.enqueue(1)
    tale.claim(1, "a1")
    tale.told_end(1, "a1", LOST)


@breaks("I3")
def acknowledged_and_gone(tale: Tale) -> None:
    tale.enqueue(1)
    tale.records.jobs.clear()


@breaks("I3")
def stuck_for_ever(tale: Tale) -> None:
    tale.enqueue(1, state="blocked")


@breaks("I4")
def made_by_a_call_that_was_undone(tale: Tale) -> None:
    tale.job(1)
    tale.note("enqueue", "undone", spec=NewJob("k"), token=1)


@breaks("I4")
def one_idempotency_key_for_two_jobs(tale: Tale) -> None:
    tale.enqueue(1, spec={"idempotency_key": "key"})
    tale.enqueue(2, spec={"idempotency_key": "key"})


@breaks("I4")
def two_jobs_from_one_call(tale: Tale) -> None:
    tale.enqueue(1)
    tale.records.jobs.append(JobRow(2, token=1))


@breaks("I5")
def a_number_that_came_back(tale: Tale) -> None:
    tale.enqueue(1, attempt_no=1)
    tale.claim(1, "a1")
    tale.end(1, "a1", 1, "release", "pending")
    tale.claim(1, "a2", 1, fence=9)
    tale.end(1, "a2", 1)


@breaks("I5")
def more_attempts_than_ends(tale: Tale) -> None:
    completed(tale)
    tale.change(1, attempt_no=2)


@breaks("I6")
def an_attempt_id_given_twice(tale: Tale) -> None:
    tale.enqueue(1, attempt_no=2)
    tale.claim(1, "a1")
    tale.claim(1, "a1", 2)


@breaks("I6")
def fence_tokens_that_fall(tale: Tale) -> None:
    tale.enqueue(1, attempt_no=2)
    tale.claim(1, "a1", fence=7)
    tale.end(1, "a1", 1, "release", "pending")
    tale.claim(1, "a2", 2, fence=6)
    tale.end(1, "a2", 2)


@breaks("I7")
def a_crash_that_was_not_counted(tale: Tale) -> None:
    a_quiet_day(tale)
    tale.change(2, crashes=0)


@breaks("I7")
def a_run_beyond_the_budget(tale: Tale) -> None:
    tale.enqueue(1, spec={"max_attempts": 1}, attempt_no=2, errors=1, max_attempts=1)
    tale.claim(1, "a1")
    tale.end(1, "a1", 1, "retry", "pending")
    tale.claim(1, "a2", 2, fence=9)
    tale.end(1, "a2", 2)


def two_holders(tale: Tale, most: int = 1) -> None:
    for number in (1, 2):
        tale.enqueue(number, attempt_no=1)
        tale.records.wants.append(WantRow(number, "red", most, "wait"))
        tale.claim(number, f"a{number}")
    tale.claimed_at = NOON
    for number in (1, 2):
        tale.end(number, f"a{number}")


@breaks("I8")
def two_exclusive_holders(tale: Tale) -> None:
    two_holders(tale)


@breaks("I8")
def a_lock_that_went_back_to_an_older_token(tale: Tale) -> None:
    for number, fence in ((1, 9), (2, 5)):
        tale.enqueue(number, attempt_no=1)
        tale.records.wants.append(WantRow(number, "red", 1, "wait"))
        tale.claim(number, f"a{number}", fence=fence)
        tale.end(number, f"a{number}")


def holder(**fields: Any) -> dict[str, Any]:
    whole = {"key": "red", "most": 1, "job": 1, "holder": "a1", "state": "running", "attempt": "a1", "when_busy": "wait"}
    return whole | fields


@breaks("I9")
def a_lock_held_under_another_attempt(tale: Tale) -> None:
    tale.look(holders=[holder(attempt="a2")])


@breaks("I9")
def a_lock_held_after_the_end(tale: Tale) -> None:
    tale.look(holders=[holder(state="completed", attempt=None)])


@breaks("I9")
def a_run_whose_lock_a_stranger_freed(tale: Tale) -> None:
    tale.look(bare=[[1, "red"]])


@breaks("I9")
def a_lock_left_over(tale: Tale) -> None:
    tale.records.holders.append(("red", 1))


@breaks("I10")
def robbed_while_alive(tale: Tale) -> None:
    tale.enqueue(1, attempt_no=1, crashes=1, state="failed")
    tale.claim(1, "a1")
    at = tale.now()
    tale.note("beat", worker="w", held=[], lost=[], clock=None, at=at, until=at + LEASE, lease=LEASE)
    tale.row(1, "quarantine", "failed", "a1", 1, detail={"cause": "lease_lost"})
    tale.note("rescue", job=1)


@breaks("I10")
def a_renewal_from_the_past(tale: Tale) -> None:
    clock = tale.now()
    tale.note(
        "beat", worker="w", held=[], lost=[], clock=clock, at=clock, until=clock + LEASE - timedelta(seconds=2), lease=LEASE
    )


@breaks("I10")
def a_sweep_that_overlooks_the_silent(tale: Tale) -> None:
    tale.note("sweep", left=[1], taken=[])


@breaks("I11")
def a_write_after_the_end(tale: Tale) -> None:
    completed(tale)
    tale.note("progress", job=1, attempt="a1", worker="w")


@breaks("I11")
def a_write_after_the_rescue(tale: Tale) -> None:
    a_quiet_day(tale)
    tale.note("checkpoint", job=2, attempt="b1", worker="w")


@breaks("I11")
def a_living_attempt_that_was_refused(tale: Tale) -> None:
    tale.enqueue(1, attempt_no=1)
    tale.claim(1, "a1")
    tale.note("progress", LOST, job=1, attempt="a1", worker="w")
    tale.end(1, "a1")


@breaks("I11")
def a_beat_that_does_not_tell(tale: Tale) -> None:
    completed(tale)
    tale.note("beat", worker="w", held=[(1, "a1")], lost=[], clock=None, at=None, until=None, lease=LEASE)


@breaks("I11")
def somebody_elses_end_taken_for_ones_own(tale: Tale) -> None:
    a_quiet_day(tale)
    tale.note("resolve", job=2, attempt="b1", worker="w", answer="ended")


@breaks("I12")
def a_child_in_another_transaction(tale: Tale) -> None:
    completed(tale)
    tale.job(2, parent_id=1, step="next", created_xid="elsewhere")


@breaks("I12")
def two_children_for_one_step(tale: Tale) -> None:
    completed(tale)
    xid = tale.records.moves[-1].xid
    for number in (2, 3):
        tale.job(number, parent_id=1, step="next", created_xid=xid)


@breaks("I12")
def a_child_that_was_never_made(tale: Tale) -> None:
    tale.enqueue(1, attempt_no=1)
    tale.claim(1, "a1")
    tale.end(1, "a1", children=[NewJob("k", {"n": 2})])


@breaks("I13")
def a_child_of_a_parent_that_failed(tale: Tale) -> None:
    tale.enqueue(1, attempt_no=1, errors=1, state="failed")
    tale.claim(1, "a1")
    tale.end(1, "a1", 1, "fail", "failed")
    tale.job(2, parent_id=1, step="next")


@breaks("I13")
def a_run_before_the_parents_end(tale: Tale) -> None:
    completed(tale, 2)
    completed(tale, 1)
    tale.records.dependencies.append((1, 2))


@breaks("I13")
def a_wake_up_before_the_parents_end(tale: Tale) -> None:
    """The parent ends before the claim: judged at the claim alone, nothing would be wrong."""
    tale.enqueue(2, attempt_no=1)
    tale.row(2, "wake", "pending")
    completed(tale, 1)
    tale.claim(2, "a2")
    tale.end(2, "a2")
    tale.records.dependencies.append((1, 2))


def a_parent_that_fails_twice(tale: Tale) -> None:
    tale.enqueue(1, attempt_no=1, generation=1)
    tale.row(1, "cancel", "cancelled")
    tale.enqueue(2, attempt_no=1, generation=1)
    tale.row(2, "cancel", "cancelled")
    tale.records.dependencies.append((1, 2))


@breaks("I13")
def a_rerun_before_the_parents_end(tale: Tale) -> None:
    a_parent_that_fails_twice(tale)
    tale.row(2, "rerun", "pending")
    tale.claim(2, "a2")
    tale.end(2, "a2")


@breaks("I13")
def a_rerun_that_was_woken_before_the_parents_end(tale: Tale) -> None:
    a_parent_that_fails_twice(tale)
    tale.row(1, "rerun", "pending")
    tale.row(2, "rerun", "pending", xid="x")
    tale.row(2, "block", "blocked", xid="x")
    tale.row(2, "wake", "pending")
    tale.claim(2, "a2")
    tale.claim(1, "a1")
    tale.end(1, "a1")
    tale.end(2, "a2")


def test_a_parent_that_is_rerun_does_not_take_back_what_its_end_let_run() -> None:
    tale = Tale()
    tale.enqueue(2, attempt_no=1, if_parent_fails="run")
    tale.enqueue(1, generation=1, state="cancelled")
    tale.records.dependencies.append((1, 2))
    tale.row(1, "cancel", "cancelled")
    tale.row(2, "wake", "pending")
    tale.row(1, "rerun", "pending")
    tale.row(2, "block", "blocked", reason="lock red")
    tale.row(2, "wake", "pending")  # by the lock: the parent waits again by now
    tale.claim(2, "a2")
    tale.end(2, "a2")
    tale.row(1, "cancel", "cancelled")

    assert "I13" not in {violation.invariant for violation in check(tale.story())}


@breaks("I14")
def claimed_after_it_was_cancelled(tale: Tale) -> None:
    tale.enqueue(1, attempt_no=1)
    tale.note("cancel", job=1)
    tale.claim(1, "a1")


@breaks("I14")
def not_told_that_it_was_asked_to_stop(tale: Tale) -> None:
    tale.enqueue(1, attempt_no=1)
    tale.claim(1, "a1")
    tale.note("ask to stop", job=1)
    tale.note("checkpoint", job=1, attempt="a1", worker="w")
    tale.end(1, "a1")


@breaks("I15")
def run_after_its_end(tale: Tale) -> None:
    tale.enqueue(1, attempt_no=1)
    tale.row(1, "cancel", "cancelled")
    tale.claim(1, "a1")
    tale.end(1, "a1")


@breaks("I15")
def a_state_that_the_history_does_not_lead_to(tale: Tale) -> None:
    completed(tale)
    tale.change(1, state="cancelled")


@breaks("I16")
def more_holders_than_permits(tale: Tale) -> None:
    tale.look(holders=[holder(job=number, holder="x", attempt="x", most=2) for number in (1, 2, 3)])


@breaks("I16")
def more_runs_than_permits(tale: Tale) -> None:
    two_holders(tale)


@breaks("I17")
def an_effect_that_nobody_cleaned(tale: Tale) -> None:
    completed(tale)
    tale.records.effects.append(EffectRow(1, "a0", "thing-1", "made", temporary=False))


@breaks("I17")
def a_thing_that_nobody_knows_of(tale: Tale) -> None:
    tale.outside.add("thing-1")


@breaks("publish")
def published_twice(tale: Tale) -> None:
    tale.enqueue(1, attempt_no=1)
    tale.claim(1, "a1")
    tale.end(1, "a1", published=True)
    tale.records.published += [(1, "a1"), (1, "a1")]


@breaks("publish")
def published_by_nobody(tale: Tale) -> None:
    tale.enqueue(1, attempt_no=1)
    tale.claim(1, "a1")
    tale.end(1, "a1", published=True)


@breaks("slot")
def two_runs_in_one_slot(tale: Tale) -> None:
    for number in (1, 2):
        tale.enqueue(number, attempt_no=1, slot_key="s")
        tale.claim(number, f"a{number}")


@breaks("trigger")
def a_trigger_merged_into_a_run_that_had_begun(tale: Tale) -> None:
    completed(tale)
    tale.enqueue(1, created=False, spec={"slot_key": "s"})


@breaks("unique")
def two_waiting_twins(tale: Tale) -> None:
    tale.look(twins=[["key", [1, 2]]])


@breaks("reject")
def a_lock_refused_that_nobody_wanted(tale: Tale) -> None:
    spec = NewJob("k", {"n": 1}, locks=(Lock("red", 1, "reject"),))
    tale.note("enqueue", REFUSED, spec=spec, token=1, error="LockBusy")


@breaks("wake")
def woken_by_nobodys_end(tale: Tale) -> None:
    tale.enqueue(1)
    tale.row(1, "wake", "pending")


@breaks("wake")
def forgotten_at_the_end(tale: Tale) -> None:
    tale.note("look after end", job=1, attempt="a1", forgotten=[("lock red", 2)])


@breaks("delay")
def run_before_its_time(tale: Tale) -> None:
    tale.enqueue(1, spec={"run_after": LEASE})
    tale.claim(1, "a1")


@breaks("order")
def claimed_while_paused(tale: Tale) -> None:
    tale.enqueue(1)
    tale.note("pause", kind="k")
    tale.claim(1, "a1")


@breaks("order")
def made_while_draining(tale: Tale) -> None:
    tale.note("drain", kind="*")
    tale.enqueue(1)


@breaks("engine")
def work_taken_from_its_engine(tale: Tale) -> None:
    tale.enqueue(1)
    tale.claim(1, "a1", how="poll")
    tale.row(1, "rescue", "pending", "a1", 1)


@breaks("surprise")
def a_deadlock(tale: Tale) -> None:
    tale.note("error", act="claim_some", error="DeadlockDetected")


@breaks("surprise")
def a_claim_that_took_too_many(tale: Tale) -> None:
    tale.note("claims", limit=1, got=12)


@breaks("surprise")
def a_claim_that_waited(tale: Tale) -> None:
    tale.note("waited", act="claim_some", statement=1)


def test_a_clean_story_has_no_violations() -> None:
    tale = Tale()

    a_quiet_day(tale)

    assert check(tale.story()) == []


@pytest.mark.parametrize(("transaction", "robbed"), [(1, True), (10**6, False)])
def test_a_beat_that_waited_for_the_rescue_was_too_late_and_no_robbery(transaction: int, robbed: bool) -> None:
    tale = Tale()
    tale.enqueue(1, attempt_no=1, crashes=1, state="failed")
    tale.claim(1, "a1")
    tale.note("expire", worker="w", at=tale.now())
    at = tale.now()
    facts = {"held": [], "lost": [], "clock": None, "at": at, "until": at + LEASE, "lease": LEASE}
    tale.note("beat", worker="w", xid=transaction, **facts)
    tale.row(1, "quarantine", "failed", "a1", 1, detail={"cause": "lease_lost"})

    found = [violation for violation in check(tale.story()) if "whose lease was not over" in violation.sentence]

    assert bool(found) is robbed


@breaks("line")
def a_reader_that_overtook_a_writer(tale: Tale) -> None:
    tale.records.wants += [WantRow(1, "red", 1, "wait"), WantRow(2, "red", None, "wait")]
    tale.enqueue(1, state="blocked")
    tale.row(1, "block", "blocked", reason="lock red")
    completed(tale, 2)


@breaks("I23")
def a_crash_for_a_job_that_never_began(tale: Tale) -> None:
    tale.enqueue(1, attempt_no=1, crashes=1, state="pending")
    tale.claim(1, "a1", begins=False)
    tale.row(1, "rescue", "pending", "a1", 1, actor="sweep", detail={"cause": "lease_lost"})


@breaks("I23")
def a_job_that_never_began_runs_alone_from_now_on(tale: Tale) -> None:
    tale.enqueue(1, attempt_no=1, state="pending")
    tale.claim(1, "a1", begins=False)
    detail = {"cause": "lease_lost", "counted": False, "beside": 1}
    tale.row(1, "rescue", "pending", "a1", 1, actor="rescue", detail=detail)


@breaks("I23")
def too_long_a_run_of_a_job_that_never_began(tale: Tale) -> None:
    tale.enqueue(1, attempt_no=1, crashes=1, state="pending")
    tale.claim(1, "a1", begins=False)
    tale.note("overrun", job=1, attempt="a1")
    tale.row(1, "rescue", "pending", "a1", 1, actor="rescue", detail={"cause": "max_runtime"})


@breaks("I23")
def a_crash_for_a_job_that_did_not_run_in_the_process(tale: Tale) -> None:
    tale.enqueue(1, attempt_no=1, crashes=1, state="pending")
    tale.claim(1, "a1")
    tale.row(1, "rescue", "pending", "a1", 1, actor="keeper", detail={"cause": "signal"})
    tale.note("bury", worker="w", running=[2])


@breaks("I23")
def failed_at_a_shutdown_without_having_run(tale: Tale) -> None:
    tale.enqueue(1, attempt_no=1, errors=1, state="failed")
    tale.claim(1, "a1")
    tale.row(1, "fail", "failed", "a1", 1, actor="keeper")
    tale.note("shut down", worker="w", running=[])


@breaks("I23")
def an_error_of_a_job_that_never_got_a_lane(tale: Tale) -> None:
    tale.enqueue(1, attempt_no=1, errors=1, state="failed")
    tale.claim(1, "a1", begins=False, for_lanes=True)
    tale.end(1, "a1", 1, "fail", "failed")


@pytest.mark.parametrize(("invariant", "story"), BROKEN, ids=lambda value: getattr(value, "__name__", value))
def test_a_broken_story_is_noticed(invariant: str, story: MakeStory) -> None:
    tale = Tale()

    story(tale)

    assert invariant in {violation.invariant for violation in check(tale.story())}


def test_a_child_of_its_slot_may_bring_a_delayed_job_forward() -> None:
    """It is merged into the job that waits there, and wants it now."""
    tale = Tale()
    tale.enqueue(1, attempt_no=1, spec={"run_after": LEASE, "slot_key": "s"}, slot_key="s")
    tale.enqueue(2, attempt_no=1)
    tale.claim(2, "b1")
    tale.end(2, "b1", children=[NewJob("k", {"n": 3}, slot_key="s")])
    tale.claim(1, "a1")

    assert "delay" not in {violation.invariant for violation in check(tale.story())}


def test_every_invariant_is_broken_by_some_story() -> None:
    """Those of `fairness.py` have their stories in `test_fairness_checker.py`."""
    assert {invariant for invariant, _ in BROKEN} == set(INVARIANTS) - set(FAIR)


def test_every_invariant_says_which_promise_it_checks() -> None:
    assert [name for name, invariant in INVARIANTS.items() if not invariant.__doc__] == []


def test_a_run_that_never_met_a_fault_proves_nothing() -> None:
    everything = Counter(SOMETIMES)

    assert never_exercised(everything) == []
    assert never_exercised(everything - Counter({"crash": 1})) == ["crash"]
