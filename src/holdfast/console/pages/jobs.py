"""Jobs: a list with filters in the address, newest first."""

from __future__ import annotations

import json
from typing import Final

from holdfast.console.filter_language import for_query, parse, suggestions, toggled
from holdfast.console.view import Shown, View
from holdfast.console.views.kinds import list_kinds
from holdfast.jobs.bulk import KIND as BULK_KIND
from holdfast.jobs.states import State
from holdfast.jobs.views import read
from holdfast.jobs.views.filters import Condition

LENGTH: Final = 50
CAP: Final = 500
COLUMNS: Final = {
    "kind": "Kind",
    "subject": "Subject",
    "attempt": "Attempts",
    "queue": "Queue",
    "owner": "Owner",
    "created": "Created",
    "duration": "Duration",
    "error": "Error or message",
}
DEFAULT: Final = ("kind", "subject", "attempt", "created", "duration", "error")
FACETS: Final = (*(f"state:{state}" for state in State), *(f"cond:{one}" for one in Condition))


async def show(view: View) -> Shown:
    """A page of jobs."""
    wanted = parse(view.given("f"), view.now)
    filters = for_query(wanted)
    located = await read.locate(view.conn, filters)
    page = await read.list_jobs(view.conn, limit=LENGTH, before=view.number("before"), **located)
    total = await read.count_jobs(view.conn, cap=CAP, **located)
    kinds = [one.kind for one in await list_kinds(view.conn)]
    columns = [name for name in view.given("columns").split(",") if name in COLUMNS] or list(DEFAULT)
    values = {
        "filter": wanted.text,
        "jobs": page.jobs,
        "total": total,
        "older": None if page.before is None else view.here(before=page.before),
        "newest": view.here(before=None) if view.number("before") else None,
        "facets": [(word, toggled(wanted.text, word), wanted.has(word)) for word in FACETS],
        "words": json.dumps(suggestions(kinds)),
        "columns": {name: COLUMNS[name] for name in COLUMNS if name in columns},
        "column_choice": [(name, title, name in columns) for name, title in COLUMNS.items()],
        "bulk": [] if "q" in filters or not filters else bulk_verbs(wanted.values),
        "bulk_kind": BULK_KIND,
    }
    return Shown("jobs.html", values)


def bulk_verbs(filters: object) -> list[str]:
    """The bulk actions that can match anything with this filter. Pure."""
    assert hasattr(filters, "get")
    state, condition = filters.get("state"), filters.get("condition")
    found = []
    if state in (None, "failed", "cancelled") and condition in (None, "quarantined"):
        found.append("retry")
    if state in (None, "blocked", "pending", "running", "submitted") and condition != "quarantined":
        found.append("cancel")
    if state in (None, "running") and condition == "stale":
        found.insert(0, "recover")
    return found
