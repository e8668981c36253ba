"""The states of a snapshot and the legal transitions. A trigger in the database refuses all others; a test compares the two.
Also the status names of export jobs in the API."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from holdfast.jobs.states import State


class SnapshotState(StrEnum):
    """The state of a snapshot."""

    PENDING = "pending"  # no export has started
    CREATING = "creating"
    READY = "ready"  # all exports completed, and their files are recorded
    FAILED = "failed"  # all exports have ended, and at least one failed
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
        (S.FAILED, S.PENDING),  # retry
        (S.CANCELLED, S.PENDING),
    }
)
OPEN: Final = frozenset({S.PENDING, S.CREATING})

# The status of an export job in the API. A job that is claimed to poll its engine is still `submitted` there.
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
