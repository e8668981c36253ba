"""Holdfast: fenced background jobs in Postgres. This package exports the public names.

They are loaded on first access, so that the command line starts fast; `public.py` imports them from their modules.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.apps.embedded_console import console
    from holdfast.apps.in_process import lifespan
    from holdfast.public import *

__all__ = [
    "Backoff",
    "Cancel",
    "CancelRequested",
    "ClaimLost",
    "Client",
    "Context",
    "Done",
    "Fail",
    "HoldfastError",
    "JobFailed",
    "JobId",
    "Lock",
    "Loop",
    "NewJob",
    "Parent",
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
    "WaitTimedOut",
    "Worker",
    "WorkerOptions",
    "cleaner",
    "connect",
    "console",
    "crashpoint",
    "job",
    "lifespan",
    "reconciler",
]


def __getattr__(name: str) -> Any:
    """Load a public name. `lifespan` is separate: it imports the migrations, which take longer than everything else."""
    if name == "lifespan":
        return import_module("holdfast.apps.in_process").lifespan
    if name == "console":
        return import_module("holdfast.console")  # which can be called
    if name in __all__:
        return getattr(import_module("holdfast.public"), name)
    raise AttributeError(f"module 'holdfast' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
