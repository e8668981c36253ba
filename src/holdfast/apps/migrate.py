"""Bring a database to the current schema and say what was done. Called by: `holdfast db migrate`, `holdfast up`."""

from __future__ import annotations

from holdfast.database import migrate as database


def bring_up_to_date(url: str, revision: str = "head") -> str:
    """Migrate, and give back the sentence that a person wants to read."""
    before = database.status(url)
    after = database.migrate(url, revision)
    if before.current == after.current:
        return f"The schema is at {after.current or 'nothing'}: there was nothing to do."
    return f"The schema went from {before.current or 'nothing'} to {after.current or 'nothing'}."
