"""Invariants of parents and children: I12 and I13. Called by: the checkers of both kinds of schedules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime

from proof.checker.records import Execution, MoveRow
from proof.checker.witness import OK, Event

Violations = Iterator[str]


def children_come_with_their_parent(execution: Execution) -> Violations:
    """I12: parent's completion and its children are one transaction; exactly one child per step, none missing."""
    steps = Counter((job.parent_id, job.step) for job in execution.jobs.values() if job.parent_id is not None)
    for (parent, step), count in steps.items():
        if count > 1:
            yield f"job {parent} has {count} children for step {step}"
    for job in execution.jobs.values():
        if job.parent_id is None:
            continue
        xids = [move.xid for move in execution.moves.get(job.parent_id, ()) if move.move == "complete"]
        if xids != [job.created_xid]:
            yield f"job {job.id} was made in transaction {job.created_xid}, its parent completed in {xids}"
    made = {(job.parent_id, job.token) for job in execution.jobs.values()}
    for event in execution.witness.of("end"):
        if event.outcome != OK or event.detail["state"] != "completed" or _pipeline_aborted(execution, event):
            continue
        for child in event.detail["children"]:
            if child.is_plain and child.step is None and (event.job, child.payload["n"]) not in made:
                yield f"job {event.job} completed, but its child {child.payload['n']} was never made"


def _pipeline_aborted(execution: Execution, event: Event) -> bool:
    """Whether the pipeline of the job may have been aborted before: then nothing new is made."""
    pipeline = execution.claims[event.attempt].detail["claim"].pipeline_id if event.attempt in execution.claims else None
    return any(abort.detail["pipeline"] == pipeline and abort.begun < event.acked for abort in execution.witness.of("abort"))


def nobody_runs_before_its_parents(execution: Execution) -> Violations:
    """I13: no child of a parent that did not complete, and no run before every parent has ended as it must.

    Each generation of a job is judged, at the moment that let it run: its first wake-up; if it had none, the rerun that put it
    into the queue; if there was none either, its first claim. A parent that is rerun after that moment does not take it back.
    """
    for job in execution.jobs.values():
        if job.parent_id is not None and not any(m.move == "complete" for m in execution.moves.get(job.parent_id, ())):
            yield f"job {job.id} is a child of job {job.parent_id}, which never completed"
    for parent_id, job_id in execution.records.dependencies:
        if parent_id not in execution.jobs:
            continue
        for let_run in _moments_that_let_it_run(execution.moves.get(job_id, [])):
            before = [move for move in execution.moves.get(parent_id, ()) if move.at < let_run]
            ended = next((move for move in reversed(before) if move.is_end or move.move == "rerun"), None)
            if ended is None or not ended.is_end:
                yield f"job {job_id} ran before its parent {parent_id} had ended"
            elif ended.state != "completed" and execution.jobs[job_id].if_parent_fails == "cancel":
                yield f"job {job_id} ran although its parent {parent_id} {ended.state}"


def _moments_that_let_it_run(moves: list[MoveRow]) -> Iterator[datetime]:
    """One for each generation of the job in which it was claimed."""
    generations: list[list[MoveRow]] = [[]]
    for move in moves:
        if move.move == "rerun":
            generations.append([])
        generations[-1].append(move)
    for generation in generations:
        claimed_at = next((move.claimed_at for move in generation if move.claimed_at is not None), None)
        if claimed_at is None:
            continue
        woken = next((move.at for move in generation if move.move == "wake" and move.at < claimed_at), None)
        rerun = next((move for move in generation if move.move == "rerun"), None)
        is_blocked = rerun is not None and any(move.move == "block" and move.xid == rerun.xid for move in generation)
        yield woken or (rerun.at if rerun is not None and not is_blocked else claimed_at)


FAMILIES = {"I12": children_come_with_their_parent, "I13": nobody_runs_before_its_parents}
