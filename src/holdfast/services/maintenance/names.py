"""Every event, metric and crash point of maintenance, with one line each. Pure data."""

from __future__ import annotations

from typing import Final

from holdfast.services.maintenance.engines import crash_points

EVENTS: Final[dict[str, str]] = {
    "maintenance_action_started": "An action of a maintenance job began.",
    "maintenance_action_completed": "An action completed; has its figures.",
    "maintenance_action_failed": "An action failed; the other actions of the job still run.",
    "maintenance_action_skipped": "An action did not begin because the window of its policy is over.",
    "maintenance_stopped_for_shutdown": "A worker that must end stopped a maintenance job; says what becomes of the job.",
    "maintenance_thread_left_behind": "An engine did not stop in time. Its attempt is over, so its commits are refused.",
    "maintenance_remote_work_found": "Remote work of an earlier attempt still runs; it is stopped before anything else begins.",
    "maintenance_remote_work_stopped": "Remote work of an earlier attempt has been stopped.",
    "maintenance_remote_work_not_released": "An engine could not be told that an attempt is over; the ledger stops its work.",
    "table_cache_catalog_failed": "The catalogs could not be listed; what is known of the tables stays.",
    "table_measure_failed": "One table could not be measured; its last figures stay.",
    "maintenance_policy_due": "A policy was due; says which tables were enqueued and which were skipped.",
    "maintenance_policy_missed": "A due time passed while no scheduler ran, and its window is over; nothing was enqueued.",
}

METRICS: Final[dict[str, str]] = {
    "maintenance_actions_total": "Actions that ended in this process, by action and status (completed, failed, cancelled).",
    "maintenance_action_seconds": "How long the engine took for an action, by action.",
    "maintenance_tables_measured_total": "Tables whose health was measured by this process, by status (success, failed).",
    "maintenance_policy_jobs_total": "Maintenance jobs that policies enqueued in this process.",
}

# Counted in the database: every replica serves the same values, and a restart does not reset them.
PLANE_METRICS: Final[dict[str, str]] = {
    "maintenance_tables": "Tables in the cache, by health (good, fair, poor, unknown); a gauge.",
    "maintenance_runs_open": "Maintenance runs that have not ended, by state; a gauge.",
}

CRASH_POINTS: Final[dict[str, str]] = {
    **crash_points.CRASH_POINTS,
    "maintenance.action.started": "The row of an action says running, and its engine was not called.",
    "maintenance.action.done": "The engine has finished an action, and its result is not written.",
    "maintenance.action.recorded": "The result of an action is committed; the next one did not begin.",
    "maintenance.remote.announced": "An attempt has recorded that it may start remote work, and has started none.",
    "maintenance.policy.enqueued": "The jobs of a due policy are written, and their transaction is not committed.",
}
