"""The routes of maintenance: tables, runs, policies, savings."""

from __future__ import annotations

from holdfast.services.maintenance.api import policies, tables
from holdfast.services.maintenance.settings import MaintenanceSettings
from holdfast.services.maintenance.setup import Maintenance, maintenance_from

ROUTES = (tables.routes, policies.routes)


def open_for(settings: MaintenanceSettings) -> Maintenance:
    """The engines and options that the routes use. Engines are opened on first use."""
    return maintenance_from(settings)
