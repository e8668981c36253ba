"""`ingestion.reference_ingest`: the codes of a reference list. `ingestion.unit_sync` is the same for units, and provisions the
year."""

from __future__ import annotations

from typing import Any

import psycopg

from holdfast.jobs.outcome import Done, Fail
from holdfast.services.ingestion.jobs.flow import NICE, Target, ingest_file
from holdfast.services.ingestion.loading import references
from holdfast.services.ingestion.loading.accept import ErrorPolicy
from holdfast.services.ingestion.models.definitions import UNITS
from holdfast.services.ingestion.scope import slot_of
from holdfast.services.ingestion.staging.validate import Layout
from holdfast.worker.context import Context
from holdfast.worker.kinds import job

Conn = psycopg.AsyncConnection[Any]


def slot_of_list(name: str) -> str:
    return slot_of("reference_ingest", model="-", det=name)


@job("ingestion.reference_ingest", public=False, run_in="process", nice=NICE, extra="ingestion", slot=slot_of_list)
async def reference_ingest(
    ctx: Context,
    name: str,
    file_id: int,
    dialect: dict[str, str | None] | None = None,
    policy: ErrorPolicy | None = None,
    dry_run: bool = False,
) -> Done | Fail:
    """Ingest a reference list."""
    return await ingest_file(ctx, file_id, dialect, references_target(name, ctx.job.id, policy, dry_run=dry_run))


def slot_of_units(year: int) -> str:
    return slot_of("unit_sync", model="-", year=year)


@job("ingestion.unit_sync", public=False, run_in="process", nice=NICE, extra="ingestion", slot=slot_of_units)
async def unit_sync(
    ctx: Context,
    year: int,
    file_id: int,
    dialect: dict[str, str | None] | None = None,
    policy: ErrorPolicy | None = None,
    dry_run: bool = False,
) -> Done | Fail:
    """Ingest the organisational units, and provision the year."""
    target = references_target(UNITS, ctx.job.id, policy, dry_run=dry_run, year=year)
    return await ingest_file(ctx, file_id, dialect, target)


def references_target(name: str, job_id: int, policy: ErrorPolicy | None, *, dry_run: bool, year: int | None = None) -> Target:
    """How rows become codes of a list."""

    async def begin(conn: Conn, layout: Layout) -> None:
        if year is not None:
            await references.provision(conn, year, job_id)

    async def load(conn: Conn, layout: Layout) -> int:
        return (await conn.execute(references.upsert_statement(layout, name, job_id))).rowcount

    return Target(
        columns=references.COLUMNS, begin=begin, load=load, key=("code",), policy=policy or ErrorPolicy(), dry_run=dry_run
    )
