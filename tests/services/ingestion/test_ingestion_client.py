"""The HTTP client of ingestion, when the server changes between two of its requests."""

from __future__ import annotations

from typing import Any

from holdfast.services.ingestion.client import Ingestions

RUN = {
    "job_id": 1, "job_type": "csv_ingest", "pipeline_id": "p", "module": None, "det": None, "year": None, "state": "FINISHED",
    "result": "SUCCESS", "status_message": None, "outcome": None, "progress": 1.0, "created_at": "2026-01-01T00:00:00Z",
    "finished_at": "2026-01-01T00:00:01Z",
}  # fmt: skip
NEXT = {**RUN, "job_id": 2, "job_type": "emission_recalc"}


class ApiOfAPipelineThatEnds:
    """The pipeline gets its last job and ends after the first request about it."""

    def __init__(self) -> None:
        self.asked = 0

    def get(self, path: str) -> Any:
        if not path.startswith("/api/pipelines/"):
            return RUN
        return {"status": self._next("running", "completed")}

    def listed(self, _: str, *, pipeline_id: str) -> list[Any]:
        return self._next([RUN], [NEXT, RUN])

    def _next(self, before: Any, after: Any) -> Any:
        self.asked += 1
        return before if self.asked == 1 else after


def test_run_that_has_ended_has_all_jobs_of_its_pipeline():
    api: Any = ApiOfAPipelineThatEnds()

    found = Ingestions(api).wait(1, show=False)

    assert found.is_ended
    assert [one["job_type"] for one in found.pipeline] == ["csv_ingest", "emission_recalc"]
