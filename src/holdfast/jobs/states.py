"""The states of a job and every legal move between them: the one table.

From it come the check in `finish`, the diagram in the docs and the trigger in the database that refuses every
other move, also from psql. A test keeps the three equal.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class State(StrEnum):
    """Where a job can be."""

    BLOCKED = "blocked"  # waits for parents, a lock or a slot; off the claim index
    PENDING = "pending"  # may be claimed, now or at `run_after`
    RUNNING = "running"  # held by one attempt
    SUBMITTED = "submitted"  # an external engine has the work; no worker holds the job
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Move(StrEnum):
    """What can happen to a job; the word that stands in its history."""

    WAKE = "wake"  # what it waited for is there
    BLOCK = "block"  # a claim found its lock or slot busy
    CLAIM = "claim"
    POLL = "poll"  # claimed again, to ask the external engine
    SUBMIT = "submit"  # handed to the external engine, or asked and still busy there
    COMPLETE = "complete"
    FAIL = "fail"
    RETRY = "retry"  # an error; budget left
    SNOOZE = "snooze"  # the handler asked to come back later
    RELEASE = "release"  # given back without prejudice, as on shutdown
    RESCUE = "rescue"  # its holder went silent
    QUARANTINE = "quarantine"  # it took too many processes down with it
    RECOVER = "recover"  # an operator took it from a silent holder
    CANCEL = "cancel"
    RERUN = "rerun"  # an operator wants an ended job once more


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
    # A job that was being polled goes back to the engine that still has its work, never to the queue.
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
    """Every pair of states that some move joins, in a stable order: what the database's trigger allows."""
    return sorted({pair for pairs in LEGAL_MOVES.values() for pair in pairs})
