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
    "loop_blocked": "A worker's event loop has not turned for seconds; says for how long, which kind, and where it is.",
    "runner_failed": "The worker inside an application failed; it is started again, and the application goes on.",
    "embedded_postgres": "What the embedded Postgres of an application says while it starts.",
    "listen_lost": "The connection that hears hints broke; it is opened again, and polling goes on meanwhile.",
    "job_completed": "An attempt completed its job; with `job`, a pass of a periodic loop ended well.",
    "job_failed": "A job failed for good; with `job`, a pass of a periodic loop raised, and the next tick tries again.",
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
    "stream_look_failed": "The look for all event streams failed; it is tried again with the next.",
    "sweep_failed": "A sweep (rescue, promote, wake or clean) failed and is tried again with the next beat.",
    # Periodic loops
    "scheduler_starting": "A scheduler registers its loops and begins to look at their rows.",
    "job_registered": "A periodic loop is known here, with its interval or cron expression.",
    "scheduler_stopping": "A scheduler begins no more passes; running ones get their grace.",
    "scheduler_stopped": "A scheduler has ended or given back everything that it ran.",
    "scheduler_database_lost": "The rows of the loops cannot be reached; the scheduler tries again by itself.",
    "scheduler_failed": "Something in the scheduler itself failed that should not have; it goes on (critical).",
    "job_started": "A pass of a periodic loop begins under a term.",
    "manual_job_trigger": "Somebody asked for a run of a periodic loop, with a reason.",
    "loop_ticks_missed": "Ticks of a loop were not begun in time, and are not made up for.",
    "loop_term_lost": "A replaced holder of a loop noticed, or tried to write and was refused.",
    "loop_renewal_failed": "A pass could not renew its lease; its local deadline goes on counting.",
    "loop_given_back": "A stopping process left its run of a loop to others.",
    "reconcile_key_failed": "A reconciler failed for one key; the key is tried again later, and the pass goes on.",
}

LOOP_EVENTS: Final[dict[str, str]] = {  # one of each for every loop, under the loop's name
    "<loop>_job_started": "A pass of this loop begins.",
    "<loop>_job_completed": "A pass of this loop ended well, with what it did and `duration_seconds`.",
}

METRICS: Final[dict[str, str]] = {
    "holdfast_attempts_total": "Attempts that ended in this process, by kind and by how (complete, fail, retry, snooze, …).",
    "holdfast_stale_writebacks_total": "Writes of replaced attempts that were refused, by operation.",
    # Periodic loops
    "background_job_execution_total": "Passes of periodic loops that ended, by loop and status (success, failed).",
    "background_job_execution_duration_seconds": "How long passes of periodic loops took, failed ones included.",
    "background_job_last_success_timestamp_seconds": "When a pass of the loop last ended well, as Unix time.",
    "background_job_health_status": "1 for a healthy loop, 0 after 3 or more failures one after another.",
    "background_job_interval_seconds": "From one due time of the loop to the next; for alerts on the last success.",
    "holdfast_loop_items_total": "What passes handled, by loop and outcome (done, failed, skipped).",
    "holdfast_loop_missed_ticks_total": "Ticks that were not begun in time.",
    "holdfast_loop_terms_lost_total": "Passes that were replaced before they ended.",
    "holdfast_loop_late_seconds": "How long after its due time the last tick that ran here began.",
}

PLANE_METRICS: Final[dict[str, str]] = {  # gauges of the control plane: what the database knows, and its own process
    "holdfast_build_info": "1, with the version of the control plane.",
    "holdfast_jobs": "Jobs by state, counted up to 10,000 each.",
    "holdfast_demand": "Work that waits for a hand, by what it is: waiting, due, to_poll, stale. The number to scale by.",
    "holdfast_job_wait_seconds": "From enqueue to the first claim, by kind and quantile, over the newest 1,000 jobs.",
    "holdfast_job_run_seconds": "From the last claim to the end, by kind and quantile, over the newest 1,000 jobs.",
    "holdfast_oldest_pending_seconds": "Age of the job that is next to be claimed, by kind.",
    "holdfast_stale_leases": "Jobs whose holder went silent and that nobody has rescued yet.",
    "holdfast_poll_lag_seconds": "How long the longest overdue look at an external engine has been due.",
    "holdfast_locks_held": "Places on locks that are taken.",
    "holdfast_lock_waiters": "Jobs that wait for a lock.",
    "holdfast_unwanted_effects": "Things outside that nobody needs any more and that are not confirmed gone.",
    "holdfast_workers": "Living workers by version and kind of runner.",
    "holdfast_drain": "1 while no new jobs are taken.",
    "holdfast_xmin_age": "How many transactions old the oldest snapshot is that keeps dead rows from being removed.",
    "holdfast_frozen_xid_age": "How many transactions old the database's oldest unfrozen row may be.",
    "holdfast_table_rows_live": "Rows by table, as Postgres estimates them.",
    "holdfast_table_rows_dead": "Dead rows by table that vacuum has yet to remove.",
    "holdfast_table_bytes": "Size on disk by table, with indexes.",
    "holdfast_pool_connections": "The control plane's connections by state: open, free, waited_for.",
    "holdfast_event_loop_lag_seconds": "How late the control plane's event loop last woke a task.",
    "holdfast_streams": "Open event streams of this process.",
}
