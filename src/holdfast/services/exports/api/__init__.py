"""The routes of exports: mappings, snapshots, export jobs, and the schema cache."""

from __future__ import annotations

from holdfast.services.exports.api import mappings, schema, snapshots, worker_jobs, worker_snapshots
from holdfast.services.exports.settings import ExportsSettings
from holdfast.services.exports.setup import Exports, exports_from

ROUTES = (mappings.routes, worker_jobs.routes, worker_snapshots.routes, snapshots.routes, schema.routes)


def open_for(settings: ExportsSettings) -> Exports:
    """Open the engines and options that the routes use."""
    return exports_from(settings)
