"""The states of an instance and the legal moves between them. A trigger in the database refuses all others; a test compares
the two. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, get_args

from holdfast.services.graphs.runtimes.interface import ErrorCode


class InstanceState(StrEnum):
    """The state of an instance."""

    WAITING_FOR_SNAPSHOT = "waiting_for_snapshot"  # its snapshot is being exported
    STARTING = "starting"  # a graph server is started and loads
    RUNNING = "running"
    SUSPENDED = "suspended"  # it has no graph server and needs no memory; its snapshot is kept
    RESUMING = "resuming"  # as starting, after a suspension
    FAILED = "failed"  # with one of the error codes
    STOPPING = "stopping"  # it is being deleted: the graph server first, the row last


S = InstanceState

LEGAL_MOVES: Final = frozenset(
    {
        (S.WAITING_FOR_SNAPSHOT, S.STARTING),
        (S.STARTING, S.RUNNING),
        (S.RUNNING, S.STARTING),  # a restart with other limits
        (S.RUNNING, S.SUSPENDED),
        (S.SUSPENDED, S.RESUMING),
        (S.RESUMING, S.RUNNING),
        (S.FAILED, S.STARTING),  # a user starts it again, or it gets more memory after OOM_KILLED
        *((state, S.FAILED) for state in S if state not in (S.FAILED, S.STOPPING)),
        *((state, S.STOPPING) for state in S if state is not S.STOPPING),
    }
)
MOVING: Final = frozenset({S.STARTING, S.RESUMING})  # a start job drives it
ACTIVE: Final = frozenset({S.WAITING_FOR_SNAPSHOT, S.STARTING, S.RUNNING, S.RESUMING, S.STOPPING})  # counted by the limits
ERROR_CODES: Final[tuple[str, ...]] = get_args(ErrorCode)


def is_legal(before: InstanceState, after: InstanceState) -> bool:
    """Whether an instance may move from one state to the other."""
    return (before, after) in LEGAL_MOVES
