"""Ingestion: recent jobs, active pipelines, what is due for each data entry type and year, and stale statistics."""

from __future__ import annotations

from datetime import timedelta
from typing import Final, get_args

from holdfast.api.problems import Problem
from holdfast.console.view import Shown, View
from holdfast.services.ingestion.views import due, runs
from holdfast.services.ingestion.views.runs import DocumentResult

LENGTH: Final = 30
SCOPES: Final = 20
STALE_AFTER: Final = timedelta(hours=1)
URGENCY: Final = ("failed", "due", "recalculating", "up_to_date")


async def show(view: View) -> Shown:
    """Jobs, newest first; scopes, those that need attention first."""
    result = view.given("result") or None
    if result not in (None, *get_args(DocumentResult)):
        raise Problem("invalid-request", f"no result {result!r}; there are: {', '.join(get_args(DocumentResult))}")
    found = await runs.listed(view.conn, limit=LENGTH, before=view.number("before"), result=result)
    scopes = sorted(await due.recalculations(view.conn), key=lambda one: URGENCY.index(one.status))
    stale = await due.stale_statistics(view.conn, STALE_AFTER)
    active = await due.active_pipelines(view.conn)
    shown = found[:LENGTH]
    values = {
        "runs": shown,
        "result": result,
        "results": get_args(DocumentResult),
        "scopes": scopes[:SCOPES],
        "more_scopes": len(scopes) - SCOPES,
        "stale": stale[:SCOPES],
        "more_stale": len(stale) - SCOPES,
        "active": active[:SCOPES],
        "more_active": len(active) - SCOPES,
        "older": view.here(before=shown[-1].job_id) if len(found) > LENGTH else None,
        "newest": view.here(before=None) if view.number("before") else None,
    }
    return Shown("overview.html", values)
