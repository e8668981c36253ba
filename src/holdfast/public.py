"""Everything that is public, from where it lives. `holdfast` hands each out when it is asked for."""

from holdfast.crashpoints import crashpoint
from holdfast.errors import CancelRequested, ClaimLost, HoldfastError, ShutdownRequested, TermLost
from holdfast.jobs.client import Client, connect
from holdfast.jobs.model import Claim, Lock, NewJob
from holdfast.jobs.outcome import Backoff, Cancel, Done, Fail, Permanent, Retry, RetryPolicy, Snooze, Submitted
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
    "reconciler",
]
