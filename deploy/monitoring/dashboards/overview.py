"""Overview: is work done, how fast, what waits, and does the API answer."""

from monitoring.panels import Dashboard, Panel, Query, most, per_minute, quantiles, rate

DASHBOARD = Dashboard(
    uid="holdfast-overview",
    title="Holdfast / Overview",
    says="Demand, throughput, latency and errors of jobs and of the HTTP API.",
    rows={
        "Jobs": (
            Panel(
                "Demand for workers",
                (Query(most("holdfast_demand", "what"), "{{what}}"),),
                says="The sum is the number to scale by.",
            ),
            Panel("Jobs by state", (Query(most("holdfast_jobs", "state"), "{{state}}"),), says="Counted up to 10,000 each."),
            Panel(
                "Attempts per minute", (Query(per_minute("holdfast_attempts_total", "kind, outcome"), "{{kind}} {{outcome}}"),)
            ),
            Panel("Wait until the first claim", quantiles("holdfast_attempt_wait_seconds", "kind", 0.5, 0.95), unit="s"),
            Panel("Run time", quantiles("holdfast_attempt_run_seconds", "kind", 0.5, 0.95), unit="s"),
            Panel("Age of the next job", (Query(most("holdfast_oldest_pending_seconds", "kind"), "{{kind}}"),), unit="s"),
        ),
        "Workers": (
            Panel("Live workers", (Query(most("holdfast_workers", "version, runner"), "{{runner}} {{version}}"),)),
            Panel(
                "Workers of pending kinds",
                (Query(most("holdfast_pending_kind_workers", "kind"), "{{kind}}"),),
                says="0: nothing runs it.",
            ),
            Panel("Heartbeats per second", (Query(rate("holdfast_lease_renewals_total", "outcome"), "{{outcome}}"),)),
            Panel("Stale leases", (Query(most("holdfast_stale_leases"), "jobs of silent workers"),)),
            Panel("Refused writes", (Query(rate("holdfast_stale_writebacks_total", "operation"), "{{operation}}"),), rare=True),
            Panel("Executor deaths", (Query(rate("holdfast_executor_deaths_total", "cause"), "{{cause}}"),), rare=True),
        ),
        "HTTP API": (
            Panel("Requests per second", (Query(rate("holdfast_http_requests_total", "status"), "{{status}}"),), unit="reqps"),
            Panel("Request duration", quantiles("holdfast_http_request_duration_seconds", "", 0.5, 0.95, 0.99), unit="s"),
            Panel(
                "Errors",
                (Query(f"{rate('holdfast_http_requests_total', 'route', status='5..')}", "{{route}}"),),
                unit="reqps",
                rare=True,
            ),
            Panel("Event loop lag", (Query("max by (instance) (holdfast_event_loop_lag_seconds)", "{{instance}}"),), unit="s"),
            Panel("Event streams", (Query("sum(holdfast_streams)", "open"),)),
            Panel("Versions", (Query("count by (version) (holdfast_build_info)", "{{version}}"),)),
        ),
        "Outside": (
            Panel("Poll lag", (Query(most("holdfast_poll_lag_seconds"), "oldest due poll"),), unit="s"),
            Panel(
                "External resources to remove",
                (
                    Query(most("holdfast_unwanted_effects"), "unwanted"),
                    Query(most("holdfast_effect_clean_tries"), "most tries"),
                ),
            ),
            Panel("Locks", (Query(most("holdfast_locks_held"), "held"), Query(most("holdfast_lock_waiters"), "waiting jobs"))),
        ),
    },
)
