"""Invariants of delay, pause, drain and external engines. Called by: `check.py`.

No job runs before its time or while it is paused, draining accepts no new jobs, and an engine gets the work of a job
once.
"""

from __future__ import annotations

from collections.abc import Iterator

from proof.checker.records import Execution
from proof.checker.witness import OK, Event

Violations = Iterator[str]


def nobody_runs_early(execution: Execution) -> Violations:
    """A job with a delay is not claimed before time has passed (time passes only when the schedule says so)."""
    passed = list(execution.witness.of("pass time"))
    for event in execution.witness.of("enqueue"):
        if event.outcome != OK or not event.detail["created"] or event.detail["spec"].run_after is None:
            continue
        if any(rerun.job == event.job for rerun in execution.witness.of("rerun")):
            continue  # an operator who wants it again wants it now
        if any(other.job == event.job and not other.detail["created"] for other in execution.witness.of("enqueue")):
            continue  # another trigger of its slot found it, and may have wanted it sooner
        if _pulled_forward_by_a_child(execution, event):
            continue
        for claim in execution.claims_of.get(event.job or 0, ())[:1]:
            if not any(time.acked > event.begun and time.begun < claim.acked for time in passed):
                yield f"job {event.job} was claimed before its time"


def _pulled_forward_by_a_child(execution: Execution, enqueue: Event) -> bool:
    """Whether a job ended with a child of the same kind and slot: the child is merged into the job that waits there."""
    wanted = enqueue.detail["spec"]
    children = [child for end in execution.witness.of("end") if end.acked > enqueue.begun for child in end.detail["children"]]
    return wanted.slot_key is not None and any(
        (child.kind, child.slot_key) == (wanted.kind, wanted.slot_key) for child in children
    )


def pause_and_drain_are_obeyed(execution: Execution) -> Violations:
    """While a kind, or all of them, is paused nobody claims it to run; while it is being drained nobody makes it."""
    for order in execution.witness.of("pause"):
        for claim in execution.witness.of("claim"):
            kind, to_run = claim.detail["claim"].kind, claim.detail["how"] in ("batch", "by id")
            if to_run and _in_force(execution, order, kind, claim):
                yield f"job {claim.job} was claimed while {order.detail['kind']} was paused"
    for order in execution.witness.of("drain"):
        for event in execution.witness.of("enqueue"):
            made = event.outcome == OK and event.detail["created"]
            if made and _in_force(execution, order, event.detail["spec"].kind, event):
                yield f"job {event.job} was made while {order.detail['kind']} was being drained"


def _in_force(execution: Execution, order: Event, kind: str, event: Event) -> bool:
    if order.detail["kind"] not in (kind, "*") or not order.before(event):
        return False
    undone = [other for other in execution.witness.of("resume") if other.detail["kind"] == order.detail["kind"]]
    return not any(other.acked > order.begun and other.begun < event.acked for other in undone)


def engines_keep_their_work(execution: Execution) -> Violations:
    """Promise 7: an attempt that only asks an engine and is taken away leaves the work there, and never in the queue."""
    for attempt, claim in execution.claims.items():
        for move in execution.ends.get(attempt, ()):
            if claim.detail["how"] == "poll" and move.move in ("rescue", "recover", "release") and move.state == "pending":
                yield f"job {claim.job} was with its engine, and {move.move} put it back into the queue"
            if claim.detail["how"] != "poll" and move.move in ("rescue", "recover") and move.state == "submitted":
                yield f"job {claim.job} was not with an engine, and {move.move} left it waiting for one"


ORDERS = {"delay": nobody_runs_early, "order": pause_and_drain_are_obeyed, "engine": engines_keep_their_work}
