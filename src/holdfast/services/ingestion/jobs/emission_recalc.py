"""`ingestion.emission_recalc`: the emissions of one data entry type and year, from its entries and factors."""

from __future__ import annotations

from typing import Any

import psycopg

from holdfast.crashpoints import crashpoint
from holdfast.jobs.outcome import Done
from holdfast.services.ingestion.jobs import report
from holdfast.services.ingestion.jobs.progress import with_progress
from holdfast.services.ingestion.loading import emissions
from holdfast.services.ingestion.loading.accept import Result
from holdfast.services.ingestion.loading.emissions import Progress, Recalculated
from holdfast.services.ingestion.scope import slot_of
from holdfast.worker.context import Context
from holdfast.worker.kinds import job

Conn = psycopg.AsyncConnection[Any]


def slot(model: str, module: str, det: str, year: int) -> str:
    return slot_of("emission_recalc", model=model, module=module, det=det, year=year)


@job("ingestion.emission_recalc", public=False, slot=slot)
async def emission_recalc(ctx: Context, model: str, module: str, det: str, year: int, det_id: int) -> Done:
    """Recalculate emissions. It is one statement or three, in the transaction that ends the job."""
    said = f"recalculating {module}/{det} {year}"
    done: Recalculated | None = None
    progress = Progress()

    def so_far() -> tuple[float | None, str]:
        return progress.fraction, f"{said}: {progress.done:,} of {progress.expected:,} emissions" if progress.expected else said

    async def prepare(conn: Conn) -> None:
        nonlocal done
        done = await with_progress(ctx, emissions.recalculate(conn, det_id, year, progress), so_far)
        crashpoint("recalc.in_tx_updated")

    async def publish(conn: Conn) -> None:
        assert done is not None
        result, message = told(done)
        outcome = {"result": result.value, "message": message, **done._asdict()}
        await report.conclude(conn, ctx.job.id, result.value, message, outcome)

    await ctx.progress(message=said)
    return Done(prepare=prepare, publish=publish)


def told(done: Recalculated) -> tuple[Result, str]:
    """The result of a recalculation, and its sentence. Pure."""
    message = f"{done.updated:,} emissions updated, {done.added:,} added, {done.removed:,} removed"
    if not done.without_factor:
        return Result.SUCCESS, message
    classes = ", ".join(repr(one) for one in done.examples)
    return Result.WARNING, f"{message}; {done.without_factor:,} entries have no factor, for the classifications {classes}"
