"""The periodic loop of ingestion: drops staging tables of attempts that were killed."""

from __future__ import annotations

from datetime import timedelta

from holdfast.schedule.context import Pass
from holdfast.schedule.registry import Loop, Result
from holdfast.services.ingestion.settings import IngestionSettings
from holdfast.services.ingestion.staging import tables
from holdfast.telemetry.log import log

NAME = "ingestion_staging"
EVERY = timedelta(seconds=60)


async def drop_staging(ctx: Pass) -> Result:
    """Drop the staging tables of attempts that do not run any more."""
    async with ctx.connection() as conn:
        dropped = await tables.drop_unneeded(conn)
    if dropped.tables:
        log.info("ingestion_staging_dropped", tables=dropped.tables)
    return Result(dropped.tables, len(dropped.failed))


def loops(settings: IngestionSettings) -> list[Loop]:
    """The loops. `apps/scheduler.py` applies the intervals of the settings."""
    return [
        Loop(
            NAME,
            drop_staging,
            every=EVERY,
            is_quiet=True,
            description="Drops staging tables of ingestion jobs that were killed.",
        )
    ]
