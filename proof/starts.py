"""What must hold of jobs that a worker holds ahead of its lanes: I23. Called by: the checker."""

from __future__ import annotations

from collections.abc import Iterator

from proof.records import Story
from proof.witness import OK


def what_never_began_is_not_penalised(story: Story) -> Iterator[str]:
    """I23: the silence of a worker costs a crash only to jobs that began when claimed, or whose start was written."""
    began = {event.attempt for event in story.witness.of("begin", "begin by beat") if event.outcome == OK}
    held_ahead = {event.attempt for event in story.witness.of("claim") if not event.detail.get("begins", True)}
    for moves in story.moves.values():
        for move in moves:
            cause = (move.detail or {}).get("cause")
            if move.is_crash and cause == "lease_lost" and move.attempt_id in held_ahead - began:
                yield f"attempt {move.attempt_no} of job {move.job_id} paid a crash, and had never begun"


STARTS = {"I23": what_never_began_is_not_penalised}
