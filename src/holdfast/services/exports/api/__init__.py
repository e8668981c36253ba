"""The routes of exports: mappings, snapshots, export jobs, and what the engines' catalogs hold."""

from __future__ import annotations

from holdfast.services.exports.api import mappings, schema, snapshots, worker_jobs, worker_snapshots
from holdfast.services.exports.setup import Exports, exports_from
from holdfast.settings import Settings

ROUTES = (mappings.routes, worker_jobs.routes, worker_snapshots.routes, snapshots.routes, schema.routes)


def open_for(settings: Settings) -> Exports:
    """What the routes need as long as they are served."""
    return exports_from(settings)
