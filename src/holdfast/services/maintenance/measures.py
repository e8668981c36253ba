"""Metrics of maintenance that each process counts. `figures.py` has those that are read from the database."""

from __future__ import annotations

from holdfast.telemetry.metrics import counter, histogram

actions = counter("maintenance_actions_total", "action", "status")
action_seconds = histogram(
    "maintenance_action_seconds", "action", buckets=(1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0)
)
measured = counter("maintenance_tables_measured_total", "status")
policy_jobs = counter("maintenance_policy_jobs_total")
