"""The metrics of this process, served by `/metrics`. Their names and help texts are in `names.py`."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from holdfast.telemetry.names import METRICS

REGISTRY = CollectorRegistry()


def counter(name: str, *labels: str) -> Counter:
    """A counter with its help text from `names.py`."""
    return Counter(name, METRICS[name], labels, registry=REGISTRY)


def gauge(name: str, *labels: str) -> Gauge:
    """A gauge with its help text from `names.py`."""
    return Gauge(name, METRICS[name], labels, registry=REGISTRY)


def histogram(name: str, *labels: str, buckets: tuple[float, ...]) -> Histogram:
    """A histogram with its help text from `names.py`."""
    return Histogram(name, METRICS[name], labels, buckets=buckets, registry=REGISTRY)


# Attempts
attempts = counter("holdfast_attempts_total", "kind", "outcome")

# Processes
executor_deaths = counter("holdfast_executor_deaths_total", "cause")

# Leases
renewals = counter("holdfast_lease_renewals_total", "outcome")

# The fence
stale_writebacks = counter("holdfast_stale_writebacks_total", "operation")

# Periodic loops
executions = counter("background_job_execution_total", "job_name", "status")
execution_seconds = histogram(
    "background_job_execution_duration_seconds", "job_name", buckets=(0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
)
last_success = gauge("background_job_last_success_timestamp_seconds", "job_name")
health = gauge("background_job_health_status", "job_name")
interval = gauge("background_job_interval_seconds", "job_name")
loop_items = counter("holdfast_loop_items_total", "job_name", "outcome")
loop_missed = counter("holdfast_loop_missed_ticks_total", "job_name")
loop_refused = counter("holdfast_loop_terms_lost_total", "job_name")
loop_late = gauge("holdfast_loop_late_seconds", "job_name")

# The HTTP API
http_requests = counter("holdfast_http_requests_total", "method", "route", "status")
http_seconds = histogram(
    "holdfast_http_request_duration_seconds",
    "method",
    "route",
    "status",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
