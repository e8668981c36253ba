"""Pipelines: jobs that depend on each other."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from holdfast.toolkit.client.api import Api
from holdfast.toolkit.client.card import card
from holdfast.toolkit.client.jobs import Job, Jobs
from holdfast.toolkit.client.progress import Line, ProgressView, progress_display
from holdfast.toolkit.client.records import record
from holdfast.toolkit.client.waiting import wait

RUNNING = "running"


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A pipeline as it was when it was read. `counts` has the number of jobs in each state."""

    id: str
    name: str
    status: str
    counts: dict[str, int]
    created_at: datetime | None
    _pipelines: Pipelines = field(repr=False, compare=False)

    def refresh(self) -> Pipeline:
        """The pipeline as it is now."""
        return self._pipelines.get(self.id)

    def jobs(self, *, most: int | None = None) -> list[Job]:
        """Its jobs, newest first."""
        return self._pipelines.jobs(self, most=most)

    def abort(self, *, reason: str) -> Pipeline:
        """Cancel all jobs that have not ended."""
        return self._pipelines.abort(self, reason=reason)

    def wait(self, *, timeout: float | None = 900, show: bool = True) -> Pipeline:
        """The pipeline when it has ended: completed, partial, failed or cancelled."""
        return self._pipelines.wait(self, timeout=timeout, show=show)

    def _repr_html_(self) -> str:
        return card(progress_of(self))


class Pipelines:
    """`hf.pipelines`. Methods that take a pipeline accept a `Pipeline` or its id."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def get(self, pipeline: Pipeline | str) -> Pipeline:
        """The pipeline as it is now."""
        return self._pipeline(self._api.get(f"/api/pipelines/{_id(pipeline)}"))

    def list(self, *, most: int | None = 50) -> builtins.list[Pipeline]:
        """Pipelines, newest first, at most `most` (None: all)."""
        return [self._pipeline(row) for row in self._api.listed("/api/pipelines", most=most)]

    def jobs(self, pipeline: Pipeline | str, *, most: int | None = None) -> builtins.list[Job]:
        """The jobs of a pipeline, newest first."""
        return Jobs(self._api).list(pipeline_id=_id(pipeline), most=most)

    def abort(self, pipeline: Pipeline | str, *, reason: str) -> Pipeline:
        """Cancel all jobs of a pipeline that have not ended."""
        self._api.act("POST", f"/api/pipelines/{_id(pipeline)}/abort", {"reason": reason})
        return self.get(pipeline)

    def wait(
        self,
        pipeline: Pipeline | str,
        *,
        timeout: float | None = 900,
        show: bool = True,
        on_progress: Callable[[Pipeline], None] | None = None,
    ) -> Pipeline:
        """The pipeline when it has ended; `TimeoutError` if that takes too long."""
        return wait(
            lambda: self.get(pipeline),
            lambda current: current.status != RUNNING,
            timeout=timeout,
            display=progress_display(progress_of, show=show),
            describe=lambda current: f"pipeline {current.id} is {current.status}",
            on_progress=on_progress,
        )

    def _pipeline(self, row: Mapping[str, Any]) -> Pipeline:
        return record(Pipeline, row, _pipelines=self)


def _id(pipeline: Pipeline | str) -> str:
    return pipeline.id if isinstance(pipeline, Pipeline) else pipeline


def progress_of(pipeline: Pipeline) -> ProgressView:
    """A pipeline for a progress display. Pure."""
    total = sum(pipeline.counts.values())
    ended = sum(pipeline.counts.get(state, 0) for state in ("completed", "failed", "cancelled"))
    share = ended / total if total else None
    line = Line(pipeline.name, pipeline.status, share, f"{ended} of {total} jobs have ended")
    return ProgressView(f"pipeline {pipeline.id}", pipeline.status, [line])
