"""The types of jobs, their targets and methods, and the slot of a job. Pure.

A slot key is computed text and never null: every part that tells one slot from another is in it, the job type included, and a
part that a job does not have is `-`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

PREFIX: Final = "ingestion."


class JobType(NamedTuple):
    """What a type of job writes, and where its data comes from. The table `ingestion_job_types` has the same rows."""

    target: str
    method: str


JOB_TYPES: Final[dict[str, JobType]] = {
    "csv_ingest": JobType("DATA_ENTRIES", "csv"),
    "api_ingest": JobType("DATA_ENTRIES", "api"),
    "factor_ingest": JobType("FACTORS", "csv"),
    "unit_sync": JobType("REFERENCE_DATA", "csv"),
    "reference_ingest": JobType("REFERENCE_DATA", "csv"),
    "emission_recalc": JobType("DATA_ENTRIES", "computed"),
    "module_emission_recalc": JobType("DATA_ENTRIES", "computed"),
    "aggregation": JobType("DATA_ENTRIES", "computed"),
}


def slot_of(job_type: str, *, model: str, module: str | None = None, det: str | None = None, year: int | None = None) -> str:
    """The slot of a job."""
    target, method = JOB_TYPES[job_type]
    parts = {"model": model, "module": module, "det": det, "target": target, "method": method, "year": year}
    return "|".join([f"{PREFIX}{job_type}", *(f"{name}={'-' if value is None else value}" for name, value in parts.items())])
