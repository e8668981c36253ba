"""The states of a snapshot and the legal moves between them. A trigger in the database refuses all others; a test keeps the
two equal. The words that the documents use for export jobs stand here, too."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from holdfast.jobs.states import State


class SnapshotState(StrEnum):
    """Where a snapshot can be."""

    PENDING = "pending"  # none of its exports has begun
    CREATING = "creating"
    READY = "ready"  # every export completed, and their files are named
    FAILED = "failed"  # every export has ended, and one of them failed
    CANCELLED = "cancelled"


S = SnapshotState

LEGAL_MOVES: Final = frozenset(
    {
        (S.PENDING, S.CREATING),
        (S.PENDING, S.FAILED),
        (S.PENDING, S.CANCELLED),
        (S.CREATING, S.READY),
        (S.CREATING, S.FAILED),
        (S.CREATING, S.CANCELLED),
        (S.FAILED, S.PENDING),  # what failed is tried once more
        (S.CANCELLED, S.PENDING),
    }
)
OPEN: Final = frozenset({S.PENDING, S.CREATING})

# An export job in the words of the documents. One that is claimed to ask its engine is still submitted to them.
STATUS_OF: Final[dict[State, str]] = {
    State.BLOCKED: "pending",
    State.PENDING: "pending",
    State.RUNNING: "claimed",
    State.SUBMITTED: "submitted",
    State.COMPLETED: "completed",
    State.FAILED: "failed",
    State.CANCELLED: "cancelled",
}
STATUSES: Final = ("pending", "claimed", "submitted", "completed", "failed", "cancelled")
