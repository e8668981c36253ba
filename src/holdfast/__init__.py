"""Holdfast: fenced background jobs in Postgres. The public names, and nothing else.

Each is loaded when it is asked for, so that the command line is there at once; `public.py` says where they live.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.apps.in_process import lifespan
    from holdfast.public import *

__all__ = [
    "Backoff",
    "Cancel",
    "CancelRequested",
    "Claim",
    "ClaimLost",
    "Client",
    "Context",
    "Done",
    "Fail",
    "HoldfastError",
    "Lock",
    "Loop",
    "NewJob",
    "Pass",
    "Permanent",
    "Pipeline",
    "Result",
    "Retry",
    "RetryPolicy",
    "Scheduler",
    "SchedulerOptions",
    "ShutdownRequested",
    "Snooze",
    "State",
    "Submitted",
    "SyncContext",
    "SyncPass",
    "TermLost",
    "Worker",
    "WorkerOptions",
    "cleaner",
    "connect",
    "crashpoint",
    "job",
    "lifespan",
    "reconciler",
]


def __getattr__(name: str) -> Any:
    """`lifespan` is by itself: it brings the migrations along, which cost more than all the rest."""
    if name == "lifespan":
        return import_module("holdfast.apps.in_process").lifespan
    if name in __all__:
        return getattr(import_module("holdfast.public"), name)
    raise AttributeError(f"module 'holdfast' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
