"""Tables: the list with the health of each, and the savings of each month."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from holdfast.console.view import Shown, View
from holdfast.services.maintenance.api.dependencies import maintenance_of
from holdfast.services.maintenance.api.tables import view_of
from holdfast.services.maintenance.figures import tables_by_label
from holdfast.services.maintenance.run.read import running_actions
from holdfast.services.maintenance.savings import by_month
from holdfast.services.maintenance.tables import cache

LENGTH: Final = 50
SAVINGS: Final = timedelta(days=150)
PLACE: Final = ("after_catalog", "after_database", "after_name")  # the last table of the page before
# The state whose glyph and colour a word of the health score has.
TONES: Final = {"good": "ok", "fair": "warning", "poor": "failed", "unknown": "pending"}
BELOW: Final = {"below 80": 80, "below 50": 50}


async def show_list(view: View) -> Shown:
    """Tables by name, with the filter of the address."""
    here = maintenance_of(view.request)
    filters: dict[str, Any] = {
        "catalog": view.given("catalog") or None,
        "namespace": view.given("database") or None,
        "search": view.given("search").strip() or None,
        "health_below": view.number("health_below"),
    }
    place = [view.given(name) for name in PLACE]
    found = await cache.listed(view.conn, limit=LENGTH, after=place if any(place) else None, **filters)
    tables = [view_of(row) for row in found[:LENGTH]]
    last = tables[-1] if len(found) > LENGTH else None
    jobs = [one.running_job_id for one in tables if one.running_job_id is not None]
    values = {
        "tables": tables,
        "running": await running_actions(view.conn, jobs),
        "counts": await tables_by_label(view.conn),
        "months": await by_month(view.conn, here.prices, since=view.now - SAVINGS, catalog=filters["catalog"]),
        "tones": TONES,
        "below": {name: view.here(health_below=limit, **_first()) for name, limit in BELOW.items()},
        "every": view.here(health_below=None, **_first()),
        "many_catalogs": len(here.catalogs) > 1,
        "filters": filters,
        "is_filtered": any(filters.values()),
        "newest": view.here(**_first()) if any(place) else None,
        "older": None if last is None else view.here(**dict(zip(PLACE, (last.catalog, last.database, last.name), strict=True))),
    }
    return Shown("tables.html", values)


def _first() -> dict[str, None]:
    """The values of the query without a place: the first page. Pure."""
    return dict.fromkeys(PLACE)
