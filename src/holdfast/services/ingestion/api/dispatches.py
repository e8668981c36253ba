"""Start ingestion: files and APIs of data entries, factors, units, reference lists, and recalculation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any, TypedDict

import psycopg
from fastapi import Query
from pydantic import BaseModel, Field, model_validator
from starlette.responses import Response

from holdfast.api.acts import Act, Acting, Model, Text
from holdfast.api.envelope import Answer, Data
from holdfast.api.paging import JobNumber
from holdfast.api.routes import Routes
from holdfast.services.ingestion import dispatch
from holdfast.services.ingestion.api.dependencies import Here, Name, Year
from holdfast.services.ingestion.dispatch import Dispatched, EntriesAsked, FileOptions, IfWaiting, OverHttp
from holdfast.services.ingestion.loading.accept import ErrorPolicy
from holdfast.services.ingestion.loading.entries import Mode
from holdfast.services.ingestion.setup import Ingestion
from holdfast.services.ingestion.sources import files, store_paths
from holdfast.services.ingestion.sources.dialect import Dialect

routes = Routes("ingestion")
Conn = psycopg.AsyncConnection[Any]
REFUSES = ["not-found", "slot-waiting", "draining", "idempotency-mismatch"]


class DialectAsked(Model):
    """How a CSV file is written; what is left out is detected, and reported with the result."""

    encoding: Annotated[str, Field(max_length=50)] | None = None
    delimiter: Annotated[str, Field(min_length=1, max_length=1)] | None = None
    quote: Annotated[str, Field(min_length=1, max_length=1)] | None = None
    decimal: Annotated[str, Field(pattern=r"^[.,]$")] | None = None


class Source(Model):
    """A file: uploaded (`file_id`), in the store (`path`), or of an earlier job (`source_job_id`)."""

    file_id: JobNumber | None = None
    path: Annotated[Text, Field(min_length=1, max_length=1000)] | None = None
    source_job_id: JobNumber | None = None
    dialect: DialectAsked = DialectAsked()
    policy: ErrorPolicy = ErrorPolicy()
    dry_run: bool = False
    if_waiting: IfWaiting = "refuse"

    def count(self) -> int:
        return sum(one is not None for one in (self.file_id, self.path, self.source_job_id))

    @model_validator(mode="after")
    def _one_source(self) -> Source:
        if self.count() != 1:
            raise ValueError("give exactly one of file_id, path and source_job_id")
        return self

    @property
    def options(self) -> FileOptions:
        return FileOptions(dialect=Dialect(**self.dialect.model_dump()), policy=self.policy, dry_run=self.dry_run)


async def file_of(conn: Conn, here: Ingestion, source: Source, by: str) -> int:
    """The id of the file that a request names."""
    if source.file_id is not None:
        return (await files.get(conn, source.file_id)).id
    if source.source_job_id is not None:
        return (await files.of_job(conn, source.source_job_id)).id
    assert source.path is not None
    return (await store_paths.known(conn, here, source.path, by=by)).id


class EntriesSource(Source):
    """Data entries to ingest: of a file, or of the API that the data model has for the type (`api: true`)."""

    module: Name
    det: Name
    year: Year
    model: Name | None = None
    mode: Mode = "append"
    unit: Annotated[Text, Field(min_length=1, max_length=200)] | None = None
    api: bool = False

    @model_validator(mode="after")
    def _one_source(self) -> EntriesSource:
        if self.count() + self.api != 1:
            raise ValueError("give exactly one of file_id, path, source_job_id and api")
        return self


class DispatchedShown(BaseModel):
    """The first job of a pipeline."""

    job_id: int
    pipeline_id: str


class By(TypedDict):
    """Who asks, as arguments of every dispatch."""

    by: str
    over_http: OverHttp


def by(act: Act) -> By:
    """The caller owns what it starts, and supersedes what it may cancel."""
    cancels_all = act.caller.may("jobs.cancel") and not act.caller.only_own("jobs.cancel")
    return {"by": act.actor, "over_http": OverHttp(only_own=not cancels_all)}


def answer_of(made: Dispatched) -> Answer:
    return Answer(202, made, {"Location": f"/api/ingestion/jobs/{made.job_id}", "Retry-After": "1"})


@routes.add(
    "POST", "/api/ingestion/dispatch", action="ingestion.dispatch", status=202, answers=Data[DispatchedShown],
    refuses=[*REFUSES, "year-not-provisioned"], also=["/sync/dispatch"],
)  # fmt: skip
async def dispatch_entries(asked: EntriesSource, act: Acting, here: Here) -> Response:
    """Ingest data entries; then their emissions are recalculated and aggregated. One pipeline."""
    wanted = EntriesAsked(
        model=asked.model or here.model,
        module=asked.module,
        det=asked.det,
        year=asked.year,
        mode=asked.mode,
        unit=asked.unit,
        if_waiting=asked.if_waiting,
    )

    async def do(conn: Conn) -> Answer:
        if asked.api:
            return answer_of(await dispatch.dispatch_api(conn, wanted, asked.policy, **by(act)))
        file_id = await file_of(conn, here, asked, act.actor)
        return answer_of(await dispatch.dispatch_file(conn, wanted, file_id, asked.options, **by(act)))

    return await act.run("ingestion/job", do, detail=asked.model_dump(exclude_defaults=True))


class FactorsSource(Source):
    """A file of factors: of one type, of one module, or of all; then the file has a column `det`."""

    year: Year
    module: Name | None = None
    det: Name | None = None
    model: Name | None = None


@routes.add(
    "POST", "/api/ingestion/factors", action="ingestion.dispatch", status=202, answers=Data[DispatchedShown],
    refuses=REFUSES, also=["/sync/factors"],
)  # fmt: skip
async def dispatch_factors(asked: FactorsSource, act: Acting, here: Here) -> Response:
    """Ingest factors, and recalculate the types whose factors changed."""

    async def do(conn: Conn) -> Answer:
        made = await dispatch.dispatch_factors(
            conn,
            model=asked.model or here.model,
            year=asked.year,
            module=asked.module,
            det=asked.det,
            file_id=await file_of(conn, here, asked, act.actor),
            options=asked.options,
            if_waiting=asked.if_waiting,
            **by(act),
        )
        return answer_of(made)

    return await act.run("ingestion/job", do, detail=asked.model_dump(exclude_defaults=True))


class UnitsSource(Source):
    """A file of organisational units."""

    year: Year


@routes.add(
    "POST", "/api/ingestion/units", action="ingestion.dispatch", status=202, answers=Data[DispatchedShown],
    refuses=REFUSES, also=["/sync/units"],
)  # fmt: skip
async def dispatch_units(asked: UnitsSource, act: Acting, here: Here) -> Response:
    """Ingest the organisational units, and provision the year."""
    return await dispatch_list(asked, act, here, partial(dispatch.dispatch_units, year=asked.year))


class ReferenceSource(Source):
    """A file with the codes of a reference list."""

    name: Name


@routes.add(
    "POST", "/api/ingestion/references", action="ingestion.dispatch", status=202, answers=Data[DispatchedShown],
    refuses=REFUSES, also=["/sync/references"],
)  # fmt: skip
async def dispatch_reference(asked: ReferenceSource, act: Acting, here: Here) -> Response:
    """Ingest a reference list."""
    return await dispatch_list(asked, act, here, partial(dispatch.dispatch_reference, name=asked.name))


async def dispatch_list(asked: Source, act: Acting, here: Ingestion, start: Callable[..., Awaitable[Dispatched]]) -> Response:
    """Start the job for a list of codes: units, or another one."""

    async def do(conn: Conn) -> Answer:
        file_id = await file_of(conn, here, asked, act.actor)
        return answer_of(await start(conn, file_id=file_id, options=asked.options, if_waiting=asked.if_waiting, **by(act)))

    return await act.run("ingestion/job", do, detail=asked.model_dump(exclude_defaults=True))


# ---------------------------------------------------------------------------------------------------------------------
# Recalculation
# ---------------------------------------------------------------------------------------------------------------------


class RecalculationAsked(Model):
    """What to recalculate: one type, one module, or all modules. `only_due`: only types that have changed since."""

    year: Year
    module: Name | None = None
    det: Name | None = None
    model: Name | None = None
    only_due: bool = False

    @model_validator(mode="after")
    def _det_of_a_module(self) -> RecalculationAsked:
        if self.det is not None and self.module is None:
            raise ValueError("give the module of the data entry type, too")
        return self


async def recalculate(asked: RecalculationAsked, act: Acting, here: Ingestion) -> Response:
    async def do(conn: Conn) -> Answer:
        given = asked.model_dump(exclude={"model"})
        made = await dispatch.dispatch_recalculation(conn, model=asked.model or here.model, **given, **by(act))
        return answer_of(made)

    return await act.run("ingestion/job", do, detail=asked.model_dump(exclude_defaults=True))


@routes.add(
    "POST", "/api/ingestion/recalculations", action="ingestion.dispatch", status=202, answers=Data[DispatchedShown],
    refuses=["not-found", "draining", "idempotency-mismatch"],
)  # fmt: skip
async def start_recalculation(asked: RecalculationAsked, act: Acting, here: Here) -> Response:
    """Recalculate emissions, then aggregate them. A request that finds one waiting for the same gets that one."""
    return await recalculate(asked, act, here)


@routes.add(
    "POST", "/sync/recalculate-emissions/{module}", action="ingestion.dispatch", status=202, answers=Data[DispatchedShown],
    refuses=["not-found", "draining", "idempotency-mismatch"],
)  # fmt: skip
async def recalculate_module(module: Name, year: Annotated[Year, Query()], act: Acting, here: Here) -> Response:
    """Recalculate the emissions of a module, at a path for existing clients."""
    return await recalculate(RecalculationAsked(year=year, module=module), act, here)


@routes.add(
    "POST", "/sync/recalculate-emissions/{module}/{det}", action="ingestion.dispatch", status=202,
    answers=Data[DispatchedShown], refuses=["not-found", "draining", "idempotency-mismatch"],
)  # fmt: skip
async def recalculate_type(module: Name, det: Name, year: Annotated[Year, Query()], act: Acting, here: Here) -> Response:
    """Recalculate the emissions of one data entry type, at a path for existing clients."""
    return await recalculate(RecalculationAsked(year=year, module=module, det=det), act, here)
