"""Jobs: enqueue, look, wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from holdfast.client.api import Api
from holdfast.client.problems import JobFailed
from holdfast.client.showing import Line, Picture, bars_or_card
from holdfast.client.waiting import wait

ENDED = frozenset({"completed", "failed", "cancelled"})


class Jobs:
    """`hf.jobs`."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def enqueue(self, kind: str, payload: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
        """Make a job as its kind declares it; options as in `POST /api/jobs`: queue, priority, run_after, …

        A kind that no worker has published is refused, unless `allow_unknown_kind=True`.
        """
        made: dict[str, Any] = self._api.act("POST", "/api/jobs", {"kind": kind, "payload": payload or {}, **options})
        return self.get(made["id"])

    def get(self, job_id: int) -> dict[str, Any]:
        """One job as it is now."""
        found: dict[str, Any] = self._api.get(f"/api/jobs/{job_id}")
        return found

    def list(self, *, most: int | None = 50, **filters: Any) -> Iterator[dict[str, Any]]:
        """Jobs, newest first; filters as in `GET /api/jobs`: state, kind, queue, …"""
        return self._api.listed("/api/jobs", most=most, **filters)

    def explain(self, job_id: int) -> str:
        """Why it is where it is, in one sentence."""
        found: dict[str, Any] = self._api.get(f"/api/jobs/{job_id}/explain")
        return str(found["sentence"])

    def logs(
        self, job_id: int, *, attempt: int | None = None, level: str | None = None, tail: int | None = None
    ) -> Iterator[dict[str, Any]]:
        """What its handler has logged, oldest line first; the last 1,000 lines of each attempt are kept."""
        return self._api.listed(f"/api/jobs/{job_id}/logs", attempt=attempt, level=level, tail=tail)

    def wait(
        self,
        job_id: int,
        *,
        timeout: float | None = 900,
        show: bool = True,
        on_progress: Callable[[dict[str, Any]], None] | None = None,
    ) -> dict[str, Any]:
        """The job when it has completed; `JobFailed` if it has failed or was cancelled."""
        job = wait(
            lambda: self.get(job_id),
            lambda found: found["state"] in ENDED,
            timeout=timeout,
            showing=bars_or_card(_picture_of, show=show),
            says=lambda found: f"job {job_id} is {found['state']}",
            on_progress=on_progress,
        )
        if job["state"] != "completed":
            raise JobFailed(job)
        return job


def _picture_of(job: dict[str, Any]) -> Picture:
    """A job for the eyes. Pure."""
    return Picture(f"job {job['id']}", job["state"], [Line(job["kind"], job["state"], job["progress"], job["message"] or "")])
