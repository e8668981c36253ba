"""System: drain, pause and resume; configuration; the health of Postgres, the tables and the schema."""

from __future__ import annotations

from typing import Any

from holdfast.console.checks import checks_of
from holdfast.console.view import Shown, View
from holdfast.console.views.system import read_health
from holdfast.jobs import config, control


async def show(view: View) -> Shown:
    """Everything that concerns the whole installation."""
    seen = await read_health(view.conn)
    controls = await control.controls(view.conn)
    values: dict[str, Any] = {
        "seen": seen,
        "checks": checks_of(seen, view.plane),
        "kinds": seen.kinds,
        "revision": seen.revision,
        "wanted": view.plane.wanted_revision,
        "version": view.plane.options.version,
        "values": await config.read_values(view.conn) if view.may("config.read") else [],
        "streams": len(view.plane.hub),
        "draining": next((one for one in controls if one.kind == control.EVERYTHING and one.drained), None),
    }
    return Shown("system.html", values)
