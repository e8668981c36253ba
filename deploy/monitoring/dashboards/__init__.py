"""Every dashboard, one module each. A service adds its own module and its name here."""

from importlib import import_module

from monitoring.panels import Dashboard

MODULES = (
    *("overview", "background_jobs", "postgres"),  # the kernel
    *("exports", "export_reconciliation", "lifecycle"),  # exports
    *("graphs", "reconciliation"),  # graphs
    "maintenance",
    "ingestion",
)
ALL: tuple[Dashboard, ...] = tuple(import_module(f"monitoring.dashboards.{name}").DASHBOARD for name in MODULES)
