"""What ingestion offers to applications that embed it and to other services. The only module of it that they import.

    app = FastAPI(lifespan=holdfast.lifespan(url, kinds=offers.KINDS))
    file = await offers.save_upload(conn, request.stream(), request.headers["content-type"], by="ada")
    job = await offers.ingest_entries(conn, file.id, module="travel", det="flights", year=2024, by="ada")
    run = await offers.read_run(conn, job.job_id)

Every function works on the caller's connection and, where it writes, in the caller's transaction. None of them checks the
rights of a user: the caller does.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psycopg

from holdfast.services.ingestion import dispatch
from holdfast.services.ingestion.dispatch import Dispatched, EntriesAsked, FileOptions, SlotWaiting, YearNotProvisioned
from holdfast.services.ingestion.kinds import KINDS
from holdfast.services.ingestion.loading.accept import ErrorPolicy
from holdfast.services.ingestion.models import store
from holdfast.services.ingestion.models.rules import model_of
from holdfast.services.ingestion.models.store import ModelVersion
from holdfast.services.ingestion.models.yaml_file import EXAMPLE, read_model
from holdfast.services.ingestion.setup import ingestion_here
from holdfast.services.ingestion.sources import files
from holdfast.services.ingestion.sources.dialect import Dialect
from holdfast.services.ingestion.sources.files import File
from holdfast.services.ingestion.sources.saving import save
from holdfast.services.ingestion.staging import errors
from holdfast.services.ingestion.staging.errors import RowError
from holdfast.services.ingestion.views import due, runs
from holdfast.services.ingestion.views.due import Statistic
from holdfast.services.ingestion.views.runs import Run
from holdfast.services.ingestion.web_latency import WebLatency

__all__ = [
    "CO2_MODEL",
    "KINDS",
    "Dialect",
    "ErrorPolicy",
    "FileOptions",
    "SlotWaiting",
    "WebLatency",
    "YearNotProvisioned",
    "apply_model",
    "ingest_entries",
    "ingest_factors",
    "ingest_units",
    "read_errors",
    "read_run",
    "read_statistics",
    "recalculate",
    "save_upload",
]

Conn = psycopg.AsyncConnection[Any]
CO2_MODEL = EXAMPLE  # the path of the data model that is part of the distribution


async def apply_model(
    conn: Conn, definition: dict[str, Any] | str | Path, *, by: str, change: str | None = None
) -> ModelVersion:
    """Create a data model, or add a version if it changed. `definition`: JSON values, or the path of a YAML file."""
    given = definition if isinstance(definition, dict) else read_model(definition)
    async with conn.transaction():
        return (await store.apply(conn, model_of(given), by=by, change=change))[0]


async def save_upload(
    conn: Conn, body: AsyncIterator[bytes], content_type: str = "", *, by: str, name: str | None = None
) -> File:
    """Stream an upload to the store (multipart/form-data, or the file itself) and record it."""
    got = await save(ingestion_here(), body, content_type, name)
    return await files.add(conn, got.path, name=got.name, size=got.size, sha256=got.sha256, by=by)


async def ingest_entries(
    conn: Conn, file_id: int, *, module: str, det: str, year: int, by: str, options: FileOptions | None = None, **more: Any
) -> Dispatched:
    """Ingest a file of data entries. `more`: mode, unit, if_waiting, model."""
    asked = EntriesAsked(**{"model": ingestion_here().model, "module": module, "det": det, "year": year, **more})
    return await dispatch.dispatch_file(conn, asked, file_id, options or FileOptions(), by=by)


async def ingest_factors(
    conn: Conn, file_id: int, *, year: int, by: str, options: FileOptions | None = None, **more: Any
) -> Dispatched:
    """Ingest a file of factors. `more`: module, det, if_waiting, model."""
    given = {"model": ingestion_here().model, **more}
    return await dispatch.dispatch_factors(conn, year=year, file_id=file_id, options=options or FileOptions(), by=by, **given)


async def ingest_units(conn: Conn, file_id: int, *, year: int, by: str, options: FileOptions | None = None) -> Dispatched:
    """Ingest a file of organisational units, and provision the year."""
    return await dispatch.dispatch_units(conn, year=year, file_id=file_id, options=options or FileOptions(), by=by)


async def recalculate(conn: Conn, *, year: int, by: str, **more: Any) -> Dispatched:
    """Recalculate emissions. `more`: module, det, only_due, model."""
    return await dispatch.dispatch_recalculation(conn, year=year, by=by, **{"model": ingestion_here().model, **more})


async def read_run(conn: Conn, job_id: int) -> Run:
    """An ingestion job; `NotFound` if there is none."""
    return await runs.get(conn, job_id)


async def read_errors(conn: Conn, job_id: int, *, limit: int = 100) -> list[RowError]:
    """The bad rows of a job, in the order of their lines."""
    return await errors.listed(conn, job_id, limit=limit)


async def read_statistics(conn: Conn, year: int, module: str | None = None) -> list[Statistic]:
    """The aggregated emissions of a year."""
    return await due.statistics(conn, year, module)
