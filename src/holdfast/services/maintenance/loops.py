"""The periodic loops of maintenance. Importing this module also registers the cleaners of maintenance."""

from __future__ import annotations

from holdfast.schedule.registry import Loop
from holdfast.services.maintenance import kinds
from holdfast.services.maintenance.policies import reconcile
from holdfast.services.maintenance.settings import MaintenanceSettings
from holdfast.services.maintenance.tables import refresh

assert kinds.KINDS  # their cleaners are called by the loop `effects`


def loops(settings: MaintenanceSettings) -> list[Loop]:
    """The loops. `apps/scheduler.py` applies the intervals of the settings."""
    return [
        Loop(
            refresh.NAME,
            refresh.refresh,
            every=refresh.EVERY,
            first_run="at_once",
            is_quiet=True,
            description="Lists the tables of the catalogs and measures their health.",
        ),
        Loop(
            reconcile.NAME,
            reconcile.enqueue_due,
            every=reconcile.EVERY,
            is_quiet=True,
            description="Enqueues the maintenance jobs of due policies.",
        ),
    ]
