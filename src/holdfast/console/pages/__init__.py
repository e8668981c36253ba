"""The pages of the kernel, in the order of the navigation. Services add theirs: see docs/howto/add-a-console-page.md."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from holdfast.console.pages import audit, failures, job, jobs, locks, overview, periodic, pipelines, system, workers
from holdfast.console.view import Render


@dataclass(frozen=True, slots=True)
class ServedPage:
    """A page: its path within the console, who may see it, and the function that renders it."""

    path: str  # such as snapshots/{snapshot_id}
    title: str
    action: str  # of the policy
    render: Render
    section: str = ""  # of the navigation; without one the page is reached by links only
    service: str = ""  # whose templates it uses; without one those of the console
    take: Callable[[Request], Awaitable[Response]] | None = None  # answers the POST of its form, if it has one of its own


WORK, RUN = "Work", "Operate"

KERNEL_PAGES: Final = (
    ServedPage("", "Overview", "ops.read", overview.show, WORK),
    ServedPage("jobs", "Jobs", "jobs.read", jobs.show, WORK),
    ServedPage("jobs/{job_id}", "Job", "jobs.read", job.show),
    ServedPage("failures", "Failures", "failures.read", failures.show, WORK),
    ServedPage("pipelines", "Pipelines", "pipelines.read", pipelines.show_list, WORK),
    ServedPage("pipelines/{pipeline_id}", "Pipeline", "pipelines.read", pipelines.show_one),
    ServedPage("periodic", "Periodic", "periodic.read", periodic.show, RUN),
    ServedPage("workers", "Workers", "workers.read", workers.show, RUN),
    ServedPage("locks", "Locks", "locks.read", locks.show, RUN),
    ServedPage("audit", "Audit", "audit.read", audit.show, RUN),
    ServedPage("system", "System", "ops.read", system.show, RUN),
)
