"""The routes of ingestion: files, jobs, pipelines, statistics, and data models."""

from __future__ import annotations

from holdfast.services.ingestion.api import dispatches, due, files, jobs, models
from holdfast.services.ingestion.settings import IngestionSettings
from holdfast.services.ingestion.setup import Ingestion, ingestion_from

ROUTES = (files.routes, dispatches.routes, jobs.routes, due.routes, models.routes)


def open_for(settings: IngestionSettings) -> Ingestion:
    """Open what the routes use."""
    return ingestion_from(settings)
