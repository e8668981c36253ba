"""`ingestion.module_emission_recalc`: recalculates the data entry types of a module, or of all modules, that need it."""

from __future__ import annotations

from holdfast.jobs.outcome import Done
from holdfast.services.ingestion.jobs.csv_ingest import chain
from holdfast.services.ingestion.loading import scopes
from holdfast.services.ingestion.models import store
from holdfast.services.ingestion.scope import slot_of
from holdfast.worker.context import Context
from holdfast.worker.kinds import job


def slot(model: str, year: int, module: str | None = None) -> str:
    return slot_of("module_emission_recalc", model=model, module=module, year=year)


@job("ingestion.module_emission_recalc", public=False, slot=slot)
async def module_emission_recalc(
    ctx: Context, model: str, year: int, module: str | None = None, only_due: bool = False
) -> Done:
    """Start one recalculation for each type, and one aggregation after the last of them.

    `only_due`: only for types whose emissions do not include every change."""
    async with ctx.connection() as conn:
        types = await store.types_of(conn, model)
        chosen = types if module is None else store.in_module(types, module)
        chosen = [one for one in chosen if one.det.amount is not None]
        if only_due:
            due = await scopes.due(conn, year, [one.det_id for one in chosen])
            chosen = [one for one in chosen if one.det_id in due]
    then, join = chain(chosen, year)
    message = f"{len(then):,} recalculations started"
    return Done({"result": "SUCCESS", "message": message, "started": len(then)}, then=then, join=join)
