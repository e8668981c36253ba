"""Follow a pipeline with one progress bar for each of its jobs."""

from __future__ import annotations

import time
from typing import Any

from holdfast.toolkit.cli.exit_codes import WaitTimeout
from holdfast.toolkit.cli.verb import Session
from holdfast.toolkit.cli.waiting import deadline_of, progress_bars

POLL_SECONDS = 0.3


def follow(session: Session, job_id: int, pipeline_id: str, timeout: str | None) -> list[dict[str, Any]]:
    """The jobs of a pipeline, oldest first, when it has ended. Bars are on standard error. Ctrl-C leaves it running."""
    deadline = deadline_of(timeout)
    with progress_bars(session) as bars:
        tasks: dict[int, Any] = {}
        while True:
            status = session.get(f"/api/pipelines/{pipeline_id}")["status"]
            jobs = session.listed("/api/ingestion/jobs", most=None, pipeline_id=pipeline_id)[::-1]
            for one in jobs:
                if one["job_id"] not in tasks:
                    tasks[one["job_id"]] = bars.add_task("", total=None)
                total = None if one["progress"] is None else 1.0
                bars.update(tasks[one["job_id"]], description=description_of(one), total=total, completed=one["progress"] or 0)
            if status != "running":
                return jobs
            if time.monotonic() + POLL_SECONDS > deadline:
                raise WaitTimeout(
                    f"job {job_id} has not ended after {timeout}; it continues. See: holdfast ingest status {job_id}"
                )
            time.sleep(POLL_SECONDS)


def description_of(one: dict[str, Any]) -> str:
    """What a job does now, in one line. Pure."""
    return f"{one['job_type']} {one['job_id']} {one['status_message'] or one['result'] or one['state']}"
