"""Badges and statistics: what is due, what is stale, what is active, and the aggregated emissions."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from fastapi import Query, Request
from starlette.responses import Response

from holdfast.api.envelope import Data, respond
from holdfast.api.plane import plane_of
from holdfast.api.routes import Routes
from holdfast.services.ingestion.api.dependencies import Name, Year
from holdfast.services.ingestion.loading import factors
from holdfast.services.ingestion.loading.factors import StaleFactor
from holdfast.services.ingestion.views import due
from holdfast.services.ingestion.views.due import ActivePipeline, RecalculationStatus, StaleStatistics, Statistic

routes = Routes("ingestion statistics")
OptionalYear = Annotated[Year | None, Query()]


@routes.add(
    "GET", "/api/ingestion/recalculation-status", action="ingestion.read", answers=Data[list[RecalculationStatus]],
    also=["/sync/recalculation-status"],
)  # fmt: skip
async def show_recalculations(request: Request, year: OptionalYear = None, module: Name | None = None) -> Response:
    """Show for each type and year whether its emissions include every change."""
    async with plane_of(request).pool.connection() as conn:
        return respond(await due.recalculations(conn, year=year, module=module))


@routes.add(
    "GET", "/api/ingestion/active-pipelines", action="ingestion.read", answers=Data[list[ActivePipeline]],
    also=["/sync/active-pipelines"],
)  # fmt: skip
async def show_active(request: Request) -> Response:
    """Show the pipelines of ingestion that have not ended."""
    async with plane_of(request).pool.connection() as conn:
        return respond(await due.active_pipelines(conn))


@routes.add(
    "GET", "/api/ingestion/stale-stats", action="ingestion.read", answers=Data[list[StaleStatistics]],
    also=["/sync/health/stale-stats"],
)  # fmt: skip
async def show_stale(request: Request, older_than_minutes: Annotated[int, Query(ge=0, le=525_600)] = 60) -> Response:
    """Show statistics that do not include a change of so long ago, and why."""
    async with plane_of(request).pool.connection() as conn:
        return respond(await due.stale_statistics(conn, timedelta(minutes=older_than_minutes)))


@routes.add(
    "GET", "/api/ingestion/stale-factors", action="ingestion.read", answers=Data[list[StaleFactor]],
    also=["/sync/factors/stale"],
)  # fmt: skip
async def show_stale_factors(request: Request, year: OptionalYear = None) -> Response:
    """Show factors that the newest upload for their type and year did not have. They are never deleted."""
    async with plane_of(request).pool.connection() as conn:
        return respond(await factors.stale(conn, year))


@routes.add("GET", "/api/ingestion/stats", action="ingestion.read", answers=Data[list[Statistic]])
async def show_statistics(request: Request, year: Annotated[Year, Query()], module: Name | None = None) -> Response:
    """Show the aggregated emissions of a year, by type, unit and emission type."""
    async with plane_of(request).pool.connection() as conn:
        return respond(await due.statistics(conn, year, module))
