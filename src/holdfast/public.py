"""The public names, imported from their modules. `holdfast/__init__.py` loads them on first access."""

from holdfast.crashpoints import crashpoint
from holdfast.errors import (
    CancelRequested,
    ClaimLost,
    HoldfastError,
    JobFailed,
    ShutdownRequested,
    TermLost,
    WaitTimedOut,
)
from holdfast.jobs.client import Client, connect
from holdfast.jobs.model import JobId, Lock, NewJob
from holdfast.jobs.outcome import Backoff, Cancel, Done, Fail, Permanent, Retry, RetryPolicy, Snooze, Submitted
from holdfast.jobs.parents import Parent
from holdfast.jobs.pipelines import Pipeline
from holdfast.jobs.states import State
from holdfast.schedule.context import Pass, SyncPass
from holdfast.schedule.reconcile import reconciler
from holdfast.schedule.registry import Loop, Result
from holdfast.schedule.scheduler import Scheduler, SchedulerOptions
from holdfast.worker.context import Context, SyncContext
from holdfast.worker.kinds import cleaner, job
from holdfast.worker.loop import Worker
from holdfast.worker.options import WorkerOptions

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
    "crashpoint",
    "job",
    "reconciler",
]
