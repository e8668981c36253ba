"""`ingestion.csv_ingest`: the rows of a file become data entries; then their emissions are recalculated and aggregated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from holdfast.jobs.model import NewJob
from holdfast.jobs.outcome import Done, Fail
from holdfast.services.ingestion.jobs.aggregation import aggregation
from holdfast.services.ingestion.jobs.emission_recalc import emission_recalc
from holdfast.services.ingestion.jobs.flow import NICE, Target, ingest_file
from holdfast.services.ingestion.loading import entries, scopes
from holdfast.services.ingestion.loading.accept import ErrorPolicy
from holdfast.services.ingestion.loading.entries import Mode
from holdfast.services.ingestion.models import store
from holdfast.services.ingestion.models.definitions import Column
from holdfast.services.ingestion.models.store import KnownType
from holdfast.services.ingestion.scope import slot_of
from holdfast.services.ingestion.staging.validate import Layout
from holdfast.worker.context import Context
from holdfast.worker.kinds import job

Conn = psycopg.AsyncConnection[Any]


def slot(model: str, module: str, det: str, year: int) -> str:
    return slot_of("csv_ingest", model=model, module=module, det=det, year=year)


@job("ingestion.csv_ingest", public=False, run_in="process", nice=NICE, extra="ingestion", slot=slot)
async def csv_ingest(
    ctx: Context,
    model: str,
    module: str,
    det: str,
    year: int,
    file_id: int,
    model_version: int | None = None,
    mode: Mode = "append",
    unit: str | None = None,
    dialect: dict[str, str | None] | None = None,
    policy: ErrorPolicy | None = None,
    dry_run: bool = False,
) -> Done | Fail:
    """Ingest a file of data entries."""
    async with ctx.connection() as conn:
        known = store.one_type(await store.types_of(conn, model, model_version), module, det)
    target = entries_target(known, year, ctx.job.id, mode=mode, unit=unit, policy=policy, dry_run=dry_run)
    return await ingest_file(ctx, file_id, dialect, target)


def entries_target(
    known: KnownType,
    year: int,
    job_id: int,
    *,
    mode: Mode,
    unit: str | None = None,
    policy: ErrorPolicy | None = None,
    dry_run: bool = False,
) -> Target:
    """How rows become data entries of one type and year."""
    det = known.det

    async def begin(conn: Conn, layout: Layout) -> None:
        await scopes.changed(conn, [known.det_id], year, structure=True)
        if mode == "replace":
            await entries.remove(conn, known.det_id, year, unit)

    async def load(conn: Conn, layout: Layout) -> int:
        statement = entries.insert_statement(layout, det, det_id=known.det_id, year=year, job_id=job_id, mode=mode)
        return (await conn.execute(statement)).rowcount

    async def follow(conn: Conn, layout: Layout) -> tuple[Sequence[NewJob], NewJob | None]:
        return chain([known], year)

    return Target(
        columns=det.columns
        if unit is None
        else tuple(only_of(unit, one) if one.name == det.unit else one for one in det.columns),
        begin=begin,
        load=load,
        key=det.key,
        existing=entries.existing_keys(known.det_id, year) if mode == "append" else None,
        year=year,
        policy=policy or ErrorPolicy(),
        dry_run=dry_run,
        follow=follow if det.amount is not None else None,
    )


def only_of(unit: str, column: Column) -> Column:
    """The column of the unit, for a file that may have entries of one unit only. Pure."""
    return column.model_copy(update={"allowed": (unit,), "lookup": None, "required": True})


def chain(types: Sequence[KnownType], year: int) -> tuple[list[NewJob], NewJob | None]:
    """A recalculation of each type, and one aggregation of all their modules after the last of them. Pure."""
    if not types:
        return [], None
    model = types[0].model
    recalcs = [
        emission_recalc.new(model=model, module=one.module.name, det=one.det.name, year=year, det_id=one.det_id)
        for one in types
    ]
    modules = sorted({one.module.name for one in types})
    return recalcs, aggregation.using(if_parent_fails="run").new(model=model, modules=modules, year=year)
