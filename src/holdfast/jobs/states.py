"""The states of a job and the table of legal moves between them.

It is used by the check in `finish`, the diagram in the docs, and the trigger in the database that refuses every other move,
also from psql. A test checks that the three are equal.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class State(StrEnum):
    """The state of a job."""

    BLOCKED = "blocked"  # waits for parents, a lock or a slot; off the claim index
    PENDING = "pending"  # may be claimed, now or at `run_after`
    RUNNING = "running"  # held by one attempt
    SUBMITTED = "submitted"  # an external engine has the work; no worker holds the job
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Move(StrEnum):
    """What can happen to a job; recorded in its history."""

    WAKE = "wake"  # the parents, lock or slot that it waited for are ready
    BLOCK = "block"  # a claim found its lock or slot busy
    CLAIM = "claim"
    POLL = "poll"  # claimed to poll the external engine
    SUBMIT = "submit"  # submitted to the external engine, or polled and not finished there
    COMPLETE = "complete"
    FAIL = "fail"
    RETRY = "retry"  # an error; budget left
    SNOOZE = "snooze"  # the handler asked to come back later
    RELEASE = "release"  # returned to the queue without an error, as on shutdown
    RESCUE = "rescue"  # the lease of its worker expired, or its process died
    QUARANTINE = "quarantine"  # too many of its processes crashed
    RECOVER = "recover"  # an operator took it from a silent holder
    CANCEL = "cancel"
    RERUN = "rerun"  # an operator runs an ended job again


S, M = State, Move

LEGAL_MOVES: Final[dict[Move, frozenset[tuple[State, State]]]] = {
    M.WAKE: frozenset({(S.BLOCKED, S.PENDING)}),
    M.BLOCK: frozenset({(S.PENDING, S.BLOCKED)}),
    M.CLAIM: frozenset({(S.PENDING, S.RUNNING)}),
    M.POLL: frozenset({(S.SUBMITTED, S.RUNNING)}),
    M.SUBMIT: frozenset({(S.RUNNING, S.SUBMITTED)}),
    M.COMPLETE: frozenset({(S.RUNNING, S.COMPLETED)}),
    M.FAIL: frozenset({(S.RUNNING, S.FAILED)}),
    M.RETRY: frozenset({(S.RUNNING, S.PENDING)}),
    M.SNOOZE: frozenset({(S.RUNNING, S.PENDING)}),
    # A job that was being polled returns to `submitted`, because the engine still has its work, never to the queue.
    M.RELEASE: frozenset({(S.RUNNING, S.PENDING), (S.RUNNING, S.SUBMITTED)}),
    M.RESCUE: frozenset({(S.RUNNING, S.PENDING), (S.RUNNING, S.SUBMITTED)}),
    M.RECOVER: frozenset({(S.RUNNING, S.PENDING), (S.RUNNING, S.SUBMITTED)}),
    M.QUARANTINE: frozenset({(S.RUNNING, S.FAILED)}),
    M.CANCEL: frozenset(
        {(S.BLOCKED, S.CANCELLED), (S.PENDING, S.CANCELLED), (S.RUNNING, S.CANCELLED), (S.SUBMITTED, S.CANCELLED)}
    ),
    M.RERUN: frozenset({(S.FAILED, S.PENDING), (S.CANCELLED, S.PENDING)}),
}

WAITING: Final = frozenset({S.BLOCKED, S.PENDING})
LIVE: Final = frozenset({S.BLOCKED, S.PENDING, S.RUNNING, S.SUBMITTED})
ENDED: Final = frozenset({S.COMPLETED, S.FAILED, S.CANCELLED})


def is_legal(move: Move, before: State, after: State) -> bool:
    """Whether `move` may lead from one state to the other."""
    return (before, after) in LEGAL_MOVES[move]


def legal_pairs() -> list[tuple[State, State]]:
    """Every pair of states with a legal move, in a stable order: what the database's trigger allows."""
    return sorted({pair for pairs in LEGAL_MOVES.values() for pair in pairs})
