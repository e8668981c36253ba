"""The audit log: who did what to which object, why, and what was denied. Newest first."""

from __future__ import annotations

from typing import Final

from holdfast.api import audit
from holdfast.console.view import Shown, View
from holdfast.jobs.payload import refuse_bad_text

LENGTH: Final = 50
FILTERS: Final = ("actor", "object", "action")


async def show(view: View) -> Shown:
    """A page of entries."""
    given = {name: view.given(name).strip() or None for name in FILTERS}
    for name, value in given.items():
        refuse_bad_text(value, name)
    outcome = view.given("outcome") if view.given("outcome") in ("done", "denied") else None
    found = await audit.read(view.conn, limit=LENGTH, before=view.number("before"), outcome=outcome, **given)
    entries = found[:LENGTH]
    older = view.here(before=entries[-1].id) if len(found) > LENGTH else None
    values = {"entries": entries, "given": given, "outcome": outcome, "older": older, "newest": view.here(before=None)}
    return Shown("audit.html", {**values, "first": view.number("before") is None})
