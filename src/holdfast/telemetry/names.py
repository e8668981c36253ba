"""Every event that is logged and every metric, with one line each. The reference pages are made from these tables."""

from __future__ import annotations

from typing import Final

EVENTS: Final[dict[str, str]] = {
    "worker_started": "A worker incarnation has registered and claims jobs.",
    "worker_stopping": "A worker claims no more; running jobs get their grace.",
    "worker_stopped": "A worker has given back what it held and resigned.",
    "worker_unknown": "The worker's row is gone; it registers again.",
    "worker_database_lost": "The database cannot be reached; the worker tries again by itself.",
    "heartbeat_failed": "A beat did not get through; the local deadline goes on counting.",
    "listen_lost": "The connection that hears hints broke; it is opened again, and polling goes on meanwhile.",
    "job_completed": "An attempt completed its job.",
    "job_failed": "A job failed for good.",
    "job_retried": "An attempt ended in an error and the job will run again.",
    "job_cancelled": "A job was cancelled.",
    "job_ended": "An attempt ended in another way: submitted, snoozed, released.",
    "job_unknown_kind": "A claimed job has no handler here; it was given back.",
    "job_process_died": "The process that a job had for itself died; exactly that job was given back, with the cause.",
    "job_process_not_started": "A process for a job could not be started; the job comes back in a few seconds.",
    "job_not_isolated": "A job should run in a process of its own, and its function cannot be imported by one.",
    "jobs_rescued": "Jobs were taken from holders that went silent.",
    "jobs_overdue": "Jobs failed because an external engine had their work for longer than their max_runtime.",
    "effects_cleaned": "Things outside that nobody needs any more were confirmed gone.",
    "writeback_stale_attempt": "A replaced attempt tried to write and was refused.",
    "http_request": "A request was answered; its status, how long it took, and who asked.",
    "http_unavailable": "A request could not be served because something that we need is away or too slow.",
    "http_fault": "A request met a fault of ours; the answer names the same request id.",
    "sweep_failed": "A sweep (rescue, promote, wake or clean) failed and is tried again with the next beat.",
}

METRICS: Final[dict[str, str]] = {
    "holdfast_stale_writebacks_total": "Writes of replaced attempts that were refused, by operation.",
}
