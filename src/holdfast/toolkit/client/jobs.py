"""Jobs: enqueue, list, wait, retry, cancel."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from holdfast.toolkit.client.api import Api
from holdfast.toolkit.client.card import card
from holdfast.toolkit.client.problems import JobFailed
from holdfast.toolkit.client.progress import Line, ProgressView, progress_display
from holdfast.toolkit.client.records import record
from holdfast.toolkit.client.waiting import wait

ENDED = frozenset({"completed", "failed", "cancelled"})


@dataclass(frozen=True, slots=True)
class Job:
    """A job as it was when it was read. `refresh` reads it again."""

    id: int
    kind: str
    state: str
    queue: str
    priority: int
    payload: Any
    result: Any
    error: str | None
    cause: str | None
    traceback: str | None  # of the newest attempt that raised; `get` and `refresh` read it, `list` does not
    progress: float | None
    message: str | None
    attempt_no: int
    errors: int
    max_attempts: int
    crashes: int
    max_crashes: int
    waiting_for: str | None
    run_after: datetime | None
    created_at: datetime
    claimed_at: datetime | None
    finished_at: datetime | None
    cancel_requested_at: datetime | None
    pipeline_id: str | None
    parent_id: int | None
    step: str | None
    owner: str | None
    _jobs: Jobs = field(repr=False, compare=False)

    @property
    def is_ended(self) -> bool:
        """Whether it has completed, failed or was cancelled."""
        return self.state in ENDED

    def refresh(self) -> Job:
        """The job as it is now."""
        return self._jobs.get(self.id)

    def wait(self, *, timeout: float | None = 900, show: bool = True, on_progress: Callable[[Job], None] | None = None) -> Job:
        """The job when it has completed; `JobFailed` if it failed or was cancelled."""
        return self._jobs.wait(self, timeout=timeout, show=show, on_progress=on_progress)

    def retry(self, *, reason: str | None = None, grant: int = 1) -> Job:
        """Retry it after it failed or was cancelled."""
        return self._jobs.retry(self, reason=reason, grant=grant)

    def cancel(self, *, reason: str | None = None, force: bool = False) -> Job:
        """Cancel it; a running job is asked to stop."""
        return self._jobs.cancel(self, reason=reason, force=force)

    def explain(self) -> str:
        """Why it is in its state, in one sentence."""
        return self._jobs.explain(self)

    def logs(
        self, *, attempt: int | None = None, level: str | None = None, tail: int | None = None
    ) -> builtins.list[dict[str, Any]]:
        """The log lines of its handler, oldest first."""
        return self._jobs.logs(self, attempt=attempt, level=level, tail=tail)

    def _repr_html_(self) -> str:
        return card(progress_of(self))


class Jobs:
    """`hf.jobs`. Methods that take a job accept a `Job` or its id."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def enqueue(self, kind: str, payload: Mapping[str, Any] | None = None, **options: Any) -> Job:
        """Enqueue a job with the options that its kind declares; options as in `POST /api/jobs`: queue, priority, run_after, …

        A kind that no worker has published is refused, unless `allow_unknown_kind=True`.
        """
        made = self._api.act("POST", "/api/jobs", {"kind": kind, "payload": dict(payload or {}), **options})
        return self._job(made["job"])

    def get(self, job: Job | int) -> Job:
        """The job as it is now."""
        return self._job(self._api.get(f"/api/jobs/{id_of(job)}"))

    def list(
        self,
        *,
        state: str | None = None,
        kind: str | None = None,
        queue: str | None = None,
        condition: str | None = None,
        pipeline_id: str | None = None,
        parent_id: int | None = None,
        fingerprint: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        search: str | None = None,
        most: int | None = 50,
    ) -> builtins.list[Job]:
        """Jobs that match all filters, newest first, at most `most` (None: all)."""
        filters = {
            "state": state,
            "kind": kind,
            "queue": queue,
            "condition": condition,
            "pipeline_id": pipeline_id,
            "parent_id": parent_id,
            "fingerprint": fingerprint,
            "created_after": None if created_after is None else created_after.isoformat(),
            "created_before": None if created_before is None else created_before.isoformat(),
            "q": search,
        }
        return [self._job(row) for row in self._api.listed("/api/jobs", most=most, **filters)]

    def explain(self, job: Job | int) -> str:
        """Why a job is in its state, in one sentence."""
        return str(self._api.get(f"/api/jobs/{id_of(job)}/explain")["sentence"])

    def history(self, job: Job | int) -> builtins.list[dict[str, Any]]:
        """The attempts of a job and the actions of operators, oldest first."""
        found: list[dict[str, Any]] = self._api.get(f"/api/jobs/{id_of(job)}/history")
        return found

    def logs(
        self, job: Job | int, *, attempt: int | None = None, level: str | None = None, tail: int | None = None
    ) -> builtins.list[dict[str, Any]]:
        """The log lines of a job's handler, oldest first; the last 1,000 lines of each attempt are stored."""
        return self._api.listed(f"/api/jobs/{id_of(job)}/logs", attempt=attempt, level=level, tail=tail)

    def retry(self, job: Job | int, *, reason: str | None = None, grant: int = 1) -> Job:
        """Retry a failed or cancelled job. A reason is required if the job belongs to another user."""
        return self._act(job, "retry", {"reason": reason, "grant": grant})

    def cancel(self, job: Job | int, *, reason: str | None = None, force: bool = False) -> Job:
        """Cancel a job; a running job is asked to stop. A reason is required if the job belongs to another user."""
        return self._act(job, "cancel", {"reason": reason, "force": force})

    def wait(
        self,
        job: Job | int,
        *,
        timeout: float | None = 900,
        show: bool = True,
        on_progress: Callable[[Job], None] | None = None,
    ) -> Job:
        """The job when it has completed; `JobFailed` if it failed or was cancelled, `TimeoutError` if it takes too long."""
        found = wait(
            lambda: self.get(job),
            lambda current: current.is_ended,
            timeout=timeout,
            display=progress_display(progress_of, show=show),
            describe=lambda current: f"job {current.id} is {current.state}",
            on_progress=on_progress,
        )
        if found.state != "completed":
            raise JobFailed(found)
        return found

    def _act(self, job: Job | int, action: str, body: dict[str, Any]) -> Job:
        sent = {name: value for name, value in body.items() if value is not None}
        return self._job(self._api.act("POST", f"/api/jobs/{id_of(job)}/{action}", sent))

    def _job(self, row: Mapping[str, Any]) -> Job:
        return record(Job, row, _jobs=self)


def id_of(job: Job | int) -> int:
    """The id of a job. Pure."""
    return job.id if isinstance(job, Job) else job


def progress_of(job: Job) -> ProgressView:
    """A job for a progress display. Pure."""
    return ProgressView(f"job {job.id}", job.state, [Line(job.kind, job.state, job.progress, job.message or "")])
