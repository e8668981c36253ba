"""Invariants of prefetched jobs whose handler has not started: I23. Called by: `check.py`."""

from __future__ import annotations

from collections.abc import Iterator

from proof.checker.records import Execution, MoveRow
from proof.checker.witness import OK


def what_never_began_is_not_penalised(execution: Execution) -> Iterator[str]:
    """I23: a job that was held and never began pays nothing when it is taken from its worker.

    An attempt has begun if its claim began it, or if its start was written. If not:

    - the silence of its worker costs it no crash and is no reason to run it alone;
    - it is not taken for running beyond its longest time.

    Where the keeper of a process says what ran in it, an attempt that did not run pays no crash for its death, and does not
    fail at a shutdown. An attempt that waited for a lane, and never got one, ends without an error.
    """
    began = {event.attempt for event in execution.witness.of("begin", "begin by beat") if event.outcome == OK}
    held_ahead = {event.attempt for event in execution.witness.of("claim") if not event.detail.get("begins", True)}
    started = {event.attempt for event in execution.witness.of("start")}
    never_started = {event.attempt for event in execution.witness.of("claim") if event.detail.get("for_lanes")} - started
    for moves in execution.moves.values():
        for move in moves:
            if move.attempt_id is None:
                continue
            attempt = f"attempt {move.attempt_no} of job {move.job_id}"
            if move.attempt_id in held_ahead - began:
                yield from _penalised(move, attempt)
            if not _may_have_run(execution, move) and (move.is_crash or move.move == "fail"):
                yield f"{attempt} paid for the end of its worker, and did not run in it"
            if move.attempt_id in never_started and move.move in ("retry", "fail"):
                yield f"{attempt} paid an error, and had waited for a lane until then"


def _penalised(move: MoveRow, attempt: str) -> Iterator[str]:
    cause = (move.detail or {}).get("cause")
    if cause == "lease_lost" and move.is_crash:
        yield f"{attempt} paid a crash, and had never begun"
    if cause == "lease_lost" and "beside" in (move.detail or {}):
        yield f"{attempt} runs alone from now on, and had never begun"
    if cause == "max_runtime":
        yield f"{attempt} was taken for running too long, and had never begun"


def _may_have_run(execution: Execution, move: MoveRow) -> bool:
    """False if the keeper of its worker ended the attempt and said that it did not run."""
    by_keeper = move.actor == "keeper" and ((move.detail or {}).get("cause") == "signal" or move.move == "fail")
    said = [event.detail["running"] for event in execution.witness.of("bury", "shut down") if event.worker == move.worker_id]
    return not by_keeper or all(running is None or move.attempt_id in running for running in said)


STARTS = {"I23": what_never_began_is_not_penalised}
