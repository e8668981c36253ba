"""From a request to a job in its slot and pipeline. Called by: the routes, and by programs that embed Holdfast.

Everything that a job needs is on its row. The pipeline exists before its first job, and its id is returned at once. A job for a
slot in which another one waits is refused: a slot has one waiting job, and merging two uploads would lose one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import psycopg
from psycopg.rows import tuple_row

from holdfast.errors import NotFound, Refused, UsageError
from holdfast.jobs.cancel import cancel
from holdfast.jobs.model import JobId, NewJob
from holdfast.jobs.owner import set_owner
from holdfast.jobs.pipelines import Pipeline
from holdfast.services.ingestion.jobs.api_ingest import api_ingest
from holdfast.services.ingestion.jobs.csv_ingest import chain, csv_ingest
from holdfast.services.ingestion.jobs.factor_ingest import factor_ingest
from holdfast.services.ingestion.jobs.module_emission_recalc import module_emission_recalc
from holdfast.services.ingestion.jobs.reference_ingest import reference_ingest, unit_sync
from holdfast.services.ingestion.loading import references
from holdfast.services.ingestion.loading.accept import ErrorPolicy
from holdfast.services.ingestion.loading.entries import Mode
from holdfast.services.ingestion.models import store
from holdfast.services.ingestion.models.store import KnownType
from holdfast.services.ingestion.scope import PREFIX
from holdfast.services.ingestion.sources.dialect import Dialect

Conn = psycopg.AsyncConnection[Any]
IfWaiting = Literal["refuse", "supersede"]


class YearNotProvisioned(Refused):
    """The units of the year are not known."""

    slug = "year-not-provisioned"


class SlotWaiting(Refused):
    """Another job waits in the slot. `others`: whose it is, if the caller may not supersede it."""

    slug = "slot-waiting"

    def __init__(self, job_id: int, slot: str, others: str = "") -> None:
        waits = f"job {job_id}{others} waits in the slot {slot}; send it again after that job has started"
        advice = (
            ", or ask an operator to cancel it: it is not yours"
            if others
            else ", cancel that job, or send if_waiting=supersede"
        )
        super().__init__(waits + advice)
        self.job_id, self.slot = job_id, slot

    def members(self) -> dict[str, Any]:
        return {"job_id": self.job_id, "slot": self.slot}


@dataclass(frozen=True, slots=True)
class Dispatched:
    """The first job of a pipeline."""

    job_id: int
    pipeline_id: str


@dataclass(frozen=True, slots=True)
class OverHttp:
    """A request over HTTP: who asks owns the job. `only_own`: it supersedes only jobs of its own."""

    only_own: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOptions:
    """How a file is read, and what becomes of bad rows."""

    dialect: Dialect = field(default_factory=Dialect)
    policy: ErrorPolicy = field(default_factory=ErrorPolicy)
    dry_run: bool = False

    def arguments(self) -> dict[str, Any]:
        return {"dialect": self.dialect.as_json(), "policy": self.policy, "dry_run": self.dry_run}


@dataclass(frozen=True, slots=True, kw_only=True)
class EntriesAsked:
    """Data entries to ingest."""

    model: str
    module: str
    det: str
    year: int
    mode: Mode = "append"
    unit: str | None = None  # only entries of this unit; such jobs take no slot and run beside each other
    if_waiting: IfWaiting = "refuse"


async def dispatch_file(
    conn: Conn, asked: EntriesAsked, file_id: int, options: FileOptions, *, by: str, over_http: OverHttp | None = None
) -> Dispatched:
    """Ingest a file of data entries."""
    known = await _known(conn, asked)
    kind = csv_ingest.using(slot_key=None) if asked.unit is not None else csv_ingest
    new = kind.new(
        model=asked.model,
        module=known.module.name,
        det=known.det.name,
        year=asked.year,
        file_id=file_id,
        model_version=known.version,
        mode=asked.mode,
        unit=asked.unit,
        **options.arguments(),
    )
    return await start(conn, new, by=by, over_http=over_http, if_waiting=asked.if_waiting)


async def dispatch_api(
    conn: Conn, asked: EntriesAsked, policy: ErrorPolicy, *, by: str, over_http: OverHttp | None = None
) -> Dispatched:
    """Ingest the data entries of an API, from the page after the last one that was ingested."""
    known = await _known(conn, asked)
    if known.det.api is None:
        raise UsageError(f"{known.module.name}/{known.det.name} has no `api` in the data model; add it, or upload a file")
    new = api_ingest.new(
        model=asked.model,
        module=known.module.name,
        det=known.det.name,
        year=asked.year,
        model_version=known.version,
        mode=asked.mode,
        policy=policy,
    )
    return await start(conn, new, by=by, over_http=over_http, if_waiting=asked.if_waiting)


async def _known(conn: Conn, asked: EntriesAsked) -> KnownType:
    """The type that is asked for, if a file can be ingested now."""
    known = store.one_type(await store.types_of(conn, asked.model), asked.module, asked.det)
    if asked.mode == "upsert" and not known.det.key:
        raise UsageError(f"{known.det.name} has no key in the data model, so entries cannot be upserted; use append or replace")
    if asked.unit is not None and known.det.unit is None:
        raise UsageError(f"{known.det.name} has no column for units in the data model; leave out `unit`")
    if known.det.looks_up_units and not await references.is_provisioned(conn, asked.year):
        raise YearNotProvisioned(f"the units of {asked.year} are not known; sync them first")
    return known


async def dispatch_factors(
    conn: Conn, *, model: str, year: int, file_id: int, options: FileOptions, by: str,
    module: str | None = None, det: str | None = None, if_waiting: IfWaiting = "refuse", over_http: OverHttp | None = None,
) -> Dispatched:  # fmt: skip
    """Ingest a file of factors: of one type, of one module, or of all."""
    types = await store.types_of(conn, model)
    if det is not None and module is None:
        raise UsageError("give the module of the data entry type, too")
    if module is not None:
        one = store.in_module(types, module)[0] if det is None else store.one_type(types, module, det)
        module, det = one.module.name, None if det is None else one.det.name
    new = factor_ingest.new(model=model, year=year, file_id=file_id, module=module, det=det, **options.arguments())
    return await start(conn, new, by=by, over_http=over_http, if_waiting=if_waiting)


async def dispatch_units(
    conn: Conn, *, year: int, file_id: int, options: FileOptions, by: str, if_waiting: IfWaiting = "refuse",
    over_http: OverHttp | None = None,
) -> Dispatched:  # fmt: skip
    """Ingest the units of a year."""
    return await start(
        conn,
        unit_sync.new(year=year, file_id=file_id, **options.arguments()),
        by=by,
        over_http=over_http,
        if_waiting=if_waiting,
    )


async def dispatch_reference(
    conn: Conn, *, name: str, file_id: int, options: FileOptions, by: str, if_waiting: IfWaiting = "refuse",
    over_http: OverHttp | None = None,
) -> Dispatched:  # fmt: skip
    """Ingest a reference list."""
    new = reference_ingest.new(name=name, file_id=file_id, **options.arguments())
    return await start(conn, new, by=by, over_http=over_http, if_waiting=if_waiting)


async def dispatch_recalculation(
    conn: Conn, *, model: str, year: int, by: str, module: str | None = None, det: str | None = None, only_due: bool = False,
    over_http: OverHttp | None = None,
) -> Dispatched:  # fmt: skip
    """Recalculate one type, one module, or all modules; a trigger that finds a waiting job joins it."""
    types = await store.types_of(conn, model)
    if det is not None:
        known = store.one_type(types, module or "", det)
        (recalc,), join = chain([known], year)
        return await start(conn, recalc, by=by, over_http=over_http, then=join, merges=True)
    name = None if module is None else store.in_module(types, module)[0].module.name
    new = module_emission_recalc.new(model=model, year=year, module=name, only_due=only_due)
    return await start(conn, new, by=by, over_http=over_http, merges=True)


# ---------------------------------------------------------------------------------------------------------------------
# Starting a pipeline
# ---------------------------------------------------------------------------------------------------------------------

RECORD = """
    INSERT INTO holdfast.ingestions
        (job_id, job_type, pipeline_id, module, det, year, is_dry_run, file_id, requested_by, job_state)
    SELECT j.id, split_part(j.kind, '.', 2), j.pipeline_id, j.payload ->> 'module', j.payload ->> 'det',
           (j.payload ->> 'year')::smallint, coalesce((j.payload ->> 'dry_run')::boolean, false),
           (j.payload ->> 'file_id')::bigint, %(by)s, j.state
    FROM holdfast.jobs j WHERE j.id = %(job_id)s
"""
PIPELINE_OF = "SELECT pipeline_id::text FROM holdfast.jobs WHERE id = %(job_id)s"
WAITING = """
    SELECT id, owner FROM holdfast.jobs
    WHERE slot_key = %(slot)s AND kind = %(kind)s AND NOT is_current AND state IN ('blocked', 'pending') ORDER BY id
"""


async def start(
    conn: Conn, new: NewJob, *, by: str, if_waiting: IfWaiting = "refuse", over_http: OverHttp | None = None,
    then: NewJob | None = None, merges: bool = False,
) -> Dispatched:  # fmt: skip
    """Start a pipeline with this job, in the caller's transaction. `merges`: it joins a job that waits in its slot."""
    try:
        async with conn.transaction():
            if if_waiting == "supersede":
                await _supersede(conn, new, by=by, only_own=over_http is not None and over_http.only_own)
            return await _start(conn, new, by=by, is_owner=over_http is not None, then=then)
    except SlotWaiting as waiting:
        if not merges:
            raise
        return await _joined(conn, waiting.job_id)


async def _supersede(conn: Conn, new: NewJob, *, by: str, only_own: bool) -> None:
    """Cancel the job that waits in the slot."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(WAITING, {"slot": new.slot_key, "kind": new.kind})
        for job_id, owner in await cursor.fetchall():
            if only_own and owner != by:
                raise SlotWaiting(job_id, str(new.slot_key), " without an owner" if owner is None else f" of {owner}")
            await cancel(conn, JobId(job_id), actor=by, reason="superseded by a newer request for its slot")


async def _start(conn: Conn, new: NewJob, *, by: str, is_owner: bool, then: NewJob | None) -> Dispatched:
    pipeline = Pipeline(new.kind.removeprefix(PREFIX))
    first = pipeline.add(new)
    if then is not None:
        pipeline.add(then, after=first)
    all_made = await pipeline.enqueue(conn)
    made = all_made[0]
    if not made.created:  # the slot has its waiting job; the caller's savepoint removes what was added
        raise SlotWaiting(made.id, str(new.slot_key))
    if is_owner:
        for one in all_made:
            await set_owner(conn, one, by)
    await conn.execute(RECORD, {"job_id": made.id, "by": by})
    return Dispatched(made.id, pipeline.id)


async def _joined(conn: Conn, job_id: int) -> Dispatched:
    """The job that waits, and its pipeline."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(PIPELINE_OF, {"job_id": job_id})
        row = await cursor.fetchone()
    if row is None:
        raise NotFound(f"there is no job {job_id}")
    return Dispatched(job_id, row[0])
