"""`ingestion.factor_ingest`: factors are upserted in place, and only the types whose factors changed are recalculated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from holdfast.jobs.model import Lock, NewJob
from holdfast.jobs.outcome import Done, Fail
from holdfast.services.ingestion.jobs.csv_ingest import chain
from holdfast.services.ingestion.jobs.flow import NICE, Target, ingest_file
from holdfast.services.ingestion.loading import factors, scopes
from holdfast.services.ingestion.loading.accept import ErrorPolicy
from holdfast.services.ingestion.models import store
from holdfast.services.ingestion.models.store import KnownType
from holdfast.services.ingestion.scope import slot_of
from holdfast.services.ingestion.staging.validate import Layout
from holdfast.worker.context import Context
from holdfast.worker.kinds import job

Conn = psycopg.AsyncConnection[Any]


def slot(model: str, year: int, module: str | None = None, det: str | None = None) -> str:
    return slot_of("factor_ingest", model=model, module=module, det=det, year=year)


def one_at_a_time(year: int) -> list[Lock]:
    """Uploads for one module and for all modules have different slots; what they change is compared with what is there."""
    return [Lock(f"ingestion:factors:{year}", when_busy="wait")]


@job("ingestion.factor_ingest", public=False, run_in="process", nice=NICE, extra="ingestion", slot=slot, locks=one_at_a_time)
async def factor_ingest(
    ctx: Context,
    model: str,
    year: int,
    file_id: int,
    module: str | None = None,
    det: str | None = None,
    dialect: dict[str, str | None] | None = None,
    policy: ErrorPolicy | None = None,
    dry_run: bool = False,
) -> Done | Fail:
    """Ingest a file of factors."""
    async with ctx.connection() as conn:
        types = await store.types_of(conn, model)
    if module is not None:
        types = store.in_module(types, module) if det is None else [store.one_type(types, module, det)]
    return await ingest_file(ctx, file_id, dialect, factors_target(types, year, ctx.job.id, policy, dry_run=dry_run))


def factors_target(types: list[KnownType], year: int, job_id: int, policy: ErrorPolicy | None, *, dry_run: bool) -> Target:
    """How rows become factors of these types."""

    async def begin(conn: Conn, layout: Layout) -> None:
        for one in await factors.affected(conn, factors.given_query(layout, types, year)):
            await scopes.changed(conn, [one.det_id], year, structure=one.is_new)

    async def load(conn: Conn, layout: Layout) -> int:
        return (await conn.execute(factors.upsert_statement(factors.given_query(layout, types, year), job_id))).rowcount

    async def follow(conn: Conn, layout: Layout) -> tuple[Sequence[NewJob], NewJob | None]:
        found = {one.det_id for one in await factors.affected(conn, factors.given_query(layout, types, year))}
        return chain([one for one in types if one.det_id in found], year)

    return Target(
        columns=factors.columns_of(types),
        begin=begin,
        load=load,
        key=("det", "emission_type", "classification"),
        policy=policy or ErrorPolicy(),
        dry_run=dry_run,
        follow=follow,
    )
