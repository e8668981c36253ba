"""`ingestion.aggregation`: the statistics of modules in a year, from their emissions."""

from __future__ import annotations

from typing import Any

import psycopg

from holdfast.crashpoints import crashpoint
from holdfast.jobs.outcome import Done
from holdfast.services.ingestion.jobs import report
from holdfast.services.ingestion.jobs.progress import with_progress
from holdfast.services.ingestion.loading import emissions
from holdfast.services.ingestion.loading.accept import Result
from holdfast.services.ingestion.models import store
from holdfast.services.ingestion.scope import slot_of
from holdfast.worker.context import Context
from holdfast.worker.kinds import job

Conn = psycopg.AsyncConnection[Any]


def slot(model: str, modules: list[str], year: int) -> str:
    """All modules are in the key: a trigger that finds a waiting job finds one that does the same."""
    return slot_of("aggregation", model=model, module=",".join(sorted(modules)), year=year)


@job("ingestion.aggregation", public=False, slot=slot)
async def aggregation(ctx: Context, model: str, modules: list[str], year: int) -> Done:
    """Sum up the emissions of these modules."""
    async with ctx.connection() as conn:
        types = [one for one in await store.types_of(conn, model) if one.module.name in modules]

    said = f"aggregating {', '.join(modules)} {year}"
    rows = 0

    async def prepare(conn: Conn) -> None:
        nonlocal rows
        summing = emissions.aggregate(conn, sorted(one.det_id for one in types), year)
        rows = await with_progress(ctx, summing, lambda: (None, said))
        crashpoint("aggregation.in_tx_summed")

    async def publish(conn: Conn) -> None:
        message = f"{rows:,} statistics of {', '.join(modules)}"
        outcome = {"result": Result.SUCCESS.value, "message": message, "rows": rows, "modules": modules}
        await report.conclude(conn, ctx.job.id, Result.SUCCESS.value, message, outcome)

    await ctx.progress(message=said)
    return Done(prepare=prepare, publish=publish)
