"""`hf.ingestion`: upload files, ingest them, wait for the pipeline, read bad rows and statistics."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.services.ingestion.models.yaml_file import read_model
from holdfast.toolkit.client.api import Api
from holdfast.toolkit.client.card import card
from holdfast.toolkit.client.problems import ApiError
from holdfast.toolkit.client.progress import Line, ProgressView, progress_display
from holdfast.toolkit.client.records import record
from holdfast.toolkit.client.waiting import wait

STATES = {"SUCCESS": "completed", "WARNING": "completed", "ERROR": "failed", "RUNNING": "running", "NOT_STARTED": "pending"}
SLOT_PATIENCE = 60.0  # seconds to wait until the job that waits in a slot has started
SLOT_PAUSE = 0.5
DOWNLOAD = 600.0  # seconds

_sleep = time.sleep  # a name that tests replace


class IngestionFailed(HoldfastError):
    """A job of the pipeline has the result ERROR; `run` is the job that was waited for."""

    def __init__(self, run: Run) -> None:
        self.run = run
        super().__init__(f"ingestion job {run.job_id}: {run.status_message or 'no error was recorded'}")


@dataclass(frozen=True, slots=True)
class Run:
    """An ingestion job as it was when it was read, with the jobs of its pipeline."""

    job_id: int
    job_type: str
    pipeline_id: str | None
    module: str | None
    det: str | None
    year: int | None
    state: str
    result: str | None
    status_message: str | None
    outcome: dict[str, Any] | None
    progress: float | None
    created_at: datetime
    finished_at: datetime | None
    pipeline: list[dict[str, Any]] = field(default_factory=list, repr=False)
    pipeline_status: str | None = None
    _ingestion: Ingestions | None = field(default=None, repr=False, compare=False)

    @property
    def is_ended(self) -> bool:
        return self.state == "FINISHED" and self.pipeline_status != "running"

    def wait(self, *, timeout: float | None = 900, show: bool = True) -> Run:
        """The job when its whole pipeline has ended; `IngestionFailed` if its result is ERROR."""
        assert self._ingestion is not None
        return self._ingestion.wait(self, timeout=timeout, show=show)

    def errors(self, most: int | None = 100) -> list[dict[str, Any]]:
        """Its bad rows: line, column, value, reason."""
        assert self._ingestion is not None
        return self._ingestion.errors(self, most=most)

    def _repr_html_(self) -> str:
        return card(progress_of(self))


class Ingestions:
    """`hf.ingestion`. Methods that take a job accept a `Run` or its id."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def upload(self, file: str | Path) -> int:
        """Upload a file; its id."""
        given = Path(file).expanduser()
        return int(self._api.upload("/api/ingestion/files", given, name=given.name)["id"])

    def ingest(self, file: str | Path | None = None, *, module: str, det: str, year: int, **options: Any) -> Run:
        """Upload a file of data entries and ingest it. Options: file_id, path, source_job_id, api, mode, unit, dialect, policy,
        dry_run, model, if_waiting. If a job waits in the slot, this waits until it has started."""
        return self._dispatch("/api/ingestion/dispatch", file, module=module, det=det, year=year, **options)

    def factors(self, file: str | Path | None = None, *, year: int, **options: Any) -> Run:
        """Upload a file of factors and ingest it. Options as in `ingest`, and module, det."""
        return self._dispatch("/api/ingestion/factors", file, year=year, **options)

    def units(self, file: str | Path | None = None, *, year: int, **options: Any) -> Run:
        """Upload a file of organisational units and ingest it; the year is provisioned."""
        return self._dispatch("/api/ingestion/units", file, year=year, **options)

    def reference(self, file: str | Path | None = None, *, name: str, **options: Any) -> Run:
        """Upload a reference list and ingest it."""
        return self._dispatch("/api/ingestion/references", file, name=name, **options)

    def recalculate(self, *, year: int, module: str | None = None, det: str | None = None, only_due: bool = False) -> Run:
        """Recalculate the emissions of one type, one module, or all modules."""
        return self._dispatch(
            "/api/ingestion/recalculations", None, year=year, module=module, det=det, only_due=only_due or None
        )

    def get(self, run: Run | int) -> Run:
        """A job as it is now, with the jobs of its pipeline."""
        found = self._api.get(f"/api/ingestion/jobs/{id_of(run)}")
        pipeline, status = [found], None
        if found["pipeline_id"] is not None:
            # The status first: the jobs of a pipeline that has ended are complete.
            status = self._api.get(f"/api/pipelines/{found['pipeline_id']}")["status"]
            pipeline = self._api.listed("/api/ingestion/jobs", pipeline_id=found["pipeline_id"])
        return record(Run, found, pipeline=pipeline[::-1], pipeline_status=status, _ingestion=self)

    def wait(
        self,
        run: Run | int,
        *,
        timeout: float | None = 900,
        show: bool = True,
        on_progress: Callable[[Run], None] | None = None,
    ) -> Run:
        """The job when its whole pipeline has ended; `IngestionFailed` if its result is ERROR."""
        found = wait(
            lambda: self.get(run),
            lambda current: current.is_ended,
            timeout=timeout,
            display=progress_display(progress_of, show=show),
            describe=lambda current: f"ingestion job {current.job_id} is {current.state}",
            on_progress=on_progress,
        )
        if found.result == "ERROR":
            raise IngestionFailed(found)
        return found

    def errors(self, run: Run | int, *, most: int | None = 100) -> list[dict[str, Any]]:
        """The bad rows of a job: line, column, value, reason."""
        return self._api.listed(f"/api/ingestion/jobs/{id_of(run)}/errors", most=most)

    def bad_rows(self, run: Run | int) -> bytes:
        """The bad rows of a job as CSV, to correct and upload again."""
        return self._api.content("GET", f"/api/ingestion/jobs/{id_of(run)}/bad-rows", accept="text/csv", timeout=DOWNLOAD)

    def statistics(self, year: int, module: str | None = None) -> list[dict[str, Any]]:
        """The aggregated emissions of a year."""
        found: list[dict[str, Any]] = self._api.get("/api/ingestion/stats", year=year, module=module)
        return found

    def apply_model(self, file: str | Path, change: str | None = None) -> dict[str, Any]:
        """Create a data model from a YAML file, or add a version to it if it changed."""
        definition = read_model(file)
        body = {"definition": definition} | ({} if change is None else {"change_description": change})
        made: dict[str, Any] = self._api.act("PUT", f"/api/ingestion/models/{definition.get('name')}", body)
        return made

    def _dispatch(self, path: str, file: str | Path | None, **given: Any) -> Run:
        body = {name: value for name, value in given.items() if value is not None}
        if file is not None:
            body["file_id"] = self.upload(file)
        deadline = time.monotonic() + SLOT_PATIENCE
        while True:
            try:
                return self.get(self._api.act("POST", path, body)["job_id"])
            except ApiError as error:
                if error.problem.get("code") != "SLOT_WAITING" or time.monotonic() > deadline:
                    raise
            _sleep(SLOT_PAUSE)


def id_of(run: Run | int) -> int:
    """The id of a job. Pure."""
    return run.job_id if isinstance(run, Run) else run


def progress_of(run: Run) -> ProgressView:
    """A job and its pipeline for a progress display. Pure."""
    lines = [
        Line(name_of(one), STATES[one["result"] or one["state"]], one["progress"], one["status_message"] or "")
        for one in run.pipeline
    ]
    scope = " ".join(str(part) for part in (run.module, run.det, run.year) if part is not None)
    return ProgressView(f"{run.job_type} {run.job_id} · {scope}", STATES[run.result or run.state], lines)


def name_of(one: dict[str, Any]) -> str:
    """A job of a pipeline in a few words. Pure."""
    return " ".join(filter(None, (one["job_type"], one["det"] or one["module"])))
